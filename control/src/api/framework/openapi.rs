//! The parts of the OpenAPI document that are derived from the routes: names of
//! operations and error responses.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use utoipa::openapi::path::{HttpMethod, Operation, ParameterIn, PathItem};
use utoipa::openapi::{Components, Content, ContentBuilder, Ref, RefOr, ResponseBuilder};

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

/// Documents the error responses that follow from what an operation accepts: its
/// permission, path, query and body. They are references to `components`, because
/// many operations share them. Handlers document the others (409 and 429) beside
/// their successful response, without a body.
pub(crate) fn describe_errors(
    method: &HttpMethod,
    operation: &mut Operation,
    components: &mut Components,
) {
    let derived = shared_responses(method, operation);
    let responses = &mut operation.responses.responses;
    for (_, response) in responses.iter_mut().filter(|(status, _)| is_error(status)) {
        if let RefOr::T(response) = response {
            response
                .content
                .insert(JSON.to_owned(), error_body().into());
        }
    }
    for SharedResponse {
        status,
        name,
        description,
    } in derived
    {
        responses
            .entry(status)
            .or_insert_with(|| Ref::from_response_name(name.as_str()).into());
        components.responses.entry(name).or_insert_with(|| {
            let response = ResponseBuilder::new().description(description);
            response.content(JSON, error_body()).into()
        });
    }
}

const JSON: &str = "application/json";

fn is_error(status: &str) -> bool {
    !status.starts_with(['2', '3'])
}

fn error_body() -> Content {
    let schema = Ref::from_schema_name("ErrorBody");
    ContentBuilder::new().schema(Some(schema)).build()
}

/// An error response that several operations have.
struct SharedResponse {
    /// The status code, or `default`.
    status: String,
    /// The name of the component.
    name: String,
    description: String,
}

fn shared_responses(method: &HttpMethod, operation: &Operation) -> Vec<SharedResponse> {
    let mut responses = vec![SharedResponse {
        status: "default".to_owned(),
        name: "OtherError".to_owned(),
        description: "Any other error.".to_owned(),
    }];
    for (status, codes) in by_status(&possible_errors(method, operation)) {
        let meanings = codes
            .iter()
            .map(|code| format!("`{}`: {}", code.as_str(), code.meaning()));
        let names: Vec<&str> = codes.iter().map(|code| code.name()).collect();
        responses.push(SharedResponse {
            name: match status {
                StatusCode::BAD_REQUEST => invalid_request(operation),
                _ => names.join("Or"),
            },
            description: meanings.collect::<Vec<_>>().join("\n\n"),
            status: status.as_str().to_owned(),
        });
    }
    responses
}

/// The name of the response to an invalid request, by the parts that can be invalid.
fn invalid_request(operation: &Operation) -> String {
    let accepts = |location| {
        let mut parameters = operation.parameters.iter().flatten();
        parameters.any(|one| matches!(one, RefOr::T(one) if one.parameter_in == location))
    };
    let parts = [
        ("Path", accepts(ParameterIn::Path)),
        ("Query", accepts(ParameterIn::Query)),
        ("Body", operation.request_body.is_some()),
    ];
    let accepted = parts.iter().filter(|(_, accepted)| *accepted);
    let names: Vec<&str> = accepted.map(|(name, _)| *name).collect();
    format!("Invalid{}", names.join("Or"))
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

fn by_status(codes: &[ErrorCode]) -> BTreeMap<StatusCode, Vec<ErrorCode>> {
    let mut groups: BTreeMap<StatusCode, Vec<ErrorCode>> = BTreeMap::new();
    for code in codes {
        let group = groups.entry(code.status()).or_default();
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
