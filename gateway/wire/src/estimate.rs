//! Estimates the number of tokens in a text when the upstream does not report
//! it.

use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::Finder;

/// Bytes of text per token, times two: 3.5.
const HALF_BYTES_PER_TOKEN: u64 = 7;

/// A shorter body contains no audio worth searching for, in bytes.
const MIN_AUDIO_BODY: usize = 4 << 10;

/// Separates the media type of a data URL from its bytes.
static DATA_URL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b";base64,"));

static INPUT_AUDIO: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"input_audio\""));

static DATA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"data\""));

/// Estimates the number of tokens in so many bytes of text: one per 3.5 bytes,
/// rounded down.
pub fn estimated_tokens(text_bytes: u64) -> u64 {
    text_bytes.saturating_mul(2) / HALF_BYTES_PER_TOKEN
}

/// The bytes of a JSON body without embedded base64 files: data URLs, and the
/// `data` of an `input_audio`.
pub fn text_bytes(body: &[u8]) -> u64 {
    let files = data_urls(body) + audio(body);
    body.len().saturating_sub(files) as u64
}

fn data_urls(body: &[u8]) -> usize {
    let mut bytes = 0;
    let mut rest = body;
    while let Some(data) = after(&DATA_URL, rest) {
        let (length, following) = base64(data);
        bytes += length;
        rest = following;
    }
    bytes
}

fn audio(body: &[u8]) -> usize {
    if body.len() < MIN_AUDIO_BODY {
        return 0;
    }
    let mut bytes = 0;
    let mut rest = body;
    while let Some(following) = after(&INPUT_AUDIO, rest) {
        rest = following;
        if let Some(data) = audio_data(following) {
            let (length, following) = base64(data);
            bytes += length;
            rest = following;
        }
    }
    bytes
}

/// The text after the quote that opens the `data` of the object that follows
/// the name.
fn audio_data(following: &[u8]) -> Option<&[u8]> {
    /// Maximum distance, in bytes.
    const REACH: usize = 256;
    // The name may also be the value of `type`.
    let object = next(following, b':').and_then(|value| next(value, b'{'))?;
    let near = object.get(..REACH).unwrap_or(object);
    let value = object.get(DATA.find(near)? + DATA.needle().len()..)?;
    next(value, b':').and_then(|value| next(value, b'"'))
}

/// The text after this byte, if it is the next one.
fn next(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.trim_ascii_start().strip_prefix(&[byte])
}

/// The length of the base64 at the start of a string, and the text after it.
/// Base64 has no spaces, so text that merely mentions files ends here.
fn base64(data: &[u8]) -> (usize, &[u8]) {
    let length = memchr2(b'"', b' ', data).unwrap_or(data.len());
    (length, data.get(length..).unwrap_or_default())
}

/// The text after the first occurrence.
fn after<'a>(finder: &Finder<'_>, text: &'a [u8]) -> Option<&'a [u8]> {
    text.get(finder.find(text)? + finder.needle().len()..)
}

#[cfg(test)]
mod tests {
    use super::{MIN_AUDIO_BODY, estimated_tokens, text_bytes};

    #[test]
    fn seven_bytes_are_two_tokens() {
        assert_eq!(
            [0, 1, 3, 4, 7, 35].map(estimated_tokens),
            [0, 0, 0, 1, 2, 10]
        );
        assert!(estimated_tokens(u64::MAX) > 0);
    }

    #[test]
    fn files_are_not_text() {
        let url = |data: &str| format!("{{\"url\":\"data:image/png;base64,{data}\",\"a\":1}}");
        let without = text_bytes(url("").as_bytes());
        assert_eq!(without, url("").len() as u64);
        let twice = [url(&"iVBORw0K".repeat(2000)), url("QUJD")].concat();
        assert_eq!(text_bytes(twice.as_bytes()), 2 * without);

        let audio = |data: &str| {
            format!(
                "{{\"type\":\"input_audio\",\"input_audio\" : {{\"data\":\"{data}\",\"format\":\"wav\"}}}}"
            )
        };
        let data = "UklG".repeat(MIN_AUDIO_BODY);
        let body = [audio(&data), audio(&data)].concat();
        let without = 2 * audio("").len();
        assert_eq!(text_bytes(body.as_bytes()), without as u64);
    }

    #[test]
    fn text_that_mentions_files_is_text() {
        let text = "{\"content\":\"write ;base64, and then what? \\\"input_audio\\\" is a name\"}";
        let short = text_bytes(text.as_bytes());
        assert_eq!(short, text.len() as u64);
        let long = format!(
            "{{\"content\":\"{}\"}}",
            "input_audio ".repeat(MIN_AUDIO_BODY)
        );
        assert_eq!(text_bytes(long.as_bytes()), long.len() as u64);
        for cut in [
            "data:;base64,",
            "data:;base64,AA",
            "{\"input_audio\":{\"data\":\"AA",
        ] {
            let padded = format!("{}{cut}", " ".repeat(MIN_AUDIO_BODY));
            let text = text_bytes(padded.as_bytes());
            assert!(text >= MIN_AUDIO_BODY as u64 && text <= padded.len() as u64);
        }
    }
}
