//! The IDs of objects that an upstream stores, such as a response that a later
//! request continues.

use memchr::memmem;

use crate::json::Object;

/// Maximum length of an ID as written, in bytes. A longer one is not an ID.
const LIMIT: usize = 512;

/// The member of an event that contains the response.
const RESPONSE: &[u8] = b"\"response\"";

/// The ID that a JSON value contains: a string, or the member `id` of an object,
/// of which only the beginning is needed.
pub fn stored_id(value: &[u8]) -> Option<String> {
    match value.trim_ascii_start().first()? {
        b'"' => text(value),
        b'{' => {
            let members = Object::open(value).ok()?.map_while(Result::ok);
            let id = members.into_iter().find(|member| *member.name == *b"id")?;
            text(id.value)
        }
        _ => None,
    }
}

/// The ID of the response that a stream of the responses API brings, from its
/// first events.
pub fn streamed_response_id(events: &[u8]) -> Option<String> {
    let at = memmem::find(events, RESPONSE)?;
    let rest = events.get(at + RESPONSE.len()..)?.trim_ascii_start();
    stored_id(rest.strip_prefix(b":")?.trim_ascii_start())
}

fn text(value: &[u8]) -> Option<String> {
    if value.len() > LIMIT {
        return None;
    }
    let id: String = serde_json::from_slice(value).ok()?;
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, stored_id, streamed_response_id};

    #[test]
    fn an_id_is_a_string_or_the_member_of_an_object() {
        let long = format!("\"{}\"", "a".repeat(LIMIT));
        for (value, id) in [
            (r#""resp_1""#, Some("resp_1")),
            (r#""r\u0065sp_1""#, Some("resp_1")),
            (
                r#" {"object":"response","id":"resp_1","output":[{"#,
                Some("resp_1"),
            ),
            (
                r#"{"conversation":{"id":"conv_1"},"id":"resp_1"}"#,
                Some("resp_1"),
            ),
            (r#"{"output":[{"id":"msg_1"}]}"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":"resp_"#, None),
            (r#""""#, None),
            ("null", None),
            ("", None),
            (&long, None),
        ] {
            assert_eq!(stored_id(value.as_bytes()).as_deref(), id, "{value:.60}");
        }
    }

    #[test]
    fn the_first_event_of_a_stream_contains_the_id() {
        for (events, id) in [
            (
                ": ping\n\nevent: response.created\ndata: {\"type\":\"response.created\",\
                 \"response\": {\"id\":\"resp_1\",\"status\":\"queued\"}}\n\n",
                Some("resp_1"),
            ),
            ("data: {\"response\":null}\n\n", None),
            ("data: {\"type\":\"error\"}\n\n", None),
            ("", None),
        ] {
            let found = streamed_response_id(events.as_bytes());
            assert_eq!(found.as_deref(), id, "{events}");
        }
    }
}
