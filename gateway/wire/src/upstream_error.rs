//! The class of an error that an upstream sends: who has to act on it.
//!
//! One table for complete responses and for events of streams, which contain the
//! same bodies. It covers the bodies of `OpenAI`, Azure, Anthropic, Google,
//! `OpenRouter`, Groq, Mistral, `DeepSeek`, vLLM, `SGLang`, llama.cpp and TGI.

mod words;

use std::borrow::Cow;

use serde::Deserialize;

use crate::json::Object;
use words::{GENERIC, MESSAGES, SPECIFIC, same_word};

/// Who has to act on an error of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The client: its request is wrong, and no other backend would accept it.
    Client,
    /// The operator: the upstream rejects the gateway's credential, or the
    /// account behind it.
    Credential,
    /// The operator: the upstream does not serve this model or endpoint at this
    /// address.
    Configuration,
    /// The client or the operator: the backend does not implement what the request
    /// uses. Another backend may.
    Unsupported,
    /// No one: the upstream limits its rate or is overloaded, temporarily.
    Capacity,
    /// The operator of the backend, which failed.
    Backend,
}

impl ErrorClass {
    /// The class of a response with a status of 300 or more. `body` is the
    /// beginning of its body, possibly empty or incomplete.
    ///
    /// ```
    /// use fastllm_wire::ErrorClass;
    ///
    /// let quota = br#"{"error":{"message":"...","code":"insufficient_quota"}}"#;
    /// assert_eq!(ErrorClass::of_response(429, quota), ErrorClass::Credential);
    /// assert_eq!(ErrorClass::of_response(429, b""), ErrorClass::Capacity);
    /// ```
    pub fn of_response(status: u16, body: &[u8]) -> Self {
        if status < 400 {
            return Self::of_status(status);
        }
        ErrorMembers::read(body, true).class(Some(status))
    }

    /// The class of an error that was sent with a success status: an event of a
    /// stream with this name, or a complete body. `None` if `data` is no error.
    pub fn within_success(event: Option<&[u8]>, data: &[u8]) -> Option<Self> {
        let members = ErrorMembers::read(data, event.is_some_and(is_error_name));
        members.is_error.then(|| members.class(None))
    }

    /// The class of an error that is the complete body of a response with a success
    /// status. Only bodies that begin as errors of vendors do are read: others cost no
    /// time.
    ///
    /// ```
    /// use fastllm_wire::ErrorClass;
    ///
    /// let busy = br#"{"error":{"message":"...","type":"overloaded_error"}}"#;
    /// assert_eq!(ErrorClass::of_successful_body(busy), Some(ErrorClass::Capacity));
    /// assert_eq!(ErrorClass::of_successful_body(br#"{"id":"x"}"#), None);
    /// ```
    pub fn of_successful_body(body: &[u8]) -> Option<Self> {
        begins_as_error(body).then(|| Self::within_success(None, body))?
    }

    fn of_status(status: u16) -> Self {
        match status {
            // A redirect: the configured address is not that of the API.
            300..=399 | 404 | 405 | 410 | 411 | 421 | 426 => Self::Configuration,
            401..=403 | 407 => Self::Credential,
            409 | 423 | 425 | 429 | 503 | 529 => Self::Capacity,
            501 | 505 => Self::Unsupported,
            // TGI responds 424 if the generation failed.
            408 | 424 | 499 | 500.. => Self::Backend,
            _ => Self::Client,
        }
    }
}

/// Whether the first member of a JSON object is `error`, or says that the object is one.
fn begins_as_error(body: &[u8]) -> bool {
    let Some(member) = strip_token(body, b"{") else {
        return false;
    };
    if strip_token(member, b"\"error\"").is_some() {
        return true;
    }
    let kind = strip_token(member, b"\"type\"").or_else(|| strip_token(member, b"\"object\""));
    let value = kind.and_then(|text| strip_token(text, b":"));
    value.is_some_and(|text| strip_token(text, b"\"error\"").is_some())
}

/// The text behind a token and the white space before it.
fn strip_token<'a>(text: &'a [u8], token: &[u8]) -> Option<&'a [u8]> {
    text.trim_ascii_start().strip_prefix(token)
}

/// Whether an event with this name is an error.
pub(crate) fn is_error_name(event: &[u8]) -> bool {
    event == b"error" || event == b"response.failed"
}

/// The members of an error that determine its class, as written.
#[derive(Debug, Default)]
struct ErrorMembers<'a> {
    is_error: bool,
    /// A status in the body.
    status: Option<u16>,
    /// The most specific description: a code inside of the error's details.
    reason: Option<String>,
    code: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    /// Google's canonical code.
    state: Option<&'a [u8]>,
    param: Option<&'a [u8]>,
    message: Option<&'a [u8]>,
    /// The content was rejected by moderation.
    moderated: bool,
}

/// An entry of Google's `details`.
#[derive(Deserialize)]
struct Detail {
    reason: Option<String>,
}

