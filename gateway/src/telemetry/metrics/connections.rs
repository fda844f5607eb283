use prometheus::IntGauge;

use super::register::{Register, Registered};

/// The number of open connections.
#[derive(Debug)]
pub(super) struct ConnectionMetrics {
    clients: IntGauge,
    upstreams: IntGauge,
}

/// Counts one connection as open until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct OpenConnection(IntGauge);

impl OpenConnection {
    fn in_gauge(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl ConnectionMetrics {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        Ok(Self {
            clients: register.gauge("fastllm_client_connections", "Open client connections")?,
            upstreams: register.gauge(
                "fastllm_upstream_connections",
                "Open upstream connections, including idle ones",
            )?,
        })
    }

    pub(super) fn client(&self) -> OpenConnection {
        OpenConnection::in_gauge(&self.clients)
    }

    pub(super) fn upstream(&self) -> OpenConnection {
        OpenConnection::in_gauge(&self.upstreams)
    }
}
