//! The members of a request body that the gateway uses.
//!
//! The body is scanned, not parsed: names are compared after decoding, and
//! anything ambiguous between decoders (a duplicate member, or one in another
//! case) is rejected, so that the authorized model is the served model.

mod files;
mod prompt;
mod values;

use std::ops::Range;

use crate::error::ScanError;
use crate::json::{self, Object};
use crate::stored::stored_id;

use prompt::PromptMeter;
pub(crate) use values::choices_in;
use values::{ceiling, characters, choices, flag, model_name};

/// Maximum length of a decoded model name, in bytes.
pub const MODEL_LIMIT: usize = 256;

/// A byte may be written as `\u00XX`, and the token has two quotes.
const MODEL_TOKEN_LIMIT: usize = MODEL_LIMIT * 6 + 2;

pub(crate) const MODEL: &str = "model";
pub(crate) const STREAM: &str = "stream";
pub(crate) const N: &str = "n";

/// The member in which clients describe the purpose of a request.
pub const METADATA: &str = "metadata";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestMember {
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    Metadata,
    Input,
    N,
    BestOf,
    Prompt,
    PreviousResponseId,
    Conversation,
}

impl RequestMember {
    const ALL: [Self; 13] = [
        Self::Model,
        Self::Stream,
        Self::StreamOptions,
        Self::MaxTokens,
        Self::MaxCompletionTokens,
        Self::MaxOutputTokens,
        Self::Metadata,
        Self::Input,
        Self::N,
        Self::BestOf,
        Self::Prompt,
        Self::PreviousResponseId,
        Self::Conversation,
    ];

    /// The candidates whose names may begin with this byte, in either case: the
    /// first byte rules out all candidates for most members.
    fn beginning(first: u8) -> &'static [Self] {
        match first.to_ascii_lowercase() {
            b'm' => &[
                Self::Model,
                Self::MaxTokens,
                Self::MaxCompletionTokens,
                Self::MaxOutputTokens,
                Self::Metadata,
            ],
            // U+017F folds to `s`.
            b's' | 0xC5 => &[Self::Stream, Self::StreamOptions],
            b'i' => &[Self::Input],
            b'n' => &[Self::N],
            b'b' => &[Self::BestOf],
            b'p' => &[Self::Prompt, Self::PreviousResponseId],
            b'c' => &[Self::Conversation],
            _ => &[],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Model => MODEL,
            Self::Stream => STREAM,
            Self::StreamOptions => "stream_options",
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::Metadata => METADATA,
            Self::Input => "input",
            Self::N => N,
            Self::BestOf => "best_of",
            Self::Prompt => "prompt",
            Self::PreviousResponseId => "previous_response_id",
            Self::Conversation => "conversation",
        }
    }
}

const INCLUDE_USAGE: &str = "include_usage";
const INCLUDE_USAGE_PATH: &str = "stream_options.include_usage";

/// The members of a JSON body, besides `model` and `metadata`, that the gateway
/// uses. All others are left to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSchema {
    /// `stream`, `stream_options`, a token limit, and `n`: chat completions.
    Chat,
    /// The same, `best_of` and the number of prompts: completions.
    Completion,
    /// `stream`, a token limit, `previous_response_id` and `conversation`, with
    /// usage reported by default: responses.
    Response,
    /// `stream` and `n`: images.
    Media,
    /// `stream`, and the `input` to synthesize: speech.
    Speech,
    /// Nothing: embeddings, rerank, score, moderations.
    ModelOnly,
}

