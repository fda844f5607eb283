use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes the messages of one target as they are and formats everything else.
pub(super) struct LineFormat<F> {
    format: F,
    preformatted: Option<&'static str>,
}

impl<F> LineFormat<F> {
    pub(super) fn new(format: F, preformatted: Option<&'static str>) -> Self {
        Self {
            format,
            preformatted,
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for LineFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.preformatted != Some(event.metadata().target()) {
            return self.format.format_event(context, writer, event);
        }
        let mut message = Message {
            writer,
            written: Ok(()),
        };
        event.record(&mut message);
        message.written
    }
}

/// Writes an event's message and the end of its line.
struct Message<'a> {
    writer: Writer<'a>,
    written: fmt::Result,
}

impl Visit for Message<'_> {
    fn record_str(&mut self, _field: &Field, value: &str) {
        self.written = self
            .writer
            .write_str(value)
            .and_then(|()| self.writer.write_char('\n'));
    }

    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        self.written = writeln!(self.writer, "{value:?}");
    }
}
