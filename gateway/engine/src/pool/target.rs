use std::sync::Arc;

use fastllm_contract::{Backend as Described, RequestOptions};
use http::header::HeaderValue;
use http::uri::{PathAndQuery, Scheme, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{InvalidBackend, Origin};

/// Everything except characters that are valid unencoded in a path and a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Paths of common endpoints: built once and shared by all requests. Others are
/// built per request.
const USUAL: [&str; 12] = [
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/images/edits",
    "/images/generations",
    "/moderations",
    "/rerank",
    "/responses",
    "/score",
];

const MODEL: &str = "{upstream_model}";
const SUB_PATH: &str = "{sub_path}";

/// What follows the path of `api_base`, around the path of the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate {
    before: String,
    after: String,
}

/// Why a text is no path template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// It would join the path before it.
    #[error("it must begin with / or {{sub_path}}")]
    Start,
    /// Endpoints would be ambiguous.
    #[error("it must hold {{sub_path}} exactly once")]
    SubPath,
    /// An unknown placeholder, or a character that is invalid in a path.
    #[error("it may hold only a path, {{sub_path}} and {{upstream_model}}")]
    Character,
}

impl PathTemplate {
    /// Reads a template such as
    /// `/openai/deployments/{upstream_model}{sub_path}`.
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        let (before, after) = text.split_once(SUB_PATH).ok_or(InvalidTemplate::SubPath)?;
        if after.contains(SUB_PATH) {
            return Err(InvalidTemplate::SubPath);
        }
        if !before.is_empty() && !before.starts_with('/') {
            return Err(InvalidTemplate::Start);
        }
        for part in [before, after] {
            if !is_path(&part.replace(MODEL, "")) {
                return Err(InvalidTemplate::Character);
            }
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }
}

/// Whether a text may stand in a path as it is.
pub(super) fn is_path(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte))
}

/// Where a backend is: how to connect, and what requests ask it for.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) origin: Origin,
    pub(super) host: HeaderValue,
    base_path: String,
    before: String,
    /// With the query.
    after: String,
    query: String,
    /// The names of its parameters, not encoded.
    query_names: Vec<String>,
    usual: Vec<(&'static str, PathAndQuery)>,
}

impl Location {
    pub(super) fn of(described: &Described) -> Result<Self, InvalidBackend> {
        let Address {
            origin,
            host,
            base_path,
        } = Address::parse(&described.api_base)?;
        let RequestOptions {
            headers: _,
            query,
            path_template,
        } = &described.request_options;
        let query_names = query.keys().cloned().collect();
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| encoded_pair(name, value))
            .collect();
        let query = match pairs.as_slice() {
            [] => String::new(),
            pairs => format!("?{}", pairs.join("&")),
        };
        let template = path_template
            .as_deref()
            .map_or_else(|| PathTemplate::parse(SUB_PATH), PathTemplate::parse)
            .map_err(InvalidBackend::PathTemplate)?;
        let model = utf8_percent_encode(&described.upstream_model, ENCODED).to_string();
        let mut location = Self {
            before: format!("{base_path}{}", template.before.replace(MODEL, &model)),
            after: format!("{}{query}", template.after.replace(MODEL, &model)),
            origin,
            host,
            base_path,
            query,
            query_names,
            usual: Vec::new(),
        };
        location.usual = USUAL
            .iter()
            .map(|sub_path| Some((*sub_path, location.build(sub_path)?)))
            .collect::<Option<_>>()
            .ok_or(InvalidBackend::Address)?;
        Ok(location)
    }

    /// Whether targets have a query parameter of this name, in any case.
    pub(super) fn has_parameter(&self, name: &str) -> bool {
        let mut names = self.query_names.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// The target for the path of an endpoint.
    pub(super) fn target(&self, sub_path: &str) -> Option<PathAndQuery> {
        let mut usual = self.usual.iter();
        match usual.find(|(known, _)| *known == sub_path) {
            Some((_, target)) => Some(target.clone()),
            None => self.build(sub_path),
        }
    }

    fn build(&self, sub_path: &str) -> Option<PathAndQuery> {
        let text = [self.before.as_str(), sub_path, &self.after].concat();
        PathAndQuery::try_from(text).ok()
    }

    /// The target for a path after that of `api_base`, or from the root on.
    pub(super) fn beside(&self, path: &str) -> Option<PathAndQuery> {
        let text = match path.strip_prefix('/') {
            Some(from_root) if from_root.starts_with('/') => format!("{from_root}{}", self.query),
            _ => format!("{}{path}{}", self.base_path, self.query),
        };
        PathAndQuery::try_from(text).ok()
    }
}

fn encoded_pair(name: &str, value: &str) -> String {
    let encode = |text| utf8_percent_encode(text, ENCODED);
    format!("{}={}", encode(name), encode(value))
}

struct Address {
    origin: Origin,
    host: HeaderValue,
    base_path: String,
}

impl Address {
    fn parse(api_base: &str) -> Result<Self, InvalidBackend> {
        let uri: Uri = api_base.parse().map_err(|_| InvalidBackend::Address)?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(InvalidBackend::Address),
        };
        let authority = uri.authority().ok_or(InvalidBackend::Address)?;
        if authority.as_str().contains('@') {
            return Err(InvalidBackend::Userinfo);
        }
        if uri.query().is_some() {
            return Err(InvalidBackend::Query);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(InvalidBackend::Address);
        }
        // "host:" and "host:99999" parse as an authority without a port.
        let port = match (
            authority.port_u16(),
            authority.as_str().ends_with(authority.host()),
        ) {
            (Some(0), _) | (None, false) => return Err(InvalidBackend::Address),
            (Some(port), _) => port,
            (None, true) => {
                if tls {
                    443
                } else {
                    80
                }
            }
        };
        Ok(Self {
            origin: Origin {
                tls,
                host: Arc::from(host.to_ascii_lowercase()),
                port,
            },
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidBackend::Address)?,
            base_path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
