//! Every decision about a request, and no I/O.
