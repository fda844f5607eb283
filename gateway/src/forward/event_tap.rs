//! The inspection of a stream of events, and the secrets in its errors.

use std::sync::Arc;

use fastllm_contract::Secret;
use fastllm_wire::{FirstEvent, Passthrough, Redactor, StreamInspector};

/// Inspects a stream of events. Once one of them is an error, it and all later ones
/// are forwarded without the secrets of the backend.
#[derive(Debug)]
pub(super) struct EventTap {
    inspector: StreamInspector,
    secrets: Arc<[Secret]>,
    /// Present from the first error on.
    redactor: Option<Redactor>,
}

impl EventTap {
    pub(super) fn new(inspector: StreamInspector, secrets: Arc<[Secret]>) -> Self {
        Self {
            inspector,
            secrets,
            redactor: None,
        }
    }

    pub(super) fn inspector(&self) -> &StreamInspector {
        &self.inspector
    }

    /// Adds the bytes of a body part that may be sent.
    pub(super) fn pass(&mut self, part: &[u8], out: &mut Vec<u8>) {
        let forward = self.inspector.push(part);
        self.forward(&forward, part, out);
    }

    /// Adds the bytes that may be sent at the end.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        let forward = self.inspector.finish();
        self.forward(&forward, &[], out);
        if let Some(redactor) = &mut self.redactor {
            redactor.finish(out);
        }
    }

    /// An event is forwarded as a whole, so that an error is known before any of
    /// its bytes are sent.
    fn forward(&mut self, forward: &Passthrough, part: &[u8], out: &mut Vec<u8>) {
        let is_error = matches!(self.inspector.first(), FirstEvent::Error(_))
            || self.inspector.later_error().is_some();
        if is_error && self.redactor.is_none() {
            self.redactor = Redactor::new(exposed(&self.secrets));
        }
        for slice in forward.slices(part) {
            match &mut self.redactor {
                Some(redactor) => redactor.push(slice, out),
                None => out.extend_from_slice(slice),
            }
        }
    }
}

/// The bytes of secrets.
pub(super) fn exposed(secrets: &[Secret]) -> impl Iterator<Item = &[u8]> {
    secrets.iter().map(|secret| secret.expose().as_bytes())
}
