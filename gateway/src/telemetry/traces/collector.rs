use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use fastllm_contract::Secret;
use fastllm_process::error::Chain;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use percent_encoding::percent_decode_str;
use prost::Message;
use reqwest::Body;
use url::Url;

use super::TracingConfig;

/// The timeout of one batch, including the response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum number of response bytes that are read.
const ANSWER_LIMIT: usize = 64 << 10;

/// The path of the gRPC method.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The path of HTTP posts, below the collector's address.
const HTTP_PATH: &str = "/v1/traces";

/// The field with the status of a gRPC call.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The protocol of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OtelProtocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP as HTTP posts of protobuf.
    #[value(name = "http/protobuf")]
    Http,
}

/// Why tracing cannot be configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracerError {
    /// Not `name=value,name=value`, or not a valid header value.
    #[error("--otel-headers is not a list of name=value")]
    Headers,
    /// The HTTP client rejects its settings.
    #[error(transparent)]
    Client(#[from] reqwest::Error),
}

/// The outcome of a batch.
#[derive(Debug)]
pub(super) enum SendOutcome {
    Taken,
    Partly {
        refused: u64,
        reason: String,
    },
    /// The failure is permanent.
    Refused(String),
    /// The failure may be temporary.
    Away(String),
}

/// An OTLP collector. Both protocols use one HTTP client, so that there is one
/// TLS configuration and one HTTP stack.
#[derive(Debug)]
pub(super) struct Collector {
    client: reqwest::Client,
    url: Url,
    protocol: OtelProtocol,
}

impl Collector {
    /// Creates a client of the configured collector.
    pub(super) fn new(
        config: &TracingConfig,
        mut tls: rustls::ClientConfig,
    ) -> Result<Self, TracerError> {
        let protocol = config.protocol;
        let mut headers = given_headers(config.headers.as_ref())?;
        headers.insert(header::CONTENT_TYPE, protocol.content_type());
        let mut client = reqwest::Client::builder();
        if protocol == OtelProtocol::Grpc {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            tls.alpn_protocols = vec![b"h2".to_vec()];
            client = client.http2_prior_knowledge();
        }
        let client = client
            .tls_backend_preconfigured(tls)
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fastllm-gateway/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .no_proxy()
            .build()?;
        Ok(Self {
            client,
            url: protocol.url(&config.endpoint),
            protocol,
        })
    }

    /// Sends an encoded batch once. Errors contain no address and no header.
    pub(super) async fn send(&self, batch: Bytes) -> SendOutcome {
        let body = match self.protocol {
            OtelProtocol::Grpc => framed(&batch),
            OtelProtocol::Http => batch,
        };
        let response = match self.client.post(self.url.clone()).body(body).send().await {
            Ok(response) => response,
            Err(error) => return SendOutcome::Away(without_address(error)),
        };
        let (head, body) = http::Response::<Body>::from(response).into_parts();
        let status = head.status.as_u16();
        match status {
            200..=299 => {}
            429 | 502 | 503 | 504 => return SendOutcome::Away(format!("status {status}")),
            _ => return SendOutcome::Refused(format!("status {status}")),
        }
        let (response, trailers) = match read(body).await {
            Ok(read) => read,
            Err(error) => return SendOutcome::Away(without_address(error)),
        };
        match self.protocol {
            OtelProtocol::Http => taken(&response),
            // A call without a response body has its status in the header
            // fields.
            OtelProtocol::Grpc => match grpc_status(&trailers).or(grpc_status(&head.headers)) {
                Some(0) => taken(response.get(5..).unwrap_or_default()),
                Some(code @ (1 | 4 | 8 | 10 | 11 | 14 | 15)) => {
                    SendOutcome::Away(format!("gRPC status {code}"))
                }
                Some(code) => SendOutcome::Refused(format!("gRPC status {code}")),
                None => SendOutcome::Away("no gRPC status".to_owned()),
            },
        }
    }
}

impl OtelProtocol {
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Grpc => "application/grpc",
            Self::Http => "application/x-protobuf",
        })
    }

    fn url(self, endpoint: &Url) -> Url {
        let mut url = endpoint.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        match self {
            Self::Grpc => url.set_path(GRPC_PATH),
            Self::Http if base.ends_with(HTTP_PATH) => {}
            Self::Http => url.set_path(&format!("{base}{HTTP_PATH}")),
        }
        url
    }
}

/// A gRPC message: the compression flag (none), its length, its bytes.
fn framed(message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Reads the body up to its limit, and the trailers.
async fn read(mut body: Body) -> Result<(Vec<u8>, HeaderMap), reqwest::Error> {
    let (mut bytes, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if bytes.len() + data.len() <= ANSWER_LIMIT => bytes.extend(data),
            Ok(_) => break,
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Ok((bytes, trailers))
}

fn grpc_status(headers: &HeaderMap) -> Option<u32> {
    headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()
}

/// A batch was accepted; the response may report rejected spans.
fn taken(response: &[u8]) -> SendOutcome {
    let partial = ExportTraceServiceResponse::decode(response)
        .ok()
        .and_then(|response| response.partial_success)
        .filter(|partial| partial.rejected_spans > 0);
    match partial {
        None => SendOutcome::Taken,
        Some(partial) => SendOutcome::Partly {
            refused: partial.rejected_spans.unsigned_abs(),
            reason: partial.error_message.chars().take(200).collect(),
        },
    }
}

fn without_address(error: reqwest::Error) -> String {
    Chain(&error.without_url()).to_string()
}

fn given_headers(given: Option<&Secret>) -> Result<HeaderMap, TracerError> {
    let given = given.map(Secret::expose).unwrap_or_default();
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(given) {
        let name = HeaderName::try_from(name).map_err(|_| TracerError::Headers)?;
        let mut value = HeaderValue::try_from(value).map_err(|_| TracerError::Headers)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// The pairs of `name=value,name=value`; anything else is omitted.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let value = percent_decode_str(value).decode_utf8().ok()?;
        (!name.is_empty()).then(|| (name.to_owned(), value.into_owned()))
    })
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::{OtelProtocol, pairs};

    #[test]
    fn urls_end_with_the_path_of_the_protocol() {
        let url = |protocol: OtelProtocol, text: &str| {
            protocol.url(&Url::parse(text).unwrap()).to_string()
        };
        for (given, expected) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/otlp/", "http://c:4318/otlp/v1/traces"),
            ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ] {
            assert_eq!(url(OtelProtocol::Http, given), expected);
        }
        assert_eq!(
            url(OtelProtocol::Grpc, "http://c:4317/"),
            "http://c:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        );
    }

    #[test]
    fn lists_are_parsed_and_malformed_pairs_skipped() {
        let read: Vec<_> = pairs("a=1, b = x%20y ,=z,c,d=e=f,").collect();
        let expected = [("a", "1"), ("b", "x y"), ("d", "e=f")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read, expected);
    }
}
