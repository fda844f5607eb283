//! What the two planes say to each other, and the small types both speak.
