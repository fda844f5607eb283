//! Recognizes the files in a prompt: strings that consist of base64.

use crate::quotes::{base64_end, string_end};

/// Maximum length of a data URL before its data, in bytes as written.
const MAX_HEAD: usize = 128;

/// The families of media types that are files.
const MEDIA: [&[u8]; 3] = [b"image", b"audio", b"video"];

/// A string of which the end was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileString {
    /// Index of the closing quote.
    pub(super) end: usize,
    /// The number of bytes, as written, that are the data of a file: 0 unless
    /// the whole string proves to be one.
    pub(super) data: usize,
}

/// A string, whose text begins at `start`, that may be a data URL:
/// `data:TYPE;base64,DATA` with the type of an image, a recording, a video or a
/// PDF. A slash may be escaped.
pub(super) fn data_url(text: &[u8], start: usize) -> Option<FileString> {
    match text.get(start..).and_then(data_offset) {
        Some(offset) => base64(text, start + offset),
        None => plain(text, start),
    }
}

/// A string, whose text begins at `start`, that may be base64 from there on,
/// with optional padding.
pub(super) fn base64(text: &[u8], start: usize) -> Option<FileString> {
    let mut end = base64_end(text, start)?;
    while text.get(end..)?.starts_with(br"\/") {
        end = base64_end(text, end + 2)?;
    }
    let padding = text.get(end..)?.iter().take(2);
    end += padding.take_while(|byte| **byte == b'=').count();
    if text.get(end) == Some(&b'"') {
        let data = end - start;
        Some(FileString { end, data })
    } else {
        // A backslash, if there is one here, is not escaped itself.
        plain(text, end)
    }
}

fn plain(text: &[u8], start: usize) -> Option<FileString> {
    let end = string_end(text, start)?;
    Some(FileString { end, data: 0 })
}

/// Offset of the data in a data URL of a file.
fn data_offset(url: &[u8]) -> Option<usize> {
    let near = url.get(..MAX_HEAD).unwrap_or(url);
    let comma = near.iter().position(|byte| *byte == b',')?;
    let media_type = near.get(..comma)?.strip_prefix(b"data:")?;
    let rest = media_type.strip_suffix(b";base64")?;
    let rest = if let Some(subtype) = rest.strip_prefix(b"application") {
        subtype_of(subtype)?.strip_prefix(b"pdf")?
    } else {
        let family = MEDIA.iter().find_map(|family| rest.strip_prefix(*family));
        subtype_of(family?)?
    };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".+-_;=".contains(byte);
    rest.iter().all(is_plain).then_some(comma + 1)
}

/// The text after a slash, which may be escaped.
fn subtype_of(rest: &[u8]) -> Option<&[u8]> {
    rest.strip_prefix(b"\\").unwrap_or(rest).strip_prefix(b"/")
}

#[cfg(test)]
mod tests {
    use super::{FileString, base64, data_url};

    /// The data of a string that is tried as a data URL, and where it ends.
    fn url(text: &str) -> Option<FileString> {
        let written = format!("\"{text}\",\"next\"");
        let found = data_url(written.as_bytes(), 1)?;
        assert_eq!(found.end, text.len() + 1, "{text}");
        Some(found)
    }

    #[test]
    fn whole_data_urls_of_files_are_recognized() {
        for head in [
            "data:image/png;base64,",
            "data:image\\/jpeg;base64,",
            "data:image/svg+xml;base64,",
            "data:audio/ogg;codecs=opus;base64,",
            "data:video/mp4;base64,",
            "data:application/pdf;base64,",
        ] {
            for data in ["", "QUJD", "QUI=", "QQ==", "+/+/", "a\\/b\\/\\/c="] {
                let found = url(&format!("{head}{data}")).unwrap();
                assert_eq!(found.data, data.len(), "{head}{data}");
            }
            let long = "iVBORw0K+/".repeat(1000);
            assert_eq!(url(&format!("{head}{long}==")).unwrap().data, 10_002);
        }
    }

    #[test]
    fn anything_else_is_text() {
        let long = format!("data:image/{};base64,QUJD", "x".repeat(200));
        for text in [
            ";base64,QUJD",
            "data:;base64,QUJD",
            "data:text/plain;base64,QUJD",
            "data:application/json;base64,QUJD",
            "data:image;base64,QUJD",
            "data:image/png,QUJD",
            "DATA:image/png;base64,QUJD",
            "data:image/png;base64,QU JD",
            "data:image/png;base64,word\\u0020word",
            "data:image/png;base64,word\\nword",
            "data:image/png;base64,QUJD\\\"",
            "data:image/png;base64,QUJD\\\\",
            "data:image/png;base64,QUJD===",
            "data:image/png;base64,QQ==QQ==",
            "data:image/png;base64,QU-_",
            "data:image/png;base64,QUJD.",
            "data:image/p n g;base64,QUJD",
            "data:image/png;x=\\\";base64,QUJD",
            " data:image/png;base64,QUJD",
            "https://example.com/a.png",
            &long,
            "",
        ] {
            assert_eq!(url(text).unwrap().data, 0, "{text}");
        }
        for cut in ["\"data:image/png;base64,QUJD", "\"data:image", "\""] {
            assert_eq!(data_url(cut.as_bytes(), 1), None);
            assert_eq!(base64(cut.as_bytes(), 1), None);
        }
    }
}
