//! What crosses a socket, as bytes in and bytes out. No I/O.
