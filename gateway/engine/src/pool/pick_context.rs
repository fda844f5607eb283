use fastllm_contract::Timestamp;

/// The end of one message in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// Hash of the text up to here.
    pub hash: u64,
    /// The length of that text, in bytes.
    pub bytes: u32,
}

/// The number of endpoints that a backend distinguishes.
pub(super) const ENDPOINTS: usize = 16;

/// The endpoint of a request, as a number that is stable within a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointIndex(u8);

impl EndpointIndex {
    /// The endpoint with this number; numbers from 16 share those below.
    pub const fn new(number: u8) -> Self {
        Self(number % 16)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a policy uses of a request to choose a backend.
#[derive(Debug, Clone, Copy)]
pub struct PickContext<'a> {
    /// The time.
    pub at: Timestamp,
    /// The endpoint of the request.
    pub endpoint: EndpointIndex,
    /// Whether the response is streamed.
    pub stream: bool,
    /// The message boundaries of the prompt in order; empty if unknown.
    pub prompt: &'a [Boundary],
    /// Hashes of the IDs of stored objects that the request refers to, such as a
    /// previous response: only the backend that stores them can serve it.
    pub stored: &'a [u64],
}
