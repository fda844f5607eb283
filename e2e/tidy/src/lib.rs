//! Holds the borders, sizes and bans that the compiler cannot.
