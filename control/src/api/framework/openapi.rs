//! The parts of the OpenAPI document that are derived from the routes: names of
//! operations and error responses.

use std::collections::BTreeMap;

use utoipa::openapi::path::{HttpMethod, Operation, ParameterIn, PathItem};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

use super::error::ErrorCode;

/// The name of the cookie's security scheme in the OpenAPI document.
pub(crate) const SCHEME: &str = "session";

/// The operations of one path.
pub(crate) fn operations(
    item: &mut PathItem,
) -> impl Iterator<Item = (HttpMethod, &mut Operation)> {
    [
        (HttpMethod::Get, &mut item.get),
        (HttpMethod::Put, &mut item.put),
        (HttpMethod::Post, &mut item.post),
        (HttpMethod::Delete, &mut item.delete),
        (HttpMethod::Patch, &mut item.patch),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Documents the error responses that follow from what an operation accepts:
/// its permission, path, query and body. Handlers document the others (409 and
/// 429) beside their successful response, without a body.
pub(crate) fn describe_errors(method: &HttpMethod, operation: &mut Operation) {
    for (status, codes) in by_status(&possible_errors(method, operation)) {
        let meanings: Vec<String> = codes
            .iter()
            .map(|code| format!("`{}`: {}", code.as_str(), code.meaning()))
            .collect();
        let response = ResponseBuilder::new().description(meanings.join("\n\n"));
        operation
            .responses
            .responses
            .entry(status)
            .or_insert_with(|| response.build().into());
    }
    let other = ResponseBuilder::new()
        .description("Any other error.")
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), other.into());
    let errors = operation.responses.responses.iter_mut();
    for (_, response) in errors.filter(|(status, _)| !status.starts_with(['2', '3'])) {
        if let RefOr::T(response) = response {
            let body = ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("ErrorBody")))
                .build();
            response
                .content
                .insert("application/json".to_owned(), body.into());
        }
    }
}

fn possible_errors(method: &HttpMethod, operation: &Operation) -> Vec<ErrorCode> {
    use ErrorCode::{
        BodyTooLarge, DatabaseUnavailable, ForeignOrigin, InvalidParameter, InvalidValue,
        MalformedBody, MissingField, NotFound, PermissionDenied, Unauthenticated, UnknownField,
        UnsupportedMediaType,
    };
    let mut codes = vec![DatabaseUnavailable];
    if operation.security.is_some() {
        codes.extend([Unauthenticated, PermissionDenied]);
    }
    if *method != HttpMethod::Get {
        codes.push(ForeignOrigin);
    }
    for parameter in operation.parameters.iter().flatten() {
        let RefOr::T(parameter) = parameter else {
            continue;
        };
        match parameter.parameter_in {
            ParameterIn::Path => codes.extend([InvalidParameter, NotFound]),
            _ => codes.extend([InvalidParameter, InvalidValue]),
        }
    }
    if operation.request_body.is_some() {
        codes.extend([MalformedBody, UnknownField, MissingField, InvalidValue]);
        codes.extend([BodyTooLarge, UnsupportedMediaType]);
    }
    codes
}

fn by_status(codes: &[ErrorCode]) -> BTreeMap<String, Vec<ErrorCode>> {
    let mut groups: BTreeMap<String, Vec<ErrorCode>> = BTreeMap::new();
    for code in codes {
        let group = groups.entry(code.status().as_str().to_owned()).or_default();
        if !group.contains(code) {
            group.push(*code);
        }
    }
    groups
}

/// Prefixes the operation's name, which is unique within its module, with the tag:
/// names have to be unique within the document.
pub(crate) fn name_operation(operation: &mut Operation) {
    let tag = operation.tags.as_ref().and_then(|tags| tags.first());
    if let (Some(tag), Some(id)) = (tag, &operation.operation_id) {
        operation.operation_id = Some(format!("{tag}_{id}"));
    }
}
