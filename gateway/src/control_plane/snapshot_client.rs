use std::time::Duration;

use bytes::Bytes;
use http::header;
use reqwest::{Method, Response};

use super::client::{ControlClient, ControlError, read_limited};

/// Maximum size of a snapshot in bytes.
const LIMIT: usize = 256 << 20;

/// The longest time for which control may hold a request open.
const HOLD: Duration = Duration::from_secs(30);

/// The endpoint, with the value of [`HOLD`].
const HELD: &str = "snapshot?wait=30s";

/// The timeout of a fetch, in addition to the time for which it is held open.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches snapshots over HTTP.
#[derive(Debug)]
pub(crate) struct SnapshotClient {
    client: ControlClient,
}

/// The response of control.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The content matches the `ETag` of the request.
    Unchanged {
        /// The tag of the newest version.
        etag: Option<String>,
    },
    /// A snapshot, possibly without the parts that the gateway already has.
    Changed {
        /// Its `ETag`, for the next request.
        etag: Option<String>,
        /// The JSON text.
        body: Bytes,
    },
}

impl SnapshotClient {
    pub(crate) fn new(client: ControlClient) -> Self {
        Self { client }
    }

    /// Sends one request. With an `ETag`, control responds when the content
    /// changes, or after half a minute.
    pub(crate) async fn fetch(&self, etag: Option<&str>) -> Result<Fetched, ControlError> {
        let request = match etag {
            Some(etag) => self
                .client
                .request(Method::GET, HELD, HOLD + FETCH_TIMEOUT)
                .header(header::IF_NONE_MATCH, etag),
            None => self.client.request(Method::GET, "snapshot", FETCH_TIMEOUT),
        };
        let response = request.send().await?;
        match response.status().as_u16() {
            304 => Ok(Fetched::Unchanged {
                etag: etag_of(&response),
            }),
            200 => {
                let etag = etag_of(&response);
                let body = read_limited(response, LIMIT).await?;
                Ok(Fetched::Changed { etag, body })
            }
            status => Err(ControlError::Status(status)),
        }
    }
}

fn etag_of(response: &Response) -> Option<String> {
    let etag = response.headers().get(header::ETAG)?;
    etag.to_str().ok().map(str::to_owned)
}