impl RequestSchema {
    fn has(self, acted: RequestMember) -> bool {
        match acted {
            RequestMember::Model | RequestMember::Metadata => true,
            RequestMember::Input => self == Self::Speech,
            RequestMember::Stream => self != Self::ModelOnly,
            RequestMember::N => matches!(self, Self::Chat | Self::Completion | Self::Media),
            RequestMember::StreamOptions => matches!(self, Self::Chat | Self::Completion),
            RequestMember::BestOf | RequestMember::Prompt => self == Self::Completion,
            RequestMember::PreviousResponseId | RequestMember::Conversation => {
                self == Self::Response
            }
            RequestMember::MaxTokens
            | RequestMember::MaxCompletionTokens
            | RequestMember::MaxOutputTokens => {
                matches!(self, Self::Chat | Self::Completion | Self::Response)
            }
        }
    }
}

/// Where the body requests a usage event, or where such a request can be
/// inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UsageOption {
    /// The endpoint has no such option.
    Unknown,
    Absent {
        /// Offset of the byte after the body's opening brace.
        inside: usize,
    },
    /// `stream_options` is `null`, at this range.
    Null(Range<usize>),
    /// `stream_options` is an object.
    Object {
        /// Offset of the byte after its opening brace.
        inside: usize,
        empty: bool,
        /// The value of `include_usage` (`null` is `None`) and its range.
        include_usage: Option<(Option<bool>, Range<usize>)>,
    },
}

/// The format of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    Json,
    Form { content_type: String },
}

/// The result of scanning a request body: by [`scan`] for JSON, or by
/// [`crate::FormReader`] for a form. The offsets refer to the scanned body;
/// [`crate::Splice`] requires the same body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    model: String,
    model_at: Range<usize>,
    encoding: BodyEncoding,
    stream: bool,
    usage_option: UsageOption,
    ceiling: Option<u64>,
    prompt_tokens: u64,
    rare: Option<Box<RareMembers>>,
}

/// Rarely set values: boxed, because several copies of `Members` are held while
/// a request is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RareMembers {
    metadata: Option<Range<usize>>,
    input_characters: Option<u64>,
    file_bytes: Option<u64>,
    /// Set if it is not one.
    choices: Option<u64>,
    stored_ids: Vec<String>,
}

impl RareMembers {
    fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl Members {
    /// The members of a form.
    pub(crate) fn from_form(model: String, model_at: Range<usize>, content_type: String) -> Self {
        Self {
            model,
            model_at,
            encoding: BodyEncoding::Form { content_type },
            stream: false,
            usage_option: UsageOption::Unknown,
            ceiling: None,
            prompt_tokens: 0,
            rare: None,
        }
    }

    pub(crate) fn set_file_bytes(&mut self, bytes: Option<u64>) {
        self.change_rare(|rare| rare.file_bytes = bytes);
    }

    pub(crate) fn set_prompt_tokens(&mut self, tokens: u64) {
        self.prompt_tokens = tokens;
    }

    pub(crate) fn set_choices(&mut self, choices: u64) {
        self.change_rare(|rare| rare.choices = (choices != 1).then_some(choices));
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut RareMembers)) {
        let mut rare = self.rare.take().map(|rare| *rare).unwrap_or_default();
        change(&mut rare);
        self.rare = rare.boxed();
    }

    pub(crate) fn set_stream(&mut self, stream: bool) {
        self.stream = stream;
    }

    /// The model that the client requested: 1 to [`MODEL_LIMIT`] bytes.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The range of the value of `model` in the body, including the quotes in
    /// JSON.
    pub fn model_at(&self) -> Range<usize> {
        self.model_at.clone()
    }

    /// Whether the client requests a stream. Absent and `null` mean no.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Whether the client itself requested a usage event, which is then
    /// forwarded to it.
    pub fn wants_usage(&self) -> bool {
        matches!(
            self.usage_option,
            UsageOption::Object {
                include_usage: Some((Some(true), _)),
                ..
            }
        )
    }

    /// Whether the gateway may request a usage event: for a stream, at an
    /// endpoint that has the option, if the client did not.
    pub fn can_request_usage(&self) -> bool {
        self.stream && self.usage_option != UsageOption::Unknown && !self.wants_usage()
    }

