//! The rules for names that people give to objects.

/// The maximum length in bytes.
const MAX_NAME: usize = 128;

/// A name that is not permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    /// It is empty or too long.
    #[error("must have 1 to {MAX_NAME} bytes")]
    Length,
    /// Two names with such characters could look the same.
    #[error("must not begin or end with a space or contain control characters or invisible ones")]
    Characters,
}

/// Checks the name of a principal, a role or a key.
pub(crate) fn check(name: &str) -> Result<(), NameError> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(NameError::Length);
    }
    if name.trim() != name || name.chars().any(|it| it.is_control() || is_invisible(it)) {
        return Err(NameError::Characters);
    }
    Ok(())
}

/// Whether a character has no width or changes the direction of text, so that two
/// names could look the same.
pub(crate) fn is_invisible(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
