//! What values of the admin API have to look like.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastllm_contract::{ModelName, PolicyKind};
use fastllm_engine::is_reserved_header;
use http::HeaderName;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use url::{Host, Url};

use super::error::ApiError;
use crate::clock;

const MAX_NAME: usize = 128;
const MAX_TEXT: usize = 2048;
const MAX_SECRET: usize = 16 * 1024;

/// Names of principals, roles and keys.
pub(crate) fn name(field: &str, text: String) -> Result<String, ApiError> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(ApiError::invalid(
            field,
            format!("{field} must have 1 to {MAX_NAME} bytes"),
        ));
    }
    if text.trim() != text || text.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            field,
            format!("{field} may not begin or end with a space or hold control characters"),
        ));
    }
    Ok(text)
}

/// A role's name is a part of paths.
pub(crate) fn role_name(text: String) -> Result<String, ApiError> {
    if text.contains(['/', '%', '?', '#']) {
        return Err(ApiError::invalid(
            "name",
            "a role's name may not hold / % ? #",
        ));
    }
    name("name", text)
}

/// Names of models, as the gateway accepts them.
pub(crate) fn model_name(text: &str) -> Result<ModelName, ApiError> {
    if text.trim() != text {
        return Err(ApiError::invalid(
            "name",
            "a model name may not begin or end with a space",
        ));
    }
    ModelName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

/// Names that models are granted by: a grant on one with `*` would be a grant on
/// all that begin like it.
pub(crate) fn granted_name(text: &str) -> Result<ModelName, ApiError> {
    if text.contains('*') {
        return Err(ApiError::invalid("name", "a model's name may not hold *"));
    }
    model_name(text)
}

/// Descriptions and addresses of people.
pub(crate) fn text(field: &str, value: String) -> Result<String, ApiError> {
    if value.len() > MAX_TEXT {
        return Err(ApiError::invalid(
            field,
            format!("{field} may have {MAX_TEXT} bytes at most"),
        ));
    }
    if value.contains('\0') {
        return Err(ApiError::invalid(
            field,
            format!("{field} may not hold the character 0"),
        ));
    }
    Ok(value)
}

/// What somebody says about a row.
pub(crate) fn description(value: String) -> Result<String, ApiError> {
    text("description", value)
}

/// One of the four balancing policies.
pub(crate) fn policy(value: String) -> Result<String, ApiError> {
    match value.parse::<PolicyKind>() {
        Ok(_) => Ok(value),
        Err(error) => Err(ApiError::invalid("policy", format!("policy: {error}"))),
    }
}

/// A number within bounds, both included.
pub(crate) fn between<T: PartialOrd + Display + Copy>(
    field: &'static str,
    least: T,
    most: T,
) -> impl Fn(T) -> Result<T, ApiError> {
    move |value| {
        if value < least || value > most {
            return Err(ApiError::invalid(
                field,
                format!("{field} must be from {least} to {most}"),
            ));
        }
        Ok(value)
    }
}

/// A number that may be zero.
pub(crate) fn not_negative(field: &'static str) -> impl Fn(i64) -> Result<i64, ApiError> {
    move |value| {
        if value < 0 {
            return Err(ApiError::invalid(
                field,
                format!("{field} must be 0 or more"),
            ));
        }
        Ok(value)
    }
}

/// A number that may not be zero.
pub(crate) fn positive(field: &'static str) -> impl Fn(i64) -> Result<i64, ApiError> {
    move |value| {
        if value < 1 {
            return Err(ApiError::invalid(
                field,
                format!("{field} must be 1 or more"),
            ));
        }
        Ok(value)
    }
}

/// The base address of an upstream, without its trailing slash.
pub(crate) fn api_base(text: &str) -> Result<String, ApiError> {
    let wrong = |reason: &str| ApiError::invalid("api_base", format!("api_base {reason}"));
    if text.len() > MAX_TEXT {
        return Err(wrong("is too long"));
    }
    let url = Url::parse(text).map_err(|_| wrong("must be an absolute http or https URL"))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong("must be an absolute http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("may not hold credentials: use upstream_api_key"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("may not have a query or a fragment"));
    }
    if url.port() == Some(0) {
        return Err(wrong("may not have the port 0"));
    }
    let host = url.host().ok_or_else(|| wrong("needs a host"))?;
    if is_metadata_host(&host) {
        return Err(wrong(
            "may not be a link-local address: machines' metadata is served there",
        ));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A credential that is held goes to the machine that it was given for, and
/// nowhere else: who may change an address may not read it that way. `field` is
/// the credential's.
pub(crate) fn same_machine(field: &str, old: &str, new: &str) -> Result<(), ApiError> {
    let origin = |text: &str| Url::parse(text).ok().map(|url| url.origin());
    if origin(old) == origin(new) {
        return Ok(());
    }
    Err(ApiError::invalid(
        field,
        format!("give {field} again (or null): api_base names another machine"),
    ))
}

/// Cloud machines hand out their credentials at such addresses.
fn is_metadata_host(host: &Host<&str>) -> bool {
    let link_local_v4 = |address: Ipv4Addr| address.is_link_local();
    match host {
        Host::Ipv4(address) => link_local_v4(*address),
        Host::Ipv6(address) => {
            address.to_ipv4().is_some_and(link_local_v4)
                || address.is_unicast_link_local()
                || *address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        }
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name == "metadata.google.internal"
                || name.parse::<IpAddr>().is_ok_and(|address| match address {
                    IpAddr::V4(address) => link_local_v4(address),
                    IpAddr::V6(address) => address.is_unicast_link_local(),
                })
        }
    }
}

/// The header that carries a credential, in lower case.
pub(crate) fn auth_header(text: &str) -> Result<String, ApiError> {
    let header = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| ApiError::invalid("auth_header", "auth_header must be a header's name"))?;
    if is_reserved_header(&header) {
        return Err(ApiError::invalid(
            "auth_header",
            "auth_header may not be a header of the connection or the body",
        ));
    }
    Ok(header.as_str().to_owned())
}

/// The word before a credential.
pub(crate) fn auth_scheme(text: String) -> Result<String, ApiError> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ApiError::invalid(
            "auth_scheme",
            "auth_scheme must be one word, or null to send the credential alone",
        ));
    }
    Ok(text)
}

