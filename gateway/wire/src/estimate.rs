//! Estimates the number of tokens in a text when the upstream does not report
//! it.

/// Bytes of text per token, times two: 3.5.
const HALF_BYTES_PER_TOKEN: u64 = 7;

/// Tokens that an image, recording, video or document of a prompt counts for.
/// Its real number depends on the model, its size and its length; this is the
/// smallest that is common for an image.
pub const TOKENS_PER_FILE: u64 = 85;

/// Estimates the number of tokens in so many bytes of text: one per 3.5 bytes,
/// rounded down.
pub fn estimated_tokens(text_bytes: u64) -> u64 {
    text_bytes.saturating_mul(2) / HALF_BYTES_PER_TOKEN
}

/// The amount of a prompt, from which its tokens are estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PromptSize {
    /// Bytes that may be text.
    pub(crate) text_bytes: u64,
    /// Tokens that the prompt contains as numbers.
    pub(crate) tokens: u64,
    /// Images, recordings, videos and documents.
    pub(crate) files: u64,
}

impl PromptSize {
    /// Estimated tokens of the prompt.
    pub(crate) fn tokens(self) -> u64 {
        let files = self.files.saturating_mul(TOKENS_PER_FILE);
        let others = self.tokens.saturating_add(files);
        estimated_tokens(self.text_bytes).saturating_add(others)
    }
}

#[cfg(test)]
mod tests {
    use super::{PromptSize, TOKENS_PER_FILE, estimated_tokens};

    #[test]
    fn seven_bytes_are_two_tokens() {
        assert_eq!(
            [0, 1, 3, 4, 7, 35].map(estimated_tokens),
            [0, 0, 0, 1, 2, 10]
        );
        assert!(estimated_tokens(u64::MAX) > 0);
    }

    #[test]
    fn text_tokens_and_files_add_up() {
        let size = PromptSize {
            text_bytes: 35,
            tokens: 3,
            files: 2,
        };
        assert_eq!(size.tokens(), 10 + 3 + 2 * TOKENS_PER_FILE);
        let most = PromptSize {
            text_bytes: u64::MAX,
            tokens: u64::MAX,
            files: u64::MAX,
        };
        assert_eq!(most.tokens(), u64::MAX);
    }
}
