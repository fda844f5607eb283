use crate::http::{ForwardedHeader, ForwardedParameter, ForwardedResponseHeader};
use crate::pipeline::ForwardedNames;

/// The flags that extend what is forwarded between clients and upstreams.
#[derive(Debug, Clone, clap::Args)]
pub struct ForwardingFlags {
    /// Additional client headers to forward to upstreams, besides accept,
    /// user-agent, openai-beta and trace context; may be repeated or separated by
    /// commas
    #[arg(
        long = "forward-header",
        env = "FASTLLM_FORWARD_HEADER",
        value_delimiter = ','
    )]
    pub headers: Vec<ForwardedHeader>,
    /// Additional query parameters of clients to forward to upstreams, besides
    /// `api-version` and `client_version`; requests with others are rejected; may
    /// be repeated or separated by commas
    #[arg(
        long = "forward-query",
        env = "FASTLLM_FORWARD_QUERY",
        value_delimiter = ','
    )]
    pub query: Vec<ForwardedParameter>,
    /// Additional headers of upstream responses to forward to clients, besides those
    /// that describe the body, retry-after and the openai-* headers about the
    /// response; may be repeated or separated by commas
    #[arg(
        long = "forward-response-header",
        env = "FASTLLM_FORWARD_RESPONSE_HEADER",
        value_delimiter = ','
    )]
    pub response_headers: Vec<ForwardedResponseHeader>,
}

impl ForwardingFlags {
    pub(super) fn config(self) -> ForwardedNames {
        ForwardedNames {
            headers: self.headers.into(),
            query: self.query.into(),
            response_headers: self.response_headers.into(),
        }
    }
}
