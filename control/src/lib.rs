//! The control plane: admin API, accounting, audit, snapshot.
