//! The controller of FastllmProxy resources.