    /// The maximum number of tokens of the response: the largest of
    /// `max_tokens`, `max_completion_tokens` and `max_output_tokens`, because
    /// engines differ in which one takes precedence.
    pub fn ceiling(&self) -> Option<u64> {
        self.ceiling
    }

    /// The estimated number of tokens of the prompt: one per 3.5 bytes of the
    /// whole body, apart from the data of files and the numbers of token lists;
    /// one for each of these numbers; and [`TOKENS_PER_FILE`] for each image,
    /// recording, video or document, embedded or linked. For a form, the texts
    /// and images among the parts that are complete so far.
    ///
    /// [`TOKENS_PER_FILE`]: crate::estimate::TOKENS_PER_FILE
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The number of requested choices, at least one: the larger of `n` and
    /// `best_of`, for each text in `prompt`. For a form, based on what was
    /// received so far.
    pub fn choices(&self) -> u64 {
        let rare = self.rare.as_ref();
        rare.and_then(|rare| rare.choices).unwrap_or(1)
    }

    /// The IDs of the previous response and the conversation that the request
    /// continues. Invalid ones are left to the upstream.
    pub fn stored_ids(&self) -> &[String] {
        self.rare.as_ref().map_or(&[], |rare| &rare.stored_ids)
    }

    /// The range of the value of `metadata` in a JSON body; `None` if it is
    /// absent or `null`. The value is not validated.
    pub fn metadata_at(&self) -> Option<Range<usize>> {
        self.rare.as_ref()?.metadata.clone()
    }

    /// Number of characters (Unicode scalar values) in the `input` of speech,
    /// if it is a string.
    pub fn input_characters(&self) -> Option<u64> {
        self.rare.as_ref()?.input_characters
    }

    /// Total size of the `file` parts of a form, in bytes; `None` if there is
    /// none, or the form is incomplete.
    pub fn file_bytes(&self) -> Option<u64> {
        self.rare.as_ref()?.file_bytes
    }

    /// The `content-type` of a form with which an upstream reads the same
    /// values: parameters that could change them are left out. `None` for JSON.
    pub fn form_type(&self) -> Option<&str> {
        match &self.encoding {
            BodyEncoding::Json => None,
            BodyEncoding::Form { content_type } => Some(content_type),
        }
    }

    pub(crate) fn encoding(&self) -> &BodyEncoding {
        &self.encoding
    }

    pub(crate) fn usage_option(&self) -> &UsageOption {
        &self.usage_option
    }
}

/// Finds the members that the gateway uses in a JSON body. The rest of the body
/// is left to the upstream.
///
/// `stream` and the token limits may be `null`, which means absent; a negative
/// limit means none (some engines accept -1 for that). An invalid number of
/// choices counts as one.
///
/// # Errors
/// [`ScanError`], always a response with status 400.
pub fn scan(body: &[u8], fields: RequestSchema) -> Result<Members, ScanError> {
    let mut object = Object::open(body)?;
    let mut usage_option = if fields.has(RequestMember::StreamOptions) {
        UsageOption::Absent {
            inside: object.inside(),
        }
    } else {
        UsageOption::Unknown
    };
    let mut seen = [false; RequestMember::ALL.len()];
    let mut model = None;
    let mut stream = None;
    let mut largest = None;
    let mut each = 1;
    let mut rare = RareMembers::default();
    let mut prompt = PromptMeter::default();
    while let Some(member) =
        object.advance(|name, text, from| prompt.value_end(fields, name, text, from))
    {
        let member = member?;
        let Some(acted) = acted(&member.name, fields)? else {
            continue;
        };
        let name = acted.name();
        if std::mem::replace(&mut seen[acted as usize], true) {
            return Err(ScanError::Duplicate { member: name });
        }
        match acted {
            RequestMember::Model => model = Some((model_name(member.value)?, member.at)),
            RequestMember::Stream => stream = flag(name, member.value)?,
            RequestMember::StreamOptions => usage_option = options(member.value, member.at)?,
            RequestMember::MaxTokens
            | RequestMember::MaxCompletionTokens
            | RequestMember::MaxOutputTokens => {
                largest = largest.max(ceiling(name, member.value)?);
            }
            RequestMember::Metadata => {
                rare.metadata = (member.value != b"null").then_some(member.at);
            }
            RequestMember::Input => rare.input_characters = characters(member.value),
            RequestMember::N | RequestMember::BestOf => each = choices(member.value).max(each),
            // Its elements were counted while it was scanned.
            RequestMember::Prompt => {}
            RequestMember::PreviousResponseId | RequestMember::Conversation => {
                rare.stored_ids.extend(stored_id(member.value));
            }
        }
    }
    let count = each.saturating_mul(prompt.prompts());
    rare.choices = (count != 1).then_some(count);
    let (model, model_at) = model.ok_or(ScanError::Missing { member: MODEL })?;
    Ok(Members {
        model,
        model_at,
        encoding: BodyEncoding::Json,
        stream: stream == Some(true),
        usage_option,
        ceiling: largest,
        prompt_tokens: prompt.size(body.len()).tokens(),
        rare: rare.boxed(),
    })
}

