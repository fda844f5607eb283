//! The header fields of upstream responses that clients see.

use std::str::FromStr;

use fastllm_contract::Secret;
use fastllm_engine::is_reserved_header;
use fastllm_wire::contains_secret;
use fastllm_wire::http1::{HeaderField, HeaderFields, MAX_FIELDS};
use http::header::HeaderName;

use super::{CACHE, REQUEST_ID, SHOULD_RETRY};

/// The fields that clients see by default: those that describe the body, when to
/// retry, and how the model responded. None of them describes the operator's
/// account or the upstream's server.
const TO_CLIENT: [&str; 13] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "cache-control",
    "date",
    "retry-after",
    "retry-after-ms",
    "openai-model",
    "openai-processing-ms",
    "openai-version",
    "x-accel-buffering",
    SHOULD_RETRY,
];

/// A field of upstream responses that is forwarded in addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedResponseHeader(HeaderName);

impl ForwardedResponseHeader {
    /// Its name in lower case.
    pub(crate) fn name(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for ForwardedResponseHeader {
    type Err = String;

    /// Never forwarded are credentials, cookies, framing, addresses, fields with an
    /// effect on other requests or on a proxy, and fields of the gateway itself.
    fn from_str(text: &str) -> Result<Self, String> {
        const NEVER: [&str; 19] = [
            "alt-svc",
            "api-key",
            "authorization",
            "clear-site-data",
            "content-location",
            "cookie",
            "link",
            "location",
            "refresh",
            "set-cookie",
            "strict-transport-security",
            "vary",
            "www-authenticate",
            "x-accel-redirect",
            "x-api-key",
            "x-goog-api-key",
            "x-sendfile",
            CACHE,
            REQUEST_ID,
        ];
        let name: HeaderName = text
            .trim()
            .parse()
            .map_err(|_| "expected the name of a header".to_owned())?;
        let is_cors = name.as_str().starts_with("access-control-");
        let is_default = TO_CLIENT.contains(&name.as_str());
        if NEVER.contains(&name.as_str()) || is_cors || is_reserved_header(&name) && !is_default {
            return Err(format!("{name} is never forwarded to clients"));
        }
        Ok(Self(name))
    }
}

/// Which fields of a response head clients see, as one bit for each position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ForwardedFields(u128);

impl ForwardedFields {
    /// The fields that are forwarded by default or because they are in
    /// `forwarded`, unless they contain one of these secrets.
    pub(crate) fn of(
        fields: HeaderFields<'_>,
        forwarded: &[ForwardedResponseHeader],
        secrets: &[Secret],
    ) -> Self {
        const { assert!(MAX_FIELDS <= 128, "one bit for each field") }
        let mut bits = 0;
        for (position, field) in fields.iter().enumerate() {
            let listed = TO_CLIENT.into_iter().any(|name| field.is(name))
                || forwarded.iter().any(|header| field.is(header.name()));
            if listed && !fields.is_hop_by_hop(field.name) && !contains_any(field.value, secrets) {
                bits |= 1 << position;
            }
        }
        Self(bits)
    }

    /// Without the fields that describe the body.
    pub(crate) fn without_body(self, fields: HeaderFields<'_>) -> Self {
        const BEGINNING: &[u8] = b"content-";
        let describes_body = |field: &HeaderField<'_>| {
            let beginning = field.name.get(..BEGINNING.len());
            beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(BEGINNING))
        };
        let positioned = fields.iter().enumerate();
        let of_body = positioned.filter(|(_, field)| describes_body(field));
        let bits = of_body.fold(self.0, |bits, (position, _)| bits & !(1 << position));
        Self(bits)
    }

