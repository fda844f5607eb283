//! The Rust types of the custom resources, and the YAML generated from them.
