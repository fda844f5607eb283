use std::io::{self, Write};

use super::case::Case;

/// How a request ended for its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum End {
    /// It was not sent.
    #[default]
    Unsent,
    /// With a whole answer.
    Complete,
    /// The client hung up, as it should.
    Left,
    /// The gateway's connection ended.
    Lost,
}

/// What client and upstream saw of one request.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Place among the gateways.
    pub(super) gateway: usize,
    pub(super) end: End,
    /// 0: none came.
    pub(super) status: u16,
    /// As which it ended: the first is 1.
    pub(super) order: u32,
    /// Milliseconds from the beginning of the run to its end.
    pub(super) ended_ms: u128,
    /// Of the request.
    pub(super) body_bytes: usize,
    /// Of the answer, where an upstream has sent one in one piece.
    pub(super) answer_bytes: usize,
    /// How often an upstream was asked.
    pub(super) attempts: u32,
    /// An upstream has told what the request used, to the last byte.
    pub(super) told: bool,
    /// Events of content that an upstream has sent.
    pub(super) events: u32,
}

/// Writes what was seen as CSV, a line a request.
pub(super) fn write(outcomes: &[Outcome], mut out: impl Write) -> io::Result<()> {
    writeln!(
        out,
        "n,course,form,model,key,gateway,end,status,order,ended_ms,body_bytes,answer_bytes,\
         attempts,told,events,prompt,completion,cached,reasoning,cost_micros"
    )?;
    for (n, outcome) in (0..).zip(outcomes) {
        let Case {
            course,
            form,
            model,
            key,
            figures,
            ..
        } = Case::of(n);
        let Outcome {
            gateway,
            end,
            status,
            order,
            ended_ms,
            body_bytes,
            answer_bytes,
            attempts,
            told,
            events,
        } = outcome;
        write!(
            out,
            "{n},{course:?},{form:?},{model},{key},{gateway},{end:?},{status},{order},{ended_ms},\
             {body_bytes},{answer_bytes},{attempts},{told},{events}"
        )?;
        let counts = [
            Some(figures.prompt),
            figures.completion,
            figures.cached,
            figures.reasoning,
            figures.cost_micros,
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
