use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Everything that the tests of this process logged, at trace level.
static LOGS: OnceLock<Logs> = OnceLock::new();

#[derive(Debug, Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to capture logs.
pub(crate) fn listen() {
    LOGS.get_or_init(|| {
        let logs = Logs::default();
        let writer = logs.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        logs
    });
}

/// The captured logs.
pub(crate) fn logged() -> String {
    let logs = LOGS.get().map(|logs| logs.0.lock().clone());
    String::from_utf8_lossy(&logs.unwrap_or_default()).into_owned()
}
