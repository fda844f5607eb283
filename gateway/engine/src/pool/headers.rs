//! The headers that a backend gets beside those of every request.

use fastllm_contract::{Backend as Described, Secret};
use http::header::{self, HeaderName, HeaderValue};

use super::InvalidBackend;

/// A header as it is sent.
type Header = (HeaderName, HeaderValue);

/// The header that carries the credential.
pub(super) fn auth(described: &Described) -> Result<Option<Header>, InvalidBackend> {
    let Some(credential) = &described.api_key else {
        return Ok(None);
    };
    let name = HeaderName::from_bytes(described.auth_header.as_bytes())
        .ok()
        .filter(|name| !is_reserved(name))
        .ok_or(InvalidBackend::AuthHeader)?;
    let text = match described.auth_scheme.as_deref() {
        Some(scheme) if !scheme.is_empty() => format!("{scheme} {}", credential.expose()),
        _ => credential.expose().to_owned(),
    };
    let mut value = HeaderValue::try_from(text).map_err(|_| InvalidBackend::Credential)?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// The further headers, all of them marked sensitive.
pub(super) fn extra(described: &Described) -> Result<Vec<Header>, InvalidBackend> {
    let headers = described.request_options.headers.iter();
    headers
        .map(|(name, value)| extra_header(name, value, &described.auth_header))
        .collect()
}

fn extra_header(name: &str, value: &Secret, auth: &str) -> Result<Header, InvalidBackend> {
    let name = HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|name| !is_reserved(name) && !name.as_str().eq_ignore_ascii_case(auth))
        .ok_or(InvalidBackend::ExtraHeader)?;
    let mut value =
        HeaderValue::from_str(value.expose()).map_err(|_| InvalidBackend::ExtraHeader)?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Whether a header belongs to the connection or the body: a configured value
/// would break requests or smuggle them.
pub fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [HeaderName; 15] = [
        header::ACCEPT_ENCODING,
        header::CONNECTION,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPECT,
        header::HOST,
        HeaderName::from_static("keep-alive"),
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        HeaderName::from_static("proxy-connection"),
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    RESERVED.contains(name)
}
