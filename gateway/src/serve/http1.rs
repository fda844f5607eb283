//! A client's HTTP/1.1 connection: sequential requests, on the codec of
//! `fastllm-wire`.

mod connection;
mod response_writer;

use fastllm_wire::http1::{Http1Error, NextAction};
use tokio_util::sync::CancellationToken;

use super::Service;
use crate::http::Head;
use crate::http::RequestContext;
use crate::http::local_response;
use crate::pipeline::ClientResponse;
use crate::runtime::Deadline;
pub(super) use connection::ClientConnection;

/// Serves a connection to its end. When `closing` is cancelled, the running
/// request is the last one.
pub(super) async fn serve(
    mut connection: ClientConnection,
    service: &Service,
    closing: &CancellationToken,
) {
    let mut head = Head::default();
    let mut deadline = Deadline::default();
    loop {
        let response = match connection
            .next_head(&mut head, &mut deadline, closing)
            .await
        {
            Ok(()) => {
                let context = RequestContext {
                    client: &mut connection,
                    deadline: &mut deadline,
                };
                service.handle(&head, context).await
            }
            Err(connection::NoHead::Closed) => None,
            Err(connection::NoHead::Malformed(error)) => Some(malformed(error)),
        };
        let Some(response) = response else {
            // The client has disconnected, or has never sent a request.
            return connection.end(&mut deadline).await;
        };
        if closing.is_cancelled() {
            connection.last_request();
        }
        let next = match response {
            ClientResponse::Local(own) => connection.send_local(&own, &mut deadline).await,
            ClientResponse::Forwarded(mut relay) => {
                connection.send_forwarded(&mut relay, &mut deadline).await
            }
        };
        deadline.end_request();
        match next {
            Ok(NextAction::Head) => {}
            Ok(NextAction::Drain) => match connection.drain(&mut deadline).await {
                Some(NextAction::Head) => {}
                Some(_) => return connection.close(&mut deadline).await,
                None => return,
            },
            Ok(NextAction::Close { linger }) => {
                if linger || connection.has_unread() {
                    return connection.close(&mut deadline).await;
                }
                return connection.end(&mut deadline).await;
            }
            Err(error) => {
                tracing::trace!(%error, "a client connection ended");
                return;
            }
        }
    }
}

fn malformed(error: Http1Error) -> ClientResponse {
    tracing::debug!(code = error.code(), "a request cannot be read");
    ClientResponse::Local(Box::new(local_response::malformed(error)))
}
