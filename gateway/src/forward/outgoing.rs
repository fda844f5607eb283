//! Requests to upstreams.

use std::sync::Arc;

use bytes::Bytes;
use fastllm_engine::{Backend, Boundary, PickContext};
use fastllm_wire::http1::{Framing, HeadWriter, Persistence};
use fastllm_wire::{
    BodyInspector, Gunzip, Measure, Members, Quantities, Redactor, Segment, Splice, StreamInspector,
};
use parking_lot::Mutex;

use super::AttemptError;
use super::event_tap::{EventTap, exposed};
use super::response_stream::{ResponseStream, UsageTap};
use super::upload::{Upload, UploadAttempt};
use crate::cache::CacheableRequest;
use crate::http::{
    ClientFields, ClientQuery, Coding, ForwardedFields, ForwardedResponseHeader, ProxiedEndpoint,
    UpstreamFields, is_event_stream,
};
use crate::request_log::RequestLog;
use crate::runtime::{buffers, clock};
use crate::upstream::{BufferedRequest, Lease};

/// Up to this many bytes, copying a body behind its head costs less than
/// sending it in several pieces.
const COPIED: usize = 16 << 10;

/// A request, independent of the backend that it is sent to.
#[derive(Debug)]
pub(crate) struct Outgoing<'a, 'c> {
    pub(crate) endpoint: ProxiedEndpoint,
    pub(crate) client: ClientFields<'a>,
    pub(crate) query: ClientQuery<'a>,
    pub(crate) payload: Payload<'a, 'c>,
    pub(crate) members: &'a Members,
    /// The ends of the prompt's messages, where a policy reads them.
    pub(crate) prompt: &'a [Boundary],
    /// The stored objects that it refers to, by the hashes of their IDs.
    pub(crate) stored: &'a [u64],
    /// Request usage although the client did not, and remove it from the response.
    /// It is not removed from a compressed response.
    pub(crate) ask_usage: bool,
    /// Fields of responses that clients see in addition to the usual ones.
    pub(crate) response_headers: &'a [ForwardedResponseHeader],
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Payload<'a, 'c> {
    /// A complete body.
    Whole(Bytes),
    /// A body that is still arriving.
    Upload(&'a Mutex<Upload<'c>>),
}

impl<'a, 'c> Outgoing<'a, 'c> {
    pub(super) fn pick(&self) -> PickContext<'_> {
        PickContext {
            at: clock::timestamp(),
            endpoint: self.endpoint.index(),
            stream: self.members.is_stream(),
            prompt: self.prompt,
            stored: self.stored,
        }
    }