fn acted(name: &[u8], fields: RequestSchema) -> Result<Option<RequestMember>, ScanError> {
    let first = name.first().copied().unwrap_or_default();
    let known = RequestMember::beginning(first).iter().copied();
    for acted in known.filter(|acted| fields.has(*acted)) {
        let member = acted.name();
        if name == member.as_bytes() {
            return Ok(Some(acted));
        }
        if folds_to(name, member) {
            return Err(ScanError::CaseVariant { member });
        }
    }
    Ok(None)
}

/// Whether a decoder that ignores case, such as Go's `encoding/json`, would
/// treat `name` as `member` (lower case ASCII). By Unicode's simple folding two
/// non-ASCII characters fold into ASCII: U+017F to `s`, U+212A to `k`.
pub(crate) fn folds_to(name: &[u8], member: &str) -> bool {
    let mut rest = name;
    for want in member.bytes() {
        let after = match (want, rest) {
            (b's', [0xC5, 0xBF, after @ ..]) | (b'k', [0xE2, 0x84, 0xAA, after @ ..]) => after,
            (_, [byte, after @ ..]) if byte.to_ascii_lowercase() == want => after,
            _ => return false,
        };
        rest = after;
    }
    rest.is_empty()
}

fn options(value: &[u8], at: Range<usize>) -> Result<UsageOption, ScanError> {
    if value == b"null" {
        return Ok(UsageOption::Null(at));
    }
    let member = RequestMember::StreamOptions.name();
    let nested = |error| match error {
        ScanError::NotAnObject => ScanError::WrongType {
            member,
            expected: "an object",
        },
        ScanError::Malformed { at: inner } | ScanError::Trailing { at: inner } => {
            ScanError::Malformed {
                at: at.start + inner,
            }
        }
        other => other,
    };
    let mut object = Object::open(value).map_err(nested)?;
    let inside = at.start + object.inside();
    let mut include_usage = None;
    for found in &mut object {
        let found = found.map_err(nested)?;
        if *found.name == *INCLUDE_USAGE.as_bytes() {
            let range = at.start + found.at.start..at.start + found.at.end;
            let flag = flag(INCLUDE_USAGE_PATH, found.value)?;
            if include_usage.replace((flag, range)).is_some() {
                return Err(ScanError::Duplicate {
                    member: INCLUDE_USAGE_PATH,
                });
            }
        } else if folds_to(&found.name, INCLUDE_USAGE) {
            return Err(ScanError::CaseVariant {
                member: INCLUDE_USAGE_PATH,
            });
        }
    }
    Ok(UsageOption::Object {
        inside,
        empty: json::is_empty(value),
        include_usage,
    })
}

#[cfg(test)]
mod tests;
