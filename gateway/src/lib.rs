//! The data plane: sockets, upstream connections, snapshot sources, reports, telemetry.
