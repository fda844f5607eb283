use std::time::Duration;

use bytes::Bytes;
use http::header;
use reqwest::{Method, Response};

use super::client::{ControlClient, ControlError, read_limited};

/// Largest snapshot that is accepted, in bytes.
const LIMIT: usize = 256 << 20;

/// How long control may hold a request open.
const HOLD: Duration = Duration::from_secs(30);

/// The endpoint, with [`HOLD`] spelt out.
const HELD: &str = "snapshot?wait=30s";

/// Time limit of a fetch beside the time that it is held open.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Snapshots by HTTP.
#[derive(Debug)]
pub(crate) struct SnapshotClient {
    client: ControlClient,
}

/// What control said.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The same content as that of the `ETag` that was sent.
    Unchanged {
        /// The tag of its newest version.
        etag: Option<String>,
    },
    /// A snapshot, perhaps without the parts that are held already.
    Changed {
        /// Its `ETag`, to be sent next time.
        etag: Option<String>,
        /// The JSON text.
        body: Bytes,
    },
}

impl SnapshotClient {
    pub(crate) fn new(client: ControlClient) -> Self {
        Self { client }
    }

    /// Asks once. With an `ETag`, control answers when something changed, or
    /// after half a minute.
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
