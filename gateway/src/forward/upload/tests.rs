use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use fastllm_engine::Refusal;
use fastllm_wire::{FormReader, Splice};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::super::AttemptError;
use super::{MAX_REPLAYED, RequestWriter, Upload, UploadAttempt};
use crate::http::{BodyLimits, BodySource, BodyTimeouts, RequestContext, UnreadableBody};
use crate::runtime::Deadline;
use crate::runtime::Socket;
use crate::upstream::ExchangeError;

const BEGINNING: &str = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x\r\n\
content-disposition: form-data; name=\"file\"\r\n\r\n";
const LIMIT: Duration = Duration::from_secs(7);
const TIMEOUTS: BodyTimeouts = BodyTimeouts {
    part: Duration::from_secs(30),
    whole: Duration::from_mins(5),
};

/// A client that has sent these bytes.
#[derive(Default)]
struct FakeClient {
    reads: VecDeque<Vec<u8>>,
    length: Option<u64>,
}

impl BodySource for FakeClient {
    fn content_length(&self) -> Option<u64> {
        self.length
    }

    fn poll_body(
        &mut self,
        _: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<Result<bool, UnreadableBody>> {
        match self.reads.pop_front() {
            Some(read) => {
                body.extend_from_slice(&read);
                Poll::Ready(Ok(read.is_empty()))
            }
            None => Poll::Pending,
        }
    }

    fn poll_disconnected(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// An upload whose beginning was read, with these limits.
async fn begun<'c>(client: &'c mut FakeClient, limits: &Arc<BodyLimits>) -> Upload<'c> {
    client.reads.push_front(BEGINNING.as_bytes().to_vec());
    let mut form = FormReader::new(b"multipart/form-data; boundary=x").unwrap();
    let mut enough = |read: &[u8]| {
        form.push(read).unwrap();
        Ok(form.members().is_some())
    };
    let mut deadline = Deadline::default();
    let mut context = RequestContext {
        client,
        deadline: &mut deadline,
    };
    let beginning = limits.read_until(&mut context, &mut enough).await;
    Upload::new(client, beginning.unwrap(), form, Arc::clone(limits))
}

/// Sends all that the client has sent, and returns both ends.
async fn send(upload: &Mutex<Upload<'_>>) -> (Option<std::io::Error>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
    let (mut upstream, _) = listener.accept().await.unwrap();
    let mut socket = Socket::Plain(stream.unwrap());
    let members = upload.lock().form.as_ref().unwrap().members().cloned();
    let splice = members.as_ref().map(Splice::new).unwrap();
    let mut attempt = UploadAttempt::new(upload, Vec::new(), &splice).unwrap();
    let reading = async {
        let mut came = Vec::new();
        upstream.read_to_end(&mut came).await.unwrap();
        came
    };
    let sending = async {
        let failed = poll_fn(|cx| match attempt.poll_send(&mut socket, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Some(error)),
            Poll::Ready(Ok(())) => Poll::Ready(None),
            Poll::Pending if upload.lock().waiting_for == super::WaitingFor::Client => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        })
        .await;
        drop(socket);
        failed
    };
    tokio::join!(sending, reading)
}

#[tokio::test]
async fn timeouts_are_attributed_to_the_peer_that_stalls() {
    let limits = Arc::new(BodyLimits::new(1 << 20, TIMEOUTS));
    let mut client = FakeClient::default();
    let mut upload = begun(&mut client, &limits).await;
    assert!(matches!(
        upload.failure(None),
        AttemptError::Exchange(ExchangeError::Timeout)
    ));
    let upload = Mutex::new(upload);
    assert!(send(&upload).await.0.is_none());
    let mut upload = upload.into_inner();
    assert_eq!(upload.timeout(LIMIT), Some(TIMEOUTS.part));
    // No progress since the last check.
    assert_eq!(upload.timeout(LIMIT), None);
    let blamed = upload.failure(None);
    assert!(matches!(
        blamed,
        AttemptError::Refused(Refusal::BodyTimeout)
    ));
    // While the client is read from, it is not checked for a disconnect.
    let mut cx = Context::from_waker(Waker::noop());
    assert!(upload.poll_disconnected(&mut cx).is_pending());
}

#[tokio::test]
async fn uploads_without_retries_release_their_memory() {
    let limits = Arc::new(BodyLimits::new(4 << 20, TIMEOUTS));
    let all = limits.left();
    let mut client = FakeClient::default();
    client.reads.push_back(vec![b'y'; MAX_REPLAYED]);
    let upload = Mutex::new(begun(&mut client, &limits).await);
    assert_eq!(all - limits.left(), BEGINNING.len() as u64);
    let (_, first) = send(&upload).await;
    assert!(upload.lock().can_replay());
    assert_eq!(all - limits.left(), (BEGINNING.len() + MAX_REPLAYED) as u64);
    let (_, again) = send(&upload).await;
    // One chunk instead of two.
    let data = |sent: &[u8]| -> usize {
        let runs = sent.split(|byte| *byte != b'y');
        runs.map(<[u8]>::len).sum()
    };
    assert_eq!((data(&first), data(&again)), (MAX_REPLAYED, MAX_REPLAYED));
    drop(upload);

    client.reads.push_back(vec![b'y'; MAX_REPLAYED + 1]);
    let upload = Mutex::new(begun(&mut client, &limits).await);
    send(&upload).await;
    assert!(!upload.lock().can_replay());
    assert_eq!(limits.left(), all);
}

#[tokio::test]
async fn a_body_of_the_wrong_length_is_an_error() {
    let limits = Arc::new(BodyLimits::new(1 << 20, TIMEOUTS));
    let mut client = FakeClient {
        length: Some(BEGINNING.len() as u64 + 10),
        ..FakeClient::default()
    };
    client.reads.extend([b"12345".to_vec(), Vec::new()]);
    let upload = Mutex::new(begun(&mut client, &limits).await);
    assert!(send(&upload).await.0.is_some());
    let blamed = upload.lock().failure(None);
    assert!(matches!(
        blamed,
        AttemptError::Refused(Refusal::InvalidRequest { .. })
    ));
}
