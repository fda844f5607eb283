//! What every admin resource is built from: request extractors, errors, the
//! permission check, paging, partial updates and the audit detail.

mod audit_detail;
pub(crate) mod checks;
mod edit;
mod error;
mod extract;
pub(crate) mod fields;
pub(crate) mod openapi;
pub(crate) mod page;
pub(crate) mod patch;
mod permission;
pub(crate) mod resource;

pub(crate) use audit_detail::AuditDetail;
pub(crate) use edit::Edit;
pub(crate) use error::{ApiError, ErrorBody, ErrorCode};
pub(crate) use extract::Path;
pub(crate) use extract::{Json, Query};
pub(crate) use page::ListParams;
pub(crate) use patch::Patch;
pub(crate) use permission::{COOKIE, Caller, Permission, require_permission, session_token};
pub(crate) use permission::{ClientAddress, same_origin};
pub(crate) use resource::{Create, Delete, Resource, Update};
