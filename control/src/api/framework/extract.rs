use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{ApiError, ErrorCode};
use crate::objects::Objects;

/// A JSON body. Errors name the unknown, missing or invalid field.
pub(crate) struct Json<T>(pub(crate) T);

/// Parameters of the query string.
pub(crate) struct Query<T>(pub(crate) T);

/// Parameters of the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::new(
                ErrorCode::UnsupportedMediaType,
                "send the body as application/json",
            ));
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| unreadable(&rejection))?;
        parse(&bytes).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = media
        .and_then(|media| media.split(';').next())
        .unwrap_or_default()
        .trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn unreadable(rejection: &BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        ApiError::new(ErrorCode::BodyTooLarge, "the body is too large")
    } else {
        ApiError::new(ErrorCode::MalformedBody, "the body cannot be read")
    }
}

/// Parses JSON. Errors name fields and types but never values: a value can be a
/// secret in the wrong place.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let malformed = |text: String| ApiError::new(ErrorCode::MalformedBody, text);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(Objects(&mut reader)).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if !inner.is_data() {
            let (line, column) = (inner.line(), inner.column());
            return malformed(format!("not valid JSON at line {line}, column {column}"));
        }
        let text = inner.to_string();
        if let Some(name) = quoted_after(&text, "unknown field `") {
            ApiError::new(ErrorCode::UnknownField, format!("there is no field {name}"))
                .with_field(name)
        } else if let Some(name) = quoted_after(&text, "missing field `") {
            ApiError::new(
                ErrorCode::MissingField,
                format!("the field {name} is missing"),
            )
            .with_field(name)
        } else {
            let expected = text
                .split_once("expected ")
                .map_or("", |(_, rest)| rest)
                .split(" at line")
                .next()
                .unwrap_or_default();
            let hint = if expected.is_empty() {
                text_without_value(&text)
            } else {
                expected
            };
            if path == "." {
                return malformed(format!("the body: expected {hint}"));
            }
            ApiError::invalid(&path, format!("{path}: expected {hint}"))
        }
    })?;
    reader
        .end()
        .map_err(|_| malformed("there is something after the JSON value".to_owned()))?;
    Ok(value)
}

fn quoted_after<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.strip_prefix(start)?.split('`').next()
}

/// Serde's own messages quote the value; messages from `custom` do not.
fn text_without_value(text: &str) -> &str {
    if text.contains('`') || text.contains('"') {
        "another value"
    } else {
        text
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Query(params) =
            axum::extract::Query::<T>::from_request_parts(parts, state)
                .await
                .map_err(|rejection| {
                    let text = rejection.body_text();
                    let reason = text.rsplit("query string: ").next().unwrap_or_default();
                    ApiError::new(
                        ErrorCode::InvalidParameter,
                        format!("a query parameter is wrong: {reason}"),
                    )
                })?;
        Ok(Self(params))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Path(value) = axum::extract::Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|_| {
                ApiError::new(
                    ErrorCode::InvalidParameter,
                    "the path does not hold a number where an id belongs",
                )
            })?;
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example {
        #[expect(dead_code, reason = "only read")]
        name: String,
        #[expect(dead_code, reason = "only read")]
        count: Option<u32>,
    }

    fn error_of(body: &str) -> String {
        let error = parse::<Example>(body.as_bytes()).unwrap_err();
        let text = format!("{error:?}");
        assert_eq!(error.into_response().status(), StatusCode::BAD_REQUEST);
        text
    }

    #[test]
    fn errors_name_the_field_but_not_its_value() {
        let unknown = error_of(r#"{"name": "n", "canary-1": 2}"#);
        assert!(unknown.contains("unknown_field") && unknown.contains("canary-1"));
        assert!(error_of(r#"{"count": 2}"#).contains("missing_field"));
        let wrong = error_of(r#"{"name": "n", "count": "canary-2"}"#);
        assert!(
            wrong.contains("invalid_value") && wrong.contains("count"),
            "{wrong}"
        );
        assert!(!wrong.contains("canary-2"), "{wrong}");
        assert!(error_of("{").contains("malformed_body"));
        assert!(error_of(r#"{"name": "n"} x"#).contains("malformed_body"));
        for body in [r#"["n", 1]"#, "[]", "1", r#""n""#, "null"] {
            let other = error_of(body);
            assert!(other.contains("malformed_body"), "{other}");
            assert!(other.contains("the body: expected an object"), "{other}");
        }
    }
}
