//! The parts of the OpenAPI document that no single resource describes.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};

/// The name of the cookie's security scheme in the OpenAPI document.
pub(crate) const SCHEME: &str = "session";

/// The operations of one path.
pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

/// Every refusal and failure has the same body.
pub(crate) fn describe_errors(operation: &mut Operation) {
    let body = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .build();
    let response = ResponseBuilder::new()
        .description("Refused or failed")
        .content("application/json", body)
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), response.into());
}

/// Handlers are named within their file; operations of the document need names
/// that are unique in all of it.
pub(crate) fn name_operation(operation: &mut Operation) {
    let tag = operation.tags.as_ref().and_then(|tags| tags.first());
    if let (Some(tag), Some(id)) = (tag, &operation.operation_id) {
        operation.operation_id = Some(format!("{tag}_{id}"));
    }
}