/// A credential must fit into a header. The error does not repeat it.
pub(crate) fn credential(text: String) -> Result<String, ApiError> {
    let fits = text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if text.trim().is_empty() || text.trim() != text || text.len() > MAX_SECRET || !fits {
        return Err(ApiError::invalid(
            "upstream_api_key",
            "upstream_api_key must be printable ASCII without spaces around it, or null",
        ));
    }
    Ok(text)
}

/// A time, in UTC and within the years that it can be written with.
pub(crate) fn time(field: &str, text: &str) -> Result<OffsetDateTime, ApiError> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .and_then(|at| at.checked_to_offset(UtcOffset::UTC))
        .filter(|at| (1..=9999).contains(&at.year()))
        .ok_or_else(|| {
            ApiError::invalid(
                field,
                format!("{field} must be a time like 2030-01-31T00:00:00Z"),
            )
        })
}

/// When a key expires.
pub(crate) fn in_the_future(at: OffsetDateTime) -> Result<OffsetDateTime, ApiError> {
    if at <= clock::now() {
        return Err(ApiError::invalid(
            "expires_at",
            "expires_at must be in the future",
        ));
    }
    Ok(at)
}

/// What a role can grant: a verb of the closed list, on a resource that fits it.
pub(crate) fn permission(verb: &str, resource: &str) -> Result<(), ApiError> {
    let prefix = match verb {
        "usage:read" | "key:create" | "key:revoke" | "config:write" => {
            return if resource == "*" {
                Ok(())
            } else {
                Err(ApiError::invalid(
                    "resource",
                    format!("{verb} is granted on * only"),
                ))
            };
        }
        "model:invoke" => "model/",
        "mcp:invoke" => "mcp/",
        "agent:invoke" => "agent/",
        _ => {
            return Err(ApiError::invalid(
                "verb",
                "verb must be one of usage:read, key:create, key:revoke, config:write, \
                 model:invoke, mcp:invoke, agent:invoke",
            ));
        }
    };
    let rest = resource.strip_prefix(prefix).unwrap_or_default();
    let stars = rest.trim_end_matches('*').contains('*') || rest.ends_with("**");
    if rest.is_empty() || stars || rest.len() > ModelName::MAX_BYTES {
        return Err(ApiError::invalid(
            "resource",
            format!("resource must be {prefix}NAME, {prefix}PREFIX* or {prefix}*"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_addresses() {
        assert_eq!(
            api_base("http://vllm:8000/v1/").unwrap(),
            "http://vllm:8000/v1"
        );
        assert_eq!(
            api_base("https://api.example.org").unwrap(),
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
            "http://[fe80::1]/",
            "http://metadata.google.internal./v1",
            "",
        ] {
            assert!(api_base(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_and_credentials() {
        assert_eq!(auth_header("X-Api-Key").unwrap(), "x-api-key");
        for wrong in ["", "a b", "Transfer-Encoding", "host", "ä"] {
            assert!(auth_header(wrong).is_err(), "{wrong}");
        }
        assert!(auth_scheme("Bearer".to_owned()).is_ok());
        assert!(auth_scheme("a b".to_owned()).is_err());
        assert!(credential("sk-x".to_owned()).is_ok());
        let error = credential("canary\r\nx: y".to_owned()).unwrap_err();
        assert!(!format!("{error:?}").contains("canary"));
    }

    #[test]
    fn permissions_are_a_closed_list() {
        for (verb, resource) in [
            ("usage:read", "*"),
            ("model:invoke", "model/*"),
            ("model:invoke", "model/Qwen/Qwen3*"),
            ("mcp:invoke", "mcp/files"),
        ] {
            assert!(permission(verb, resource).is_ok(), "{verb} {resource}");
        }
        for (verb, resource) in [
            ("usage:read", "model/*"),
            ("model:invoke", "*"),
            ("model:invoke", "model/"),
            ("model:invoke", "model/a*b"),
            ("model:invoke", "mcp/x"),
            ("model:delete", "*"),
        ] {
            assert!(permission(verb, resource).is_err(), "{verb} {resource}");
        }
    }
}
