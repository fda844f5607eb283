use sqlx::error::ErrorKind;

/// What the database said, as far as callers decide by it. No text holds the
/// database's address or a value of a row.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    /// It cannot be reached, or has no free connection.
    #[error("unreachable: {0}")]
    Unavailable(String),
    /// A row with this name (or other unique value) is there already.
    #[error("already there ({constraint})")]
    Duplicate { constraint: String },
    /// A row that this one refers to is missing, or others refer to this one.
    #[error("a reference does not hold ({constraint})")]
    Reference { constraint: String },
    /// A value is out of its range.
    #[error("a value is not allowed ({constraint})")]
    Check { constraint: String },
    /// The row is not there.
    #[error("no such row")]
    NotFound,
    /// Everything else.
    #[error("{0}")]
    Failed(String),
}

impl DbError {
    /// Whether other values would do: the same statement fails again with these.
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
            sqlx::Error::PoolTimedOut => Self::Unavailable("no connection in time".to_owned()),
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
            // Decoding and protocol errors can repeat values of rows.
            other => Self::Failed(kind(&other).to_owned()),
        }
    }
}

/// Classes 08 (connection), 28 (authorisation), 3D000 (no such database), 53
/// (resources) and 57 (shutting down) say that the database is not there for us
/// now; 25006 is a standby, 42P01 a schema that is still to be migrated, and the
/// rest lost to somebody else's locks: all of them pass. Class 22 is a value that
/// cannot be stored, which the database's text would repeat.
fn from_code(code: &str, message: &str) -> DbError {
    let absent = ["08", "28", "53", "57"]
        .iter()
        .any(|class| code.starts_with(class));
    let passing = ["3D000", "25006", "42P01", "40001", "40P01", "55P03"];
    if absent || passing.contains(&code) {
        DbError::Unavailable(format!("refused (SQLSTATE {code})"))
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
        sqlx::Error::Configuration(_) => "the connection options are wrong",
        sqlx::Error::Protocol(_) => "an unexpected protocol message",
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => "a value cannot be read",
        sqlx::Error::Encode(_) => "a value cannot be written",
        _ => "an unexpected failure",
    }
}
