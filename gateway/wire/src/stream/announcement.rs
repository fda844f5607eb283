//! Events that precede the content of a response.

use crate::json::{Array, Object, is_empty};

/// The events of the responses API that precede its output and repeat the request.
const EVENTS: [&[u8]; 3] = [
    b"response.created",
    b"response.queued",
    b"response.in_progress",
];

/// Whether the event only announces a response, which can still fail: by its name, or
/// a chunk whose choices have no content yet, such as the role of the message.
pub(super) fn is_announcement(name: Option<&[u8]>, data: &[u8]) -> bool {
    name.is_some_and(|name| EVENTS.contains(&name)) || is_empty_chunk(data).unwrap_or(false)
}

/// `None` if the data is no chunk of completions.
fn is_empty_chunk(data: &[u8]) -> Option<bool> {
    let mut choices = None;
    for member in Object::open(data).ok()? {
        let member = member.ok()?;
        match &*member.name {
            b"choices" => choices = Some(member.value),
            // Usage is at the end.
            b"usage" if member.value != b"null" => return None,
            _ => {}
        }
    }
    for choice in Array::open(choices?)? {
        let mut has_content_member = false;
        for member in Object::open(choice).ok()? {
            let member = member.ok()?;
            let is_empty = match &*member.name {
                b"index" => true,
                b"delta" => {
                    has_content_member = true;
                    is_empty_delta(member.value)?
                }
                b"text" => {
                    has_content_member = true;
                    is_nothing(member.value)
                }
                _ => is_nothing(member.value),
            };
            if !is_empty {
                return Some(false);
            }
        }
        if !has_content_member {
            return None;
        }
    }
    Some(true)
}

/// Whether a delta has at most a role.
fn is_empty_delta(delta: &[u8]) -> Option<bool> {
    for member in Object::open(delta).ok()? {
        let member = member.ok()?;
        if &*member.name != b"role" && !is_nothing(member.value) {
            return Some(false);
        }
    }
    Some(true)
}

fn is_nothing(value: &[u8]) -> bool {
    value == b"null" || value == b"\"\"" || is_empty(value)
}

#[cfg(test)]
mod tests {
    use super::is_announcement;

    #[test]
    fn chunks_without_content_are_announcements() {
        for (data, expected) in [
            (
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
                true,
            ),
            (
                r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":null,"refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}"#,
                true,
            ),
            (
                r#"{"choices":[{"delta":{}}, {"delta":{"tool_calls":[]}}]}"#,
                true,
            ),
            (r#"{"choices":[],"prompt_filter_results":[{"a":1}]}"#, true),
            (r#"{"choices":[{"index":0,"text":""}]}"#, true),
            (r#"{"choices":[{"delta":{"content":"a"}}]}"#, false),
            (
                r#"{"choices":[{"delta":{"role":"assistant","reasoning_content":"a"}}]}"#,
                false,
            ),
            (
                r#"{"choices":[{"delta":{}},{"delta":{"content":" "}}]}"#,
                false,
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
                false,
            ),
            (
                r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
                false,
            ),
            (r#"{"choices":[{"text":"a"}]}"#, false),
            (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, false),
            (r#"{"type":"response.output_text.delta"}"#, false),
            (r#"{"choices":[{}]}"#, false),
            (r#"{"choices":null}"#, false),
            (r#"{"choices":[{"delta":{"#, false),
            (r"[]", false),
            ("", false),
        ] {
            assert_eq!(is_announcement(None, data.as_bytes()), expected, "{data}");
        }
        assert!(is_announcement(Some(b"response.created"), b"{}"));
        assert!(!is_announcement(Some(b"response.completed"), b"{}"));
    }
}
