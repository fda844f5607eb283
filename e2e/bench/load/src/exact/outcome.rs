use std::io::{self, Write};

use super::case::Case;

/// How a request ended for its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum End {
    /// It was not sent.
    #[default]
    Unsent,
    /// With a complete response.
    Complete,
    /// The client disconnected as scripted.
    Left,
    /// The connection to the gateway ended.
    Lost,
}

/// The observations of client and upstream for one request.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestOutcome {
    /// Index of the gateway.
    pub(super) gateway: usize,
    pub(super) end: End,
    /// 0: no response was received.
    pub(super) status: u16,
    /// Position in the order of ends, from 1.
    pub(super) order: u32,
    /// Time from the beginning of the run to the end of the request, in
    /// milliseconds.
    pub(super) ended_ms: u128,
    /// Size of the request body, in bytes.
    pub(super) body_bytes: usize,
    /// Size of the response body, in bytes, if an upstream sent one in one
    /// piece.
    pub(super) response_bytes: usize,
    /// Number of attempts that reached an upstream.
    pub(super) attempts: u32,
    /// Whether an upstream sent the usage of the request completely.
    pub(super) usage_reported: bool,
    /// Number of content events that an upstream sent.
    pub(super) events: u32,
}

/// Writes the observations as CSV, one line per request.
pub(super) fn write(outcomes: &[RequestOutcome], mut out: impl Write) -> io::Result<()> {
    writeln!(
        out,
        "n,course,form,model,key,gateway,end,status,order,ended_ms,body_bytes,response_bytes,\
         attempts,usage_reported,events,prompt,completion,cached,reasoning,cost_micros"
    )?;
    for (n, outcome) in (0..).zip(outcomes) {
        let Case {
            course,
            form,
            model,
            key,
            usage,
            ..
        } = Case::of(n);
        let RequestOutcome {
            gateway,
            end,
            status,
            order,
            ended_ms,
            body_bytes,
            response_bytes,
            attempts,
            usage_reported,
            events,
        } = outcome;
        write!(
            out,
            "{n},{course:?},{form:?},{model},{key},{gateway},{end:?},{status},{order},{ended_ms},\
             {body_bytes},{response_bytes},{attempts},{usage_reported},{events}"
        )?;
        let counts = [
            Some(usage.prompt),
            usage.completion,
            usage.cached,
            usage.reasoning,
            usage.cost_micros,
        ];
        for count in counts {
            match count {
                Some(count) => write!(out, ",{count}")?,
                None => write!(out, ",")?,
            }
        }
        writeln!(out)?;
    }
    out.flush()
}