    /// These fields of the head, in order.
    pub(crate) fn on(self, fields: HeaderFields<'_>) -> impl Iterator<Item = HeaderField<'_>> {
        let positioned = fields.iter().enumerate();
        positioned
            .filter(move |(position, _)| self.0 >> position & 1 == 1)
            .map(|(_, field)| field)
    }
}

fn contains_any(value: &[u8], secrets: &[Secret]) -> bool {
    let mut secrets = secrets.iter().map(|secret| secret.expose().as_bytes());
    secrets.any(|secret| contains_secret(value, secret))
}

#[cfg(test)]
mod tests {
    use fastllm_contract::Secret;
    use fastllm_wire::http1::{Limits, ResponseHead};

    use super::{ForwardedFields, ForwardedResponseHeader};

    /// The names of the fields that clients see.
    fn seen(fields: &str, forwarded: &[&str], secrets: &[&str]) -> Vec<String> {
        let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let mut head = ResponseHead::default();
        let parsed = head.parse(bytes.as_bytes(), false, Limits::default());
        assert_eq!(parsed, Ok(Some(bytes.len())));
        let forwarded: Vec<ForwardedResponseHeader> =
            forwarded.iter().map(|name| name.parse().unwrap()).collect();
        let secrets: Vec<_> = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        let fields = head.on(bytes.as_bytes()).fields();
        let visible = ForwardedFields::of(fields, &forwarded, &secrets).on(fields);
        visible
            .map(|field| String::from_utf8(field.name.to_vec()).unwrap())
            .collect()
    }

    const FIELDS: &str = "connection: X-Hop, cache-control, keep-alive\r\n\
        keep-alive: timeout=5\r\nx-hop: 1\r\nset-cookie: a=b\r\nAlt-Svc: h3\r\n\
        content-length: 12\r\nContent-Type: application/json\r\nx-request-id: theirs\r\n\
        openai-processing-ms: 7\r\nserver: uvicorn\r\nlocation: /x\r\nauthorization: a\r\n\
        x-goog-api-key: a\r\nopenai-organization: org\r\nx-ratelimit-limit-requests: 9\r\n\
        retry-after: 1\r\nretry-after: 2\r\nstrict-transport-security: max-age=1\r\n\
        access-control-allow-origin: *\r\ncache-control: no-store\r\nx-team: a\r\n";

    #[test]
    fn fields_are_forwarded_by_an_allow_list() {
        let usual = [
            "Content-Type",
            "openai-processing-ms",
            "retry-after",
            "retry-after",
        ];
        assert_eq!(seen(FIELDS, &[], &[]), usual);
        let more = seen(
            FIELDS,
            &["X-Team", "x-hop", "x-ratelimit-limit-requests"],
            &[],
        );
        assert_eq!(
            more,
            [
                "Content-Type",
                "openai-processing-ms",
                "x-ratelimit-limit-requests",
                "retry-after",
                "retry-after",
                "x-team"
            ]
        );
    }

    #[test]
    fn a_field_with_a_secret_is_withheld() {
        let fields = "content-type: a; b=sk-canary\r\nretry-after: 1\r\n\
            content-disposition: a; filename=sk%2Dcanary\r\nx-team: \"sk-canary\"\r\n\
            openai-version: sk-can****ary\r\ncache-control: sk-canar\r\n";
        assert_eq!(
            seen(fields, &["x-team"], &["other-secret", "sk-canary"]),
            ["retry-after", "cache-control"]
        );
    }

    #[test]
    fn dangerous_fields_cannot_be_added() {
        for name in [
            "",
            "two words",
            "Authorization",
            "set-cookie",
            "location",
            "content-length",
            "transfer-encoding",
            "x-request-id",
            "x-fastllm-cache",
            "Access-Control-Allow-Origin",
            "strict-transport-security",
            "x-accel-redirect",
        ] {
            assert!(name.parse::<ForwardedResponseHeader>().is_err(), "{name}");
        }
        for name in [" X-Team ", "content-type", "x-ratelimit-limit-tokens"] {
            assert!(name.parse::<ForwardedResponseHeader>().is_ok(), "{name}");
        }
    }
}
