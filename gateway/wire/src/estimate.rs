//! How many tokens a text may be, where nothing says so.

use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::Finder;

/// Bytes of text per token, times two: 3.5.
const HALF_BYTES_PER_TOKEN: u64 = 7;

/// A body that is shorter holds no sound worth looking for, in bytes.
const LEAST_WITH_SOUND: usize = 4 << 10;

/// What stands between the type of a data URL and its bytes.
static DATA_URL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b";base64,"));

static SOUND: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"input_audio\""));

static DATA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"data\""));

/// A rough count of the tokens of so many bytes of text: one for 3.5 of them,
/// rounded down.
pub fn estimated_tokens(text_bytes: u64) -> u64 {
    text_bytes.saturating_mul(2) / HALF_BYTES_PER_TOKEN
}

/// The bytes of a JSON body, without what it holds of files in base64: data
/// URLs, and the `data` of an `input_audio`.
pub fn text_bytes(body: &[u8]) -> u64 {
    let files = data_urls(body) + sound(body);
    body.len().saturating_sub(files) as u64
}

fn data_urls(body: &[u8]) -> usize {
    let mut bytes = 0;
    let mut rest = body;
    while let Some(data) = after(&DATA_URL, rest) {
        let (length, behind) = base64(data);
        bytes += length;
        rest = behind;
    }
    bytes
}

fn sound(body: &[u8]) -> usize {
    if body.len() < LEAST_WITH_SOUND {
        return 0;
    }
    let mut bytes = 0;
    let mut rest = body;
    while let Some(behind) = after(&SOUND, rest) {
        rest = behind;
        if let Some(data) = sound_data(behind) {
            let (length, behind) = base64(data);
            bytes += length;
            rest = behind;
        }
    }
    bytes
}

/// What follows the quote that opens the `data` of the object behind the name.
fn sound_data(behind: &[u8]) -> Option<&[u8]> {
    /// How far it may be, in bytes.
    const REACH: usize = 256;
    // The name may be a type's value as well.
    let object = next(behind, b':').and_then(|value| next(value, b'{'))?;
    let near = object.get(..REACH).unwrap_or(object);
    let value = object.get(DATA.find(near)? + DATA.needle().len()..)?;
    next(value, b':').and_then(|value| next(value, b'"'))
}

/// What follows this byte, where it is the next.
fn next(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.trim_ascii_start().strip_prefix(&[byte])
}

/// The length of base64 in a string, and what follows it. It has no space, so
/// that a text that only speaks of files ends here.
fn base64(data: &[u8]) -> (usize, &[u8]) {
    let length = memchr2(b'"', b' ', data).unwrap_or(data.len());
    (length, data.get(length..).unwrap_or_default())
}

/// What follows the first place where something is found.
fn after<'a>(finder: &Finder<'_>, text: &'a [u8]) -> Option<&'a [u8]> {
    text.get(finder.find(text)? + finder.needle().len()..)
}

#[cfg(test)]
mod tests {
    use super::{LEAST_WITH_SOUND, estimated_tokens, text_bytes};

    #[test]
    fn seven_bytes_are_two_tokens() {
        assert_eq!(
            [0, 1, 3, 4, 7, 35].map(estimated_tokens),
            [0, 0, 0, 1, 2, 10]
        );
        assert!(estimated_tokens(u64::MAX) > 0);
    }

    #[test]
    fn files_are_no_text() {
        let url = |data: &str| format!("{{\"url\":\"data:image/png;base64,{data}\",\"a\":1}}");
        let without = text_bytes(url("").as_bytes());
        assert_eq!(without, url("").len() as u64);
        let twice = [url(&"iVBORw0K".repeat(2000)), url("QUJD")].concat();
        assert_eq!(text_bytes(twice.as_bytes()), 2 * without);

        let sound = |data: &str| {
            format!(
                "{{\"type\":\"input_audio\",\"input_audio\" : {{\"data\":\"{data}\",\"format\":\"wav\"}}}}"
            )
        };
        let data = "UklG".repeat(LEAST_WITH_SOUND);
        let body = [sound(&data), sound(&data)].concat();
        let without = 2 * sound("").len();
        assert_eq!(text_bytes(body.as_bytes()), without as u64);
    }

    #[test]
    fn what_only_speaks_of_files_is_text() {
        let text = "{\"content\":\"write ;base64, and then what? \\\"input_audio\\\" is a name\"}";
        let short = text_bytes(text.as_bytes());
        assert_eq!(short, text.len() as u64);
        let long = format!(
            "{{\"content\":\"{}\"}}",
            "input_audio ".repeat(LEAST_WITH_SOUND)
        );
        assert_eq!(text_bytes(long.as_bytes()), long.len() as u64);
        for cut in [
            "data:;base64,",
            "data:;base64,AA",
            "{\"input_audio\":{\"data\":\"AA",
        ] {
            let padded = format!("{}{cut}", " ".repeat(LEAST_WITH_SOUND));
            let text = text_bytes(padded.as_bytes());
            assert!(text >= LEAST_WITH_SOUND as u64 && text <= padded.len() as u64);
        }
    }
}