    /// The cache key of the response; `None` for an upload.
    pub(crate) fn cacheable(&self) -> Option<CacheableRequest<'_>> {
        match &self.payload {
            Payload::Whole(body) => Some(CacheableRequest {
                endpoint: self.endpoint,
                client: self.client,
                query: self.query,
                members: self.members,
                body,
            }),
            Payload::Upload(_) => None,
        }
    }

    /// The changes to the client's body for this backend.
    fn splice(&self, backend: &Backend) -> Splice<'_> {
        let splice = Splice::new(self.members).model(backend.upstream_model());
        if self.ask_usage {
            splice.include_usage()
        } else {
            splice
        }
    }

    /// The head of the request to this backend.
    fn head(
        &self,
        backend: &Backend,
        log: &RequestLog,
        framing: Framing,
    ) -> Result<Vec<u8>, AttemptError> {
        let path = backend
            .path(self.endpoint.sub_path())
            .ok_or_else(|| AttemptError::Request("the path is not valid".to_owned()))?;
        let sets = |name: &str| backend.has_query_parameter(name);
        let merged = self.query.target(&path, sets);
        let target = merged.as_deref().unwrap_or(path.as_str());
        let mut first = buffers::take();
        let mut head = HeadWriter::request(&mut first, b"POST", target.as_bytes());
        head.field(b"host", backend.host().as_bytes());
        if let Some((name, value)) = backend.auth() {
            head.field(name.as_str().as_bytes(), value.as_bytes());
        }
        // With a content type other than the one that was authorised, an upstream
        // might read another model from the same bytes.
        let fields = UpstreamFields {
            client: self.client,
            backend: backend.extra_headers(),
            content_type: self.members.form_type().unwrap_or("application/json"),
            traceparent: log.trace().upstream_traceparent(),
            request_id: log.request_id(),
        };
        fields.write(&mut head);
        head.end(framing, Persistence::Keep)
            .map_err(|error| AttemptError::Request(error.to_string()))?;
        Ok(first)
    }

    /// The request to this backend.
    pub(super) fn request(
        &self,
        backend: &Backend,
        log: &RequestLog,
        body: &Bytes,
    ) -> Result<BufferedRequest, AttemptError> {
        let splice = self.splice(backend);
        let length = splice.len(body.len());
        let mut first = self.head(backend, log, Framing::Length(length as u64))?;
        if length > COPIED {
            return Ok(BufferedRequest::new(first, shared(&splice, body)));
        }
        for piece in splice.pieces(body.len()) {
            first.extend_from_slice(match piece {
                Segment::Original(range) => body.get(range).unwrap_or_default(),
                Segment::Inserted(bytes) => bytes,
            });
        }
        Ok(BufferedRequest::new(first, Vec::new()))
    }

    /// The request to this backend, with the part of the body that has arrived.
    pub(super) fn uploading(
        &self,
        backend: &Backend,
        log: &RequestLog,
        upload: &'a Mutex<Upload<'c>>,
    ) -> Result<UploadAttempt<'a, 'c>, AttemptError> {
        let splice = self.splice(backend);
        let framing = upload.lock().framing(&splice);
        let head = self.head(backend, log, framing)?;
        UploadAttempt::new(upload, head, &splice)
            .ok_or_else(|| AttemptError::Request("its body is no longer available".to_owned()))
    }

    /// Whether another attempt is possible.
    pub(super) fn can_replay(&self) -> bool {
        match &self.payload {
            Payload::Whole(_) => true,
            Payload::Upload(upload) => upload.lock().can_replay(),
        }
    }

    /// The estimated tokens of the prompt, as far as it has arrived.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        let so_far = match &self.payload {
            Payload::Whole(_) => None,
            Payload::Upload(upload) => upload.lock().prompt_tokens(),
        };
        so_far.unwrap_or_else(|| self.members.prompt_tokens())
    }

    /// The usage of the request itself, as far as it has been sent.
    pub(crate) fn sent(&self) -> Quantities {
        let audio_bytes = || match &self.payload {
            Payload::Whole(_) => self.members.file_bytes(),
            Payload::Upload(upload) => upload.lock().file_bytes(),
        };
        let is_audio = self.endpoint.measure() == Measure::AudioInput;
        Quantities {
            input_characters: self.members.input_characters(),
            audio_bytes: is_audio.then(audio_bytes).flatten(),
            ..Quantities::default()
        }
    }

    /// How a response of this backend is inspected.
    pub(super) fn usage_tap(&self, lease: &Lease, backend: &Backend) -> UsageTap {
        let fields = lease.connection.response_head().fields();
        let coding = Coding::of(fields);
        let secrets = backend.secrets();
        if !(200..300).contains(&lease.connection.status()) {
            return match (Redactor::new(exposed(secrets)), coding) {
                (None, _) => UsageTap::Blind,
                (Some(redactor), Coding::Identity) => UsageTap::Error(Box::new(redactor)),
                (Some(_), _) => UsageTap::Unreadable,
            };
        }
        let measure = self.endpoint.measure();
        let ending = self.endpoint.stream_ending(self.members.choices());
        match (coding, is_event_stream(fields)) {
            (Coding::Identity, true) => {
                let inspector = StreamInspector::new(self.ask_usage, ending);
                UsageTap::Events(Box::new(EventTap::new(inspector, Arc::clone(secrets))))
            }
            (Coding::Identity, false) => UsageTap::Whole(BodyInspector::new(measure)),
            (Coding::Gzip, true) => UsageTap::Gzip(Box::new(Gunzip::events(ending))),
            (Coding::Gzip, false) => UsageTap::Gzip(Box::new(Gunzip::whole(measure))),
            (Coding::Other, _) => UsageTap::Blind,
        }
    }

    /// The fields of a response of this backend that the client sees.
    pub(super) fn forwarded_fields(
        &self,
        stream: &ResponseStream,
        backend: &Backend,
    ) -> ForwardedFields {
        let Some(head) = stream.head() else {
            return ForwardedFields::default();
        };
        let fields = head.fields();
        let forwarded = ForwardedFields::of(fields, self.response_headers, backend.secrets());
        if stream.is_replaced() {
            return forwarded.without_body(fields);
        }
        forwarded
    }
}

/// A body in pieces that share the client's bytes.
pub(super) fn shared(splice: &Splice<'_>, body: &Bytes) -> Vec<Bytes> {
    splice
        .pieces(body.len())
        .map(|piece| match piece {
            Segment::Original(range) => body.slice(range),
            Segment::Inserted(bytes) => Bytes::copy_from_slice(bytes),
        })
        .collect()
}
