use thiserror::Error;

/// Why a message is rejected. `Display` never contains peer input.
///
/// After any of these the connection cannot be used any further: the start of
/// its next message is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Http1Error {
    /// The head is longer than the limit.
    #[error("the head is too long")]
    HeadTooLong,
    /// The head has more fields than the limit.
    #[error("the head has too many fields")]
    TooManyFields,
    /// The first line is longer than the limit.
    #[error("the first line is too long")]
    LineTooLong,
    /// The first line of a request is not `METHOD target HTTP/1.x`.
    #[error("the request line is malformed")]
    RequestLine,
    /// The first line of a response is not `HTTP/1.x code reason`.
    #[error("the status line is malformed")]
    StatusLine,
    /// An HTTP version other than 1.0 and 1.1.
    #[error("only HTTP/1.1 and HTTP/1.0 are supported")]
    Version,
    /// The target is neither a path nor an absolute `http` or `https` URI.
    #[error("the request target is not valid")]
    Target,
    /// A line ends with something other than CRLF.
    #[error("a line of the head does not end with CR LF")]
    LineEnd,
    /// The name of a field is not a token: this includes white space before the
    /// colon and folded lines.
    #[error("the name of a header field is not valid")]
    FieldName,
    /// The value of a field has a control character.
    #[error("the value of a header field is not valid")]
    FieldValue,
    /// An HTTP/1.1 request without `host`.
    #[error("the request has no host")]
    HostMissing,
    /// More than one `host`.
    #[error("the request has several hosts")]
    HostRepeated,
    /// An invalid `host`.
    #[error("the host is not valid")]
    HostInvalid,
    /// A `content-length` that is not a sequence of digits, or overflows.
    #[error("the content length is not valid")]
    LengthInvalid,
    /// More than one `content-length`, even with equal values.
    #[error("the content length is given more than once")]
    LengthRepeated,
    /// Both `content-length` and `transfer-encoding`.
    #[error("both a content length and a transfer coding are given")]
    LengthAndCoding,
    /// A `transfer-encoding` that names something other than `chunked`.
    #[error("the transfer coding is not supported")]
    CodingUnsupported,
    /// A `transfer-encoding` that is empty, or names `chunked` twice.
    #[error("the transfer coding is not valid")]
    CodingInvalid,
    /// A `transfer-encoding` in an HTTP/1.0 message.
    #[error("HTTP/1.0 has no transfer codings")]
    CodingVersion,
    /// An `expect` other than `100-continue`.
    #[error("the expectation cannot be met")]
    Expectation,
    /// An upstream switches to a protocol that was not requested.
    #[error("the upstream switched protocols")]
    Switched,
    /// An upstream sends too many interim responses.
    #[error("too many interim responses")]
    TooManyInterim,
    /// A chunk size is not a sequence of at most 16 hexadecimal digits.
    #[error("the size of a chunk is not valid")]
    ChunkSize,
    /// Chunk extensions with control characters, or longer than the limit.
    #[error("a chunk extension is not valid")]
    ChunkExtension,
    /// A chunk does not end with CRLF.
    #[error("a chunk does not end with CR LF")]
    ChunkEnd,
    /// Trailers that are malformed, or longer than the limit.
    #[error("the trailers are not valid")]
    Trailer,
    /// The connection ended within a message.
    #[error("the message is incomplete")]
    Truncated,
    /// Bytes or a call out of the order that the protocol requires.
    #[error("out of order")]
    OutOfOrder,
    /// A field to write is not valid, or is one that only the codec writes.
    #[error("a header field cannot be written")]
    Unwritable,
}

impl Http1Error {
    /// The status with which a server responds to a request with this error.
    pub fn status(self) -> u16 {
        match self {
            Self::LineTooLong => 414,
            Self::Expectation => 417,
            Self::HeadTooLong | Self::TooManyFields => 431,
            Self::CodingUnsupported => 501,
            Self::Version => 505,
            Self::Unwritable | Self::OutOfOrder => 500,
            _ => 400,
        }
    }

    /// A stable identifier of the error, for logs and the `code` of an error
    /// body.
    pub fn code(self) -> &'static str {
        match self {
            Self::HeadTooLong => "head_too_long",
            Self::TooManyFields => "too_many_headers",
            Self::LineTooLong => "target_too_long",
            Self::RequestLine => "invalid_request_line",
            Self::StatusLine => "invalid_status_line",
            Self::Version => "unsupported_version",
            Self::Target => "invalid_target",
            Self::LineEnd => "invalid_line_end",
            Self::FieldName => "invalid_header_name",
            Self::FieldValue => "invalid_header_value",
            Self::HostMissing | Self::HostRepeated | Self::HostInvalid => "invalid_host",
            Self::LengthInvalid | Self::LengthRepeated => "invalid_content_length",
            Self::LengthAndCoding => "ambiguous_length",
            Self::CodingUnsupported => "unsupported_transfer_coding",
            Self::CodingInvalid | Self::CodingVersion => "invalid_transfer_coding",
            Self::Expectation => "unsupported_expectation",
            Self::Switched => "protocol_switched",
            Self::TooManyInterim => "too_many_interim_answers",
            Self::ChunkSize | Self::ChunkExtension | Self::ChunkEnd => "invalid_chunk",
            Self::Trailer => "invalid_trailer",
            Self::Truncated => "incomplete_message",
            Self::OutOfOrder => "out_of_order",
            Self::Unwritable => "unwritable_header",
        }
    }
}
