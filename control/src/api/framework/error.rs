use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fastllm_process::error::Chain;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Error;
use crate::db::{DbError, Outage};

/// Declares [`ErrorCode`]: each code with its status and its documentation.
macro_rules! error_codes {
    ($($Variant:ident: $status:ident $code:literal $meaning:literal;)*) => {
        /// The kinds of errors that the control plane's API returns. Codes are
        /// stable: programs decide by them.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ErrorCode {
            $(#[doc = $meaning] $Variant,)*
        }

        impl ErrorCode {
            /// As in the response body.
            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $code,)*
                }
            }

            /// In the names of the OpenAPI document's components.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => stringify!($Variant),)*
                }
            }

            pub(crate) fn status(self) -> StatusCode {
                match self {
                    $(Self::$Variant => StatusCode::$status,)*
                }
            }

            /// What the code means, for the OpenAPI document.
            pub(crate) fn meaning(self) -> &'static str {
                match self {
                    $(Self::$Variant => $meaning,)*
                }
            }
        }
    };
}

error_codes! {
    MalformedBody: BAD_REQUEST "malformed_body" "The body is not valid JSON.";
    UnknownField: BAD_REQUEST "unknown_field" "The body has an unknown field.";
    MissingField: BAD_REQUEST "missing_field" "The body lacks a required field.";
    InvalidValue: BAD_REQUEST "invalid_value" "A field or parameter has a value that is not allowed.";
    InvalidParameter: BAD_REQUEST "invalid_parameter" "A path or query parameter is malformed or unknown.";
    Unauthenticated: UNAUTHORIZED "unauthenticated" "The credentials are missing, wrong or expired.";
    PermissionDenied: FORBIDDEN "permission_denied" "The caller lacks the required permission.";
    ForeignOrigin: FORBIDDEN "foreign_origin" "A browser sent the request from a page of another origin.";
    NotFound: NOT_FOUND "not_found" "The object does not exist.";
    MethodNotAllowed: METHOD_NOT_ALLOWED "method_not_allowed" "The path does not support the method.";
    Duplicate: CONFLICT "duplicate" "Another object has the same unique value.";
    InUse: CONFLICT "in_use" "Another object refers to this one.";
    LastAdministrator: CONFLICT "last_administrator" "Nobody would be left who can log in and change the configuration.";
    LastTarget: CONFLICT "last_target" "A rule needs at least one target.";
    TooMany: CONFLICT "too_many" "The list has reached its maximum length.";
    Unreadable: CONFLICT "unreadable" "A later release wrote this object; it can only be deleted.";
    BodyTooLarge: PAYLOAD_TOO_LARGE "body_too_large" "The body is too large.";
    BatchTooLarge: PAYLOAD_TOO_LARGE "batch_too_large" "The batch has too many events.";
    ReportTooLarge: PAYLOAD_TOO_LARGE "report_too_large" "The report has too many entries.";
    UnsupportedMediaType: UNSUPPORTED_MEDIA_TYPE "unsupported_media_type" "The body is not declared as `application/json`.";
    Throttled: TOO_MANY_REQUESTS "throttled" "Too many failed logins; see `Retry-After`.";
    Internal: INTERNAL_SERVER_ERROR "internal" "An internal error; the control plane's log has the reason.";
    DatabaseFailed: INTERNAL_SERVER_ERROR "database_failed" "The database failed; nothing was changed.";
    DatabaseUnavailable: SERVICE_UNAVAILABLE "database_unavailable" "The database is unavailable; nothing was changed.";
    Busy: SERVICE_UNAVAILABLE "busy" "Too many requests of this kind are being processed at the moment.";
    NoSnapshot: SERVICE_UNAVAILABLE "no_snapshot" "No snapshot has been built yet.";
    TooSlow: GATEWAY_TIMEOUT "too_slow" "The request took too long; it is unknown whether it was executed.";
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body of every error response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// A description for people.
    error: String,
    /// The kind of error, for programs. The codes are stable.
    #[schema(example = "invalid_value")]
    code: &'static str,
    /// The field or parameter that caused the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<String>,
}

