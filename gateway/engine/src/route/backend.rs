use std::fmt;
use std::sync::Arc;

use fastllm_contract::{Backend as Described, BackendId, Protocol};
use http::header::{self, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Scheme, Uri};

use super::{Live, Slot};

/// One upstream address of a model, checked and ready for requests.
#[derive(Debug)]
pub struct Backend {
    id: BackendId,
    api_base: Arc<str>,
    origin: Origin,
    host: HeaderValue,
    base_path: String,
    upstream_model: Arc<str>,
    auth: Option<(HeaderName, HeaderValue)>,
    weight: u32,
    live: Arc<Live>,
    slot: Slot,
}

/// Where connections go: backends of one origin share them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// TLS or not.
    pub tls: bool,
    /// Name or address, without brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

/// Why a backend of the snapshot is left out. The texts hold no part of the
/// address or the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Not an absolute http or https address.
    #[error("api_base is not an http or https address with a host")]
    Address,
    /// The address carries a user name or password.
    #[error("api_base holds credentials; they belong into the credential field")]
    Userinfo,
    /// The address carries a query.
    #[error("api_base holds a query, which is not forwarded")]
    Query,
    /// Not a header that may carry a credential.
    #[error("auth_header is not a header name that may carry a credential")]
    AuthHeader,
    /// Credential or scheme hold bytes that no header may hold.
    #[error("credential or auth_scheme cannot be written into a header")]
    Credential,
    /// A wire format that this release does not speak.
    #[error("the wire format is not supported by this release")]
    Protocol,
    /// Nothing to call the model upstream.
    #[error("upstream_model is empty")]
    UpstreamModel,
}

impl Backend {
    pub(crate) fn build(described: &Described, live: Arc<Live>) -> Result<Self, Unusable> {
        match described.protocol {
            Protocol::Openai => {}
            Protocol::Anthropic | Protocol::Gemini | Protocol::Unknown => {
                return Err(Unusable::Protocol);
            }
        }
        if described.upstream_model.is_empty() {
            return Err(Unusable::UpstreamModel);
        }
        let address = Address::parse(&described.api_base)?;
        Ok(Self {
            id: described.id,
            api_base: Arc::from(described.api_base.as_str()),
            origin: address.origin,
            host: address.host,
            base_path: address.base_path,
            upstream_model: Arc::from(described.upstream_model.as_str()),
            auth: auth_header(described)?,
            weight: described.weight,
            live,
            slot: Slot::default(),
        })
    }

    /// Identity across snapshots.
    pub fn id(&self) -> BackendId {
        self.id
    }

    /// The configured address, for metrics and reports; holds no credential.
    pub fn api_base(&self) -> &Arc<str> {
        &self.api_base
    }

    /// Where to connect.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The `host` header.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// What the upstream calls the model.
    pub fn upstream_model(&self) -> &str {
        &self.upstream_model
    }

    /// The header that carries the credential, marked sensitive.
    pub fn auth(&self) -> Option<&(HeaderName, HeaderValue)> {
        self.auth.as_ref()
    }

    /// How much it can take beside the others of its pool.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// How busy one request more would make it for its weight: only for
    /// comparing.
    pub(super) fn load(&self) -> u64 {
        self.load_of(self.live.in_flight().saturating_add(1))
    }

    /// The load of so many requests under way.
    pub(super) fn load_of(&self, requests: u64) -> u64 {
        /// Keeps weights up to it apart in the quotient.
        const SCALE: u64 = 1 << 20;
        requests.saturating_mul(SCALE) / u64::from(self.weight.max(1))
    }

    /// Tells it from the others of its pool, in 32 bits.
    pub(super) fn mark(&self) -> u32 {
        let folded = self.id.0 ^ self.id.0 >> 32;
        u32::try_from(folded & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Counters and health.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// What the shell keeps with it.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The request target for `sub_path` (`/chat/completions`), which holds
    /// nothing that a path may not hold.
    pub fn path(&self, sub_path: &str) -> Option<PathAndQuery> {
        PathAndQuery::try_from(format!("{}{sub_path}", self.base_path)).ok()
    }
}

struct Address {
    origin: Origin,
    host: HeaderValue,
    base_path: String,
}

impl Address {
    fn parse(api_base: &str) -> Result<Self, Unusable> {
        let uri: Uri = api_base.parse().map_err(|_| Unusable::Address)?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(Unusable::Address),
        };
        let authority = uri.authority().ok_or(Unusable::Address)?;
        if authority.as_str().contains('@') {
            return Err(Unusable::Userinfo);
        }
        if uri.query().is_some() {
            return Err(Unusable::Query);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(Unusable::Address);
        }
        // "host:" and "host:99999" parse as an authority without a port.
        let port = match (
            authority.port_u16(),
            authority.as_str().ends_with(authority.host()),
        ) {
            (Some(0), _) | (None, false) => return Err(Unusable::Address),
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
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| Unusable::Address)?,
            base_path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

fn auth_header(described: &Described) -> Result<Option<(HeaderName, HeaderValue)>, Unusable> {
    let Some(credential) = &described.api_key else {
        return Ok(None);
    };
    let name = HeaderName::from_bytes(described.auth_header.as_bytes())
        .ok()
        .filter(may_carry_a_credential)
        .ok_or(Unusable::AuthHeader)?;
    let text = match described.auth_scheme.as_deref() {
        Some(scheme) if !scheme.is_empty() => format!("{scheme} {}", credential.expose()),
        _ => credential.expose().to_owned(),
    };
    let mut value = HeaderValue::try_from(text).map_err(|_| Unusable::Credential)?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// Headers that frame the message would let a credential break it.
fn may_carry_a_credential(name: &HeaderName) -> bool {
    const FRAMING: [HeaderName; 9] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    !FRAMING.contains(name)
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests;
