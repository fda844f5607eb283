use sqlx::error::ErrorKind;

/// A database error, classified by what callers can do about it. No text contains
/// the database's address or a value of a row.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    /// The database is unreachable, or no connection is free.
    #[error("unreachable: {0}")]
    Unavailable(String),
    /// A row with this unique value exists already.
    #[error("duplicate value ({constraint})")]
    Duplicate { constraint: String },
    /// A referenced row does not exist, or other rows reference this one.
    #[error("foreign key violation ({constraint})")]
    Reference { constraint: String },
    /// A value is out of range.
    #[error("invalid value ({constraint})")]
    Check { constraint: String },
    /// The row does not exist.
    #[error("no such row")]
    NotFound,
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

impl DbError {
    /// Whether the values caused the error, so that retrying with them is useless.
    pub(crate) fn is_about_values(&self) -> bool {
        matches!(
            self,
            Self::Check { .. } | Self::Duplicate { .. } | Self::Reference { .. }
        )
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::RowNotFound => Self::NotFound,
            sqlx::Error::Io(error) => Self::Unavailable(error.kind().to_string()),
            sqlx::Error::PoolTimedOut => {
                Self::Unavailable("timed out waiting for a connection".to_owned())
            }
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Unavailable("shutting down".to_owned())
            }
            sqlx::Error::Tls(_) => Self::Unavailable("the TLS handshake failed".to_owned()),
            sqlx::Error::Database(error) => {
                let constraint = error.constraint().unwrap_or_default().to_owned();
                match error.kind() {
                    ErrorKind::UniqueViolation => Self::Duplicate { constraint },
                    ErrorKind::ForeignKeyViolation => Self::Reference { constraint },
                    ErrorKind::CheckViolation | ErrorKind::NotNullViolation => {
                        Self::Check { constraint }
                    }
                    _ => from_code(error.code().as_deref().unwrap_or("?"), error.message()),
                }
            }
            // Decoding and protocol errors can contain values of rows.
            other => Self::Failed(kind(&other).to_owned()),
        }
    }
}

/// Temporary: classes 08 (connection), 28 (authorization), 53 (resources) and 57
/// (shutting down), and the codes 3D000 (no such database), 25006 (a standby),
/// 42P01 (not migrated yet), 40001, 40P01 and 55P03 (lock conflicts). Class 22 is a
/// value that cannot be stored; the database's message would contain it.
fn from_code(code: &str, message: &str) -> DbError {
    let absent = ["08", "28", "53", "57"]
        .iter()
        .any(|class| code.starts_with(class));
    let temporary = ["3D000", "25006", "42P01", "40001", "40P01", "55P03"];
    if absent || temporary.contains(&code) {
        DbError::Unavailable(format!("rejected (SQLSTATE {code})"))
    } else if code.starts_with("22") {
        DbError::Check {
            constraint: format!("SQLSTATE {code}"),
        }
    } else {
        DbError::Failed(format!("SQLSTATE {code}: {message}"))
    }
}

fn kind(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Configuration(_) => "invalid connection options",
        sqlx::Error::Protocol(_) => "unexpected protocol message",
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => "cannot decode a value",
        sqlx::Error::Encode(_) => "cannot encode a value",
        _ => "unexpected failure",
    }
}
