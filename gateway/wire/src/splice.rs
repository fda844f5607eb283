//! The upstream request body: the client's bytes with at most two edits.

use std::borrow::Cow;
use std::ops::Range;

use crate::scan::{BodyEncoding, Members, UsageOption};

/// A segment of the upstream request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A range of the client's body.
    Original(Range<usize>),
    /// Bytes that the gateway inserts.
    Inserted(&'a [u8]),
}

#[derive(Debug, Clone)]
struct Edit {
    at: Range<usize>,
    with: Cow<'static, [u8]>,
}

/// The edits of one request. Without edits the body is forwarded unchanged.
///
/// ```
/// use fastllm_wire::{RequestSchema, Splice, scan};
///
/// let body = br#"{"messages": [], "model": "public"}"#;
/// let members = scan(body, RequestSchema::Completion).unwrap();
/// let splice = Splice::new(&members).model("engine").include_usage();
/// assert_eq!(
///     splice.to_vec(body),
///     br#"{"stream_options":{"include_usage":true},"messages": [], "model": "engine"}"#
/// );
/// ```
#[derive(Debug, Clone)]
pub struct Splice<'m> {
    members: &'m Members,
    model: Option<Edit>,
    usage: Option<Edit>,
}

impl<'m> Splice<'m> {
    /// Without edits. `members` must come from the body that is passed to the
    /// other methods.
    pub fn new(members: &'m Members) -> Self {
        Self {
            members,
            model: None,
            usage: None,
        }
    }

    /// Replaces the model with the upstream's name; no edit if the client used
    /// that name.
    #[must_use]
    pub fn model(mut self, upstream: &str) -> Self {
        self.model = (upstream != self.members.model()).then(|| Edit {
            at: self.members.model_at(),
            with: Cow::Owned(match self.members.encoding() {
                BodyEncoding::Json => serde_json::Value::from(upstream).to_string().into_bytes(),
                BodyEncoding::Form { .. } => upstream.as_bytes().to_vec(),
            }),
        });
        self
    }

    /// Requests a usage event at the end of the stream; no edit if the client
    /// did so itself, or if the endpoint does not have the option. Only for a
    /// streamed request ([`Members::can_request_usage`]): engines reject the
    /// option otherwise.
    #[must_use]
    pub fn include_usage(mut self) -> Self {
        self.usage = match self.members.usage_option() {
            // `model` is required, so the object is never empty.
            UsageOption::Absent { inside } => edit(
                *inside..*inside,
                br#""stream_options":{"include_usage":true},"#,
            ),
            UsageOption::Null(at) => edit(at.clone(), br#"{"include_usage":true}"#),
            UsageOption::Unknown
            | UsageOption::Object {
                include_usage: Some((Some(true), _)),
                ..
            } => None,
            UsageOption::Object {
                include_usage: Some((_, at)),
                ..
            } => edit(at.clone(), b"true"),
            UsageOption::Object {
                inside,
                empty: true,
                ..
            } => edit(*inside..*inside, br#""include_usage":true"#),
            UsageOption::Object {
                inside,
                empty: false,
                ..
            } => edit(*inside..*inside, br#""include_usage":true,"#),
        };
        self
    }

    /// Whether the body is forwarded unchanged.
    pub fn is_identity(&self) -> bool {
        self.model.is_none() && self.usage.is_none()
    }

    /// The segments of the upstream body, in order and none of them empty, for
    /// a client body of `len` bytes.
    pub fn pieces(&self, len: usize) -> impl Iterator<Item = Segment<'_>> {
        let mut edits = [self.model.as_ref(), self.usage.as_ref()];
        edits.sort_by_key(|edit| edit.map(|edit| edit.at.start));
        let mut kept = 0;
        let ends = edits.into_iter().flatten().map(Some).chain([None]);
        ends.flat_map(move |edit| {
            let (until, next) = edit.map_or((len, len), |edit| (edit.at.start, edit.at.end));
            let before = std::mem::replace(&mut kept, next)..until;
            let written = edit.map(|edit| Segment::Inserted(&edit.with));
            [
                (!before.is_empty()).then_some(Segment::Original(before)),
                written,
            ]
            .into_iter()
            .flatten()
        })
    }

    /// Length of the upstream body, for its `content-length`, if the client's
    /// has `len` bytes.
    pub fn len(&self, len: usize) -> usize {
        self.pieces(len)
            .map(|piece| match piece {
                Segment::Original(range) => range.len(),
                Segment::Inserted(bytes) => bytes.len(),
            })
            .sum()
    }

    /// The upstream body in one piece.
    pub fn to_vec(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len(body.len()));
        for piece in self.pieces(body.len()) {
            out.extend_from_slice(match piece {
                Segment::Original(range) => body.get(range).unwrap_or_default(),
                Segment::Inserted(bytes) => bytes,
            });
        }
        out
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "every arm of its one caller is an option"
)]
fn edit(at: Range<usize>, with: &'static [u8]) -> Option<Edit> {
    Some(Edit {
        at,
        with: Cow::Borrowed(with),
    })
}

#[cfg(test)]
mod tests;
