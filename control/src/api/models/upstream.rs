//! Checks of an upstream's address and credential.

use std::net::IpAddr;

use fastllm_engine::is_reserved_header;
use fastllm_process::upstream_addresses::UpstreamAddresses;
use http::HeaderName;
use url::{Host, Url};

use crate::api::framework::ApiError;
use crate::api::framework::checks::MAX_TEXT;

const MAX_SECRET: usize = 16 * 1024;

/// Checks the base URL of an upstream; returns it without trailing slash.
#[expect(clippy::needless_pass_by_value, reason = "the signature of all checks")]
pub(crate) fn api_base(field: &'static str, text: String) -> Result<String, ApiError> {
    let wrong = |reason: &str| ApiError::invalid(field, format!("{field} {reason}"));
    if text.len() > MAX_TEXT {
        return Err(wrong("is too long"));
    }
    let url = Url::parse(&text).map_err(|_| wrong("must be an absolute http or https URL"))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong("must be an absolute http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("must not contain credentials; use upstream_api_key"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("must not have a query or a fragment"));
    }
    if url.port() == Some(0) {
        return Err(wrong("must not have port 0"));
    }
    let host = url.host().ok_or_else(|| wrong("needs a host"))?;
    if is_refused(&host) {
        return Err(wrong(
            "must not be a link-local, unspecified or multicast address or one of cloud metadata",
        ));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A stored credential is only sent to the origin for which it was provided, so that
/// a caller who can change the URL cannot read it that way. `field` is the credential's.
pub(crate) fn same_origin(field: &str, old: &str, new: &str) -> Result<(), ApiError> {
    let origin = |text: &str| Url::parse(text).ok().map(|url| url.origin());
    if origin(old) == origin(new) {
        return Ok(());
    }
    Err(ApiError::invalid(
        field,
        format!("provide {field} again, or null: api_base has another origin"),
    ))
}

/// Whether the host is an address that gateways do not connect to, as written. What a
/// name leads to is checked by the gateways, when they connect.
fn is_refused(host: &Host<&str>) -> bool {
    let all = UpstreamAddresses::default();
    match host {
        Host::Ipv4(address) => !all.permits(IpAddr::V4(*address)),
        Host::Ipv6(address) => !all.permits(IpAddr::V6(*address)),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            ["metadata", "metadata.google.internal"].contains(&name)
                || name.parse().is_ok_and(|address| !all.permits(address))
        }
    }
}

/// Checks the name of the header that carries the credential; returns it in lower case.
pub(crate) fn auth_header(field: &'static str, text: String) -> Result<String, ApiError> {
    let header = HeaderName::try_from(text)
        .map_err(|_| ApiError::invalid(field, "auth_header must be the name of a header"))?;
    if is_reserved_header(&header) {
        return Err(ApiError::invalid(
            field,
            "auth_header must not be a header of the connection or the body",
        ));
    }
    Ok(header.as_str().to_owned())
}

/// Checks the scheme before a credential.
pub(crate) fn auth_scheme(field: &'static str, text: String) -> Result<String, ApiError> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ApiError::invalid(
            field,
            "auth_scheme must be one word, or null to send the credential alone",
        ));
    }
    Ok(text)
}

/// Checks that a credential fits into a header. The error does not contain it.
pub(crate) fn credential(text: String) -> Result<String, ApiError> {
    let fits = text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if text.trim().is_empty() || text.trim() != text || text.len() > MAX_SECRET || !fits {
        return Err(ApiError::invalid(
            "upstream_api_key",
            "upstream_api_key must be printable ASCII without surrounding spaces, or null",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_addresses() {
        assert_eq!(
            api_base("api_base", "http://vllm:8000/v1/".to_owned()).unwrap(),
            "http://vllm:8000/v1"
        );
        assert_eq!(
            api_base("api_base", "https://api.example.org".to_owned()).unwrap(),
            "https://api.example.org"
        );
        for wrong in [
            "vllm:8000/v1",
            "/v1",
            "ftp://h/v1",
            "http://user:pw@h/v1",
            "http://h/v1?x=1",
            "http://h/v1#f",
            "http://h:0/v1",
            "http://169.254.169.254/latest",
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://100.100.100.200/",
            "http://0.0.0.0/",
            "http://[::]/",
            "http://metadata/",
            "http://0/",
            "http://[fe80::1]/",
            "http://metadata.google.internal./v1",
            "",
        ] {
            assert!(api_base("api_base", wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_and_credentials() {
        assert_eq!(
            auth_header("auth_header", "X-Api-Key".to_owned()).unwrap(),
            "x-api-key"
        );
        for wrong in ["", "a b", "Transfer-Encoding", "host", "ä"] {
            assert!(
                auth_header("auth_header", wrong.to_owned()).is_err(),
                "{wrong}"
            );
        }
        assert!(auth_scheme("auth_scheme", "Bearer".to_owned()).is_ok());
        assert!(auth_scheme("auth_scheme", "a b".to_owned()).is_err());
        assert!(credential("sk-x".to_owned()).is_ok());
        let error = credential("canary\r\nx: y".to_owned()).unwrap_err();
        assert!(!format!("{error:?}").contains("canary"));
    }
}
