//! The access log: one line per request. It is formatted by hand into a reused
//! buffer, since it is the only log line whose cost matters under load.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use fastllm_contract::Timestamp;
use fastllm_process::logging::LogFormat;
use serde::Serialize;

/// The target of these lines; `--log info,fastllm_gateway::access=off` disables
/// them.
pub(crate) const TARGET: &str = "fastllm_gateway::access";

/// More than nearly every line requires, in bytes.
const USUAL: usize = 512;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(USUAL));
}

/// The logged properties of a request, without any of its content. Unknown
/// values are omitted.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct AccessLine<'a> {
    pub(crate) request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<Displayed<super::TraceId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<&'a str>,
    /// The requested model, if another one replaces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requested_model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<u64>,
    pub(crate) attempts: u32,
    pub(crate) stream: bool,
    /// The outcome of the cache lookup, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<&'static str>,
    pub(crate) status: u16,
    /// The error code of the gateway's own rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_tokens: Option<u64>,
    /// Milliseconds from arrival to the first event of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_ms: Option<u32>,
    /// Milliseconds from arrival to the end of the response.
    pub(crate) ms: u32,
}

/// A value that is formatted with `Display`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Displayed<T>(pub(crate) T);

impl<T: fmt::Display> Serialize for Displayed<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Formats a line as one JSON object.
#[derive(Serialize)]
struct JsonLine<'a> {
    timestamp: Displayed<humantime::Rfc3339Timestamp>,
    level: &'static str,
    message: &'static str,
    #[serde(flatten)]
    line: &'a AccessLine<'a>,
    target: &'static str,
}

impl AccessLine<'_> {
    /// Writes the line for a request that ended at this time, unless the target
    /// is disabled.
    pub(crate) fn log(&self, format: LogFormat, at: Timestamp) {
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            let written = match format {
                LogFormat::Text => self.write_text(buffer, at),
                LogFormat::Json => self.write_json(buffer, at),
            };
            // Both write only UTF-8, and writing to memory does not fail.
            if let (Ok(()), Ok(line)) = (written, std::str::from_utf8(buffer)) {
                tracing::info!(target: TARGET, message = line);
            }
        });
    }

    fn write_json(&self, buffer: &mut Vec<u8>, at: Timestamp) -> io::Result<()> {
        let object = JsonLine {
            timestamp: Displayed(time(at)),
            level: "INFO",
            message: "request",
            line: self,
            target: TARGET,
        };
        serde_json::to_writer(buffer, &object).map_err(io::Error::from)
    }

    fn write_text(&self, buffer: &mut Vec<u8>, at: Timestamp) -> io::Result<()> {
        let Self {
            request_id,
            trace_id,
            principal,
            requested_model,
            model,
            backend,
            attempts,
            stream,
            cache,
            status,
            code,
            prompt_tokens,
            completion_tokens,
            ttft_ms,
            ms,
        } = self;
        write!(buffer, "{}  INFO {TARGET}: request", time(at))?;
        let mut pairs = Pairs(buffer);
        pairs.text("request_id", Some(request_id))?;
        if let Some(Displayed(id)) = trace_id {
            write!(pairs.0, " trace_id={id}")?;
        }
        pairs.text("principal", principal.as_ref())?;
        pairs.text("requested_model", requested_model.as_ref())?;
        pairs.text("model", model.as_ref())?;
        pairs.number("backend", *backend)?;
        pairs.number("attempts", Some(*attempts))?;
        write!(pairs.0, " stream={stream}")?;
        pairs.text("cache", cache.as_ref())?;
        pairs.number("status", Some(*status))?;
        pairs.text("code", code.as_ref())?;
        pairs.number("prompt_tokens", *prompt_tokens)?;
        pairs.number("completion_tokens", *completion_tokens)?;
        pairs.number("ttft_ms", *ttft_ms)?;
        pairs.number("ms", Some(*ms))
    }
}

/// Writes ` name=value` if the value is known.
struct Pairs<'a>(&'a mut Vec<u8>);

impl Pairs<'_> {
    /// Quoted only if it could be read as more than one value.
    fn text(&mut self, name: &str, value: Option<&&str>) -> io::Result<()> {
        let Some(value) = value else {
            return Ok(());
        };
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\');
        if !value.is_empty() && value.bytes().all(plain) {
            self.0.extend_from_slice(b" ");
            self.0.extend_from_slice(name.as_bytes());
            self.0.extend_from_slice(b"=");
            self.0.extend_from_slice(value.as_bytes());
            Ok(())
        } else {
            write!(self.0, " {name}={value:?}")
        }
    }

    fn number(&mut self, name: &str, value: Option<impl fmt::Display>) -> io::Result<()> {
        match value {
            Some(value) => write!(self.0, " {name}={value}"),
            None => Ok(()),
        }
    }
}

fn time(at: Timestamp) -> humantime::Rfc3339Timestamp {
    let since = Duration::from_micros(u64::try_from(at.0).unwrap_or_default());
    humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use fastllm_contract::Timestamp;

    use super::AccessLine;

    const AT: Timestamp = Timestamp(1_767_225_600_000_042);

    fn line() -> AccessLine<'static> {
        AccessLine {
            request_id: "r-1",
            trace_id: None,
            principal: Some("a \"b\"\nc"),
            requested_model: Some("fast"),
            model: Some("small"),
            backend: Some(7),
            attempts: 2,
            stream: true,
            cache: Some("miss"),
            status: 200,
            code: None,
            prompt_tokens: Some(11),
            completion_tokens: None,
            ttft_ms: Some(5),
            ms: 123,
        }
    }

    #[test]
    fn text_is_one_line_of_pairs_for_any_names() {
        let mut buffer = Vec::new();
        line().write_text(&mut buffer, AT).unwrap();
        assert_eq!(
            String::from_utf8(buffer).unwrap(),
            "2026-01-01T00:00:00.000042Z  INFO fastllm_gateway::access: request \
             request_id=r-1 principal=\"a \\\"b\\\"\\nc\" requested_model=fast \
             model=small backend=7 attempts=2 stream=true cache=miss status=200 prompt_tokens=11 \
             ttft_ms=5 ms=123"
        );
    }

    #[test]
    fn json_is_one_flat_object() {
        let mut buffer = Vec::new();
        line().write_json(&mut buffer, AT).unwrap();
        assert!(!buffer.contains(&b'\n'));
        let read: serde_json::Value = serde_json::from_slice(&buffer).unwrap();
        assert_eq!(
            read,
            serde_json::json!({
                "timestamp": "2026-01-01T00:00:00.000042Z", "level": "INFO",
                "message": "request", "target": "fastllm_gateway::access",
                "request_id": "r-1", "principal": "a \"b\"\nc",
                "requested_model": "fast", "model": "small", "backend": 7,
                "attempts": 2, "stream": true, "cache": "miss", "status": 200,
                "prompt_tokens": 11, "ttft_ms": 5, "ms": 123,
            })
        );
    }
}
