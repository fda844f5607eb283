//! The text of an upstream's error for the operator's log.

/// How many bytes of an error are logged.
const MAX_LOGGED_BYTES: usize = 1 << 10;

/// The beginning of an error's text on one line. The text must not contain
/// secrets: those of its backend were masked when it was received.
pub(super) fn of(text: &[u8]) -> String {
    let beginning = text.get(..MAX_LOGGED_BYTES).unwrap_or(text);
    let beginning = String::from_utf8_lossy(beginning);
    let line = beginning.trim().chars();
    line.map(|character| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn an_excerpt_is_one_line_of_bounded_length() {
        assert_eq!(of(b"one\r\n\ttwo\x1b[31m\n"), "one   two [31m");
        assert_eq!(of(&[b'x'; 5_000]), "x".repeat(1_024));
        assert_eq!(of(b""), "");
        // A character that is cut off.
        let long = "\u{e9}".repeat(1_000);
        let odd = [b"x", long.as_bytes()].concat();
        assert!(of(&odd).ends_with("\u{e9}\u{fffd}"));
    }
}
