use fastllm_contract::Timestamp;

/// The end of one message in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// Hash of the text up to here.
    pub hash: u64,
    /// The length of that text, in bytes.
    pub bytes: u32,
}

/// What a policy uses of a request to choose a backend.
#[derive(Debug, Clone, Copy)]
pub struct PickContext<'a> {
    /// The time.
    pub at: Timestamp,
    /// Whether the response is streamed.
    pub stream: bool,
    /// The message boundaries of the prompt in order; empty if unknown.
    pub prompt: &'a [Boundary],
}