impl<'a> ErrorMembers<'a> {
    /// `is_error`: it is an error whatever its members are.
    fn read(data: &'a [u8], is_error: bool) -> Self {
        let mut found = Self {
            is_error,
            ..Self::default()
        };
        let (mut error, mut response) = (None, None);
        for (name, value) in members(first_of_array(data)) {
            match &*name {
                b"error" if !is_nothing(value) => {
                    found.is_error = true;
                    error = Some(value);
                }
                b"response" => response = Some(value),
                b"type" | b"object" => match word(value) {
                    Some(name) if is_error_name(name) => found.is_error = true,
                    _ if &*name == b"type" => found.kind = word(value),
                    _ => {}
                },
                _ => found.member(&name, value),
            }
        }
        if found.is_error {
            let nested = response.into_iter().flat_map(members);
            let nested = nested.filter(|(name, _)| &**name == b"error");
            let nested = nested.map(|(_, value)| value).last();
            if let Some(error) = error.or(nested) {
                found.read_error(error);
            }
        }
        found
    }

    /// Reads the value of `error`: an object, or only a message.
    fn read_error(&mut self, error: &'a [u8]) {
        if let Some(message) = word(error) {
            self.message = Some(message);
        }
        for (name, value) in members(error) {
            self.member(&name, value);
        }
    }

    fn member(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"code" | b"status" | b"status_code" | b"statusCode" | b"http_status_code"
                if status(value).is_some() =>
            {
                self.status = status(value);
            }
            b"code" => self.code = word(value).or(self.code),
            b"status" => self.state = word(value).or(self.state),
            b"type" | b"error_type" => self.kind = word(value).or(self.kind),
            b"param" => self.param = word(value).or(self.param),
            b"message" => self.message = word(value).or(self.message),
            b"details" => self.reason = reason(value).or(self.reason.take()),
            b"innererror" => {
                let code = members(value).find(|(name, _)| &**name == b"code");
                let code = code.and_then(|(_, value)| word(value));
                let code = code.and_then(|code| String::from_utf8(code.to_vec()).ok());
                self.reason = code.or(self.reason.take());
            }
            b"metadata" => {
                let of_moderation = |name: &[u8]| name == b"reasons" || name == b"flagged_input";
                self.moderated |= members(value).any(|(name, _)| of_moderation(&name));
            }
            _ => {}
        }
    }

    /// The class, where `response` is the status of the response.
    fn class(&self, response: Option<u16>) -> ErrorClass {
        if self.moderated {
            return ErrorClass::Client;
        }
        let status = response.or(self.status);
        let reason = self.reason.as_deref().map(str::as_bytes);
        let words = [reason, self.code, self.kind, self.state];
        let words = || words.into_iter().flatten();
        let class = self
            .message
            .and_then(by_message)
            .or_else(|| words().find_map(|word| listed(SPECIFIC, word)))
            .or_else(|| status.map(ErrorClass::of_status))
            .or_else(|| words().find_map(|word| listed(GENERIC, word)))
            .unwrap_or(ErrorClass::Backend);
        // Something that the client's body names was not found, such as an earlier
        // response. Only the model is named by the gateway.
        let by_client = || self.param.is_some_and(|param| param != b"model");
        match class {
            ErrorClass::Configuration if by_client() => ErrorClass::Client,
            class => class,
        }
    }
}

fn listed(table: &[(&str, ErrorClass)], word: &[u8]) -> Option<ErrorClass> {
    let entry = table.iter().find(|(listed, _)| same_word(listed, word));
    entry.map(|(_, class)| *class)
}

fn by_message(message: &[u8]) -> Option<ErrorClass> {
    let entry = MESSAGES
        .iter()
        .find(|(start, _)| message.starts_with(start.as_bytes()));
    entry.map(|(_, class)| *class)
}

/// Google wraps the errors of its `OpenAI` endpoints into an array.
fn first_of_array(data: &[u8]) -> &[u8] {
    let data = data.trim_ascii_start();
    data.strip_prefix(b"[").unwrap_or(data)
}

/// The members of an object, as far as they are complete.
fn members(text: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    Object::open(text)
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .map(|member| (member.name, member.value))
}

/// Some engines write these members into every response.
fn is_nothing(value: &[u8]) -> bool {
    matches!(value, b"null" | b"false" | b"\"\"")
}

/// The content of a string, as written. Words contain no escapes.
fn word(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// A status of an error: a number, or a number in a string.
fn status(value: &[u8]) -> Option<u16> {
    let number = str::from_utf8(word(value).unwrap_or(value)).ok()?;
    let status = number.parse().ok()?;
    (400..=599).contains(&status).then_some(status)
}

/// The reason in Google's `details`.
fn reason(details: &[u8]) -> Option<String> {
    let details: Vec<Detail> = serde_json::from_slice(details).ok()?;
    details.into_iter().find_map(|detail| detail.reason)
}

#[cfg(test)]
mod tests;
