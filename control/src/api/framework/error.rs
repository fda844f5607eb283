use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Error;
use crate::db::DbError;

/// The body of every refusal and failure.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// For people.
    error: String,
    /// For programs; never changes for the same kind of failure.
    #[schema(example = "invalid_value")]
    code: &'static str,
    /// The field or parameter that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<String>,
}

/// Why a request is not answered as asked. The text is for the client; what
/// only the operator may know is logged where it is found.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    field: Option<String>,
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            field: None,
            retry_after: None,
        }
    }

    #[must_use]
    pub(crate) fn field(mut self, name: impl Into<String>) -> Self {
        self.field = Some(name.into());
        self
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// 400: a value of a field cannot be accepted.
    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).field(field)
    }

    /// 401.
    pub(crate) fn unauthenticated(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    /// 404 for a row.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no such {what}"),
        )
    }

    /// 409: the name or another unique value is taken.
    pub(crate) fn duplicate(field: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "duplicate", message).field(field)
    }

    /// 409: something still refers to it.
    pub(crate) fn in_use(message: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "in_use", message)
    }

    /// 409: nobody could administer any more.
    pub(crate) fn last_administrator() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "last_administrator",
            "this would leave nobody who can log in and change the configuration",
        )
    }

    /// 503: too much to do at the moment.
    pub(crate) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "too many logins at the moment",
        )
        .retry_after(2)
    }

    /// 500; the reason was logged.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "an internal error; see the log",
        )
    }

    /// A missing row says what it is, everything else as it is.
    pub(crate) fn of_row(what: &'static str) -> impl FnOnce(DbError) -> Self {
        move |error| match error {
            DbError::NotFound => Self::not_found(what),
            other => other.into(),
        }
    }

    /// What cannot be deleted says what refers to it.
    pub(crate) fn of_reference(message: &'static str) -> impl FnOnce(DbError) -> Self {
        move |error| match error {
            DbError::Reference { .. } => Self::in_use(message),
            other => other.into(),
        }
    }

    /// A taken unique value says which field it is.
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
                tracing::warn!(reason, "the database does not answer");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "database_unavailable",
                    "the database does not answer; nothing was changed",
                )
                .retry_after(1)
            }
            DbError::Duplicate { constraint } => Self::new(
                StatusCode::CONFLICT,
                "duplicate",
                format!("this is there already ({constraint})"),
            ),
            DbError::Reference { constraint } => Self::new(
                StatusCode::CONFLICT,
                "in_use",
                format!("a reference does not hold ({constraint})"),
            ),
            DbError::Check { constraint } => Self::new(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                format!("a value is not allowed ({constraint})"),
            ),
            DbError::NotFound => Self::not_found("row"),
            DbError::Failed(reason) => {
                tracing::error!(reason, "the database failed");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "database_failed",
                    "the database failed; nothing was changed",
                )
            }
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        tracing::error!(%error, "a request failed");
        Self::internal()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self {
            status,
            code,
            message,
            field,
            retry_after,
        } = self;
        let mut response = (
            status,
            Json(ErrorBody {
                error: message,
                code,
                field,
            }),
        )
            .into_response();
        if let Some(seconds) = retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