/// An error response. The message is for the client; details that only the
/// operator may see are logged where the error occurs.
#[derive(Debug)]
pub(crate) struct ApiError {
    code: ErrorCode,
    message: String,
    field: Option<String>,
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: None,
            retry_after: None,
        }
    }

    #[must_use]
    pub(crate) fn with_field(mut self, name: impl Into<String>) -> Self {
        self.field = Some(name.into());
        self
    }

    #[must_use]
    pub(crate) fn with_retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// 400: the value of a field is not allowed.
    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidValue, message).with_field(field)
    }

    /// 403: the caller lacks this permission.
    pub(crate) fn permission_denied(permission: &str) -> Self {
        Self::new(
            ErrorCode::PermissionDenied,
            format!("this requires the permission {permission}"),
        )
    }

    /// 401.
    pub(crate) fn unauthenticated(message: &str) -> Self {
        Self::new(ErrorCode::Unauthenticated, message)
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no such {what}"))
    }

    /// 409: another object has the same unique value.
    pub(crate) fn duplicate(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Duplicate, message).with_field(field)
    }

    /// 409: another object refers to this one.
    pub(crate) fn in_use(message: &str) -> Self {
        Self::new(ErrorCode::InUse, message)
    }

    /// 409: no principal that can change the configuration would be left.
    pub(crate) fn last_administrator() -> Self {
        Self::new(
            ErrorCode::LastAdministrator,
            "nobody would be left who can log in and change the configuration",
        )
    }

    /// 503: too many passwords are being checked.
    pub(crate) fn busy() -> Self {
        Self::new(ErrorCode::Busy, "too many logins at the moment").with_retry_after(2)
    }

    /// 500; the reason was logged.
    pub(crate) fn internal() -> Self {
        Self::new(ErrorCode::Internal, "an internal error; see the log")
    }

    /// Maps an error of a report: 503 if all connections for reports are in use, 504 if
    /// its query took too long.
    pub(crate) fn of_report(error: DbError) -> Self {
        match error {
            DbError::Unavailable(Outage::NoConnection) => {
                Self::new(ErrorCode::Busy, "too many reports at the moment").with_retry_after(2)
            }
            slow if slow.is_timeout() => Self::new(
                ErrorCode::TooSlow,
                "the report took too long; choose a shorter period or another grouping",
            ),
            other => other.into(),
        }
    }

    /// Maps a missing row to a 404 that names the kind of object.
    pub(crate) fn of_row(what: &'static str) -> impl FnOnce(DbError) -> Self {
        move |error| match error {
            DbError::NotFound => Self::not_found(what),
            other => other.into(),
        }
    }

    /// Maps a violated reference to a 409 with this message.
    pub(crate) fn of_reference(message: &'static str) -> impl FnOnce(DbError) -> Self {
        move |error| match error {
            DbError::Reference { .. } => Self::in_use(message),
            other => other.into(),
        }
    }

    /// Maps a violated unique constraint to a 409 that names the field.
    pub(crate) fn of_unique(
        field: &'static str,
        message: &'static str,
    ) -> impl FnOnce(DbError) -> Self {
        move |error| match error {
            DbError::Duplicate { .. } => Self::duplicate(field, message),
            other => other.into(),
        }
    }
}

impl From<DbError> for ApiError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unavailable(reason) => {
                tracing::warn!(%reason, "the database is unavailable");
                Self::new(
                    ErrorCode::DatabaseUnavailable,
                    "the database is unavailable; nothing was changed",
                )
                .with_retry_after(1)
            }
            DbError::Duplicate { constraint } => Self::new(
                ErrorCode::Duplicate,
                format!("this value already exists ({constraint})"),
            ),
            DbError::Reference { constraint } => Self::new(
                ErrorCode::InUse,
                format!("a reference is violated ({constraint})"),
            ),
            DbError::Check { constraint } => Self::new(
                ErrorCode::InvalidValue,
                format!("a value is not allowed ({constraint})"),
            ),
            DbError::NotFound => Self::not_found("row"),
            DbError::Failed(reason) => {
                tracing::error!(reason = %Chain(&reason), "the database failed");
                Self::new(
                    ErrorCode::DatabaseFailed,
                    "the database failed; nothing was changed",
                )
            }
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        tracing::error!(error = %Chain(&error), "a request failed");
        Self::internal()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self {
            code,
            message,
            field,
            retry_after,
        } = self;
        let body = ErrorBody {
            error: message,
            code: code.as_str(),
            field,
        };
        let mut response = (code.status(), Json(body)).into_response();
        if let Some(seconds) = retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
