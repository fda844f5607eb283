use std::io;

use sqlx::error::ErrorKind;

/// A database error, classified by what callers can do about it. No text contains
/// the database's address or a value of a row.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// The database is unreachable, or no connection is free.
    #[error("unreachable")]
    Unavailable(#[source] Outage),
    /// A row with this unique value exists already.
    #[error("duplicate value ({constraint})")]
    Duplicate {
        /// The violated constraint.
        constraint: String,
    },
    /// A referenced row does not exist, or other rows reference this one.
    #[error("foreign key violation ({constraint})")]
    Reference {
        /// The violated constraint.
        constraint: String,
    },
    /// A value is out of range.
    #[error("invalid value ({constraint})")]
    Check {
        /// The violated constraint, or the SQLSTATE.
        constraint: String,
    },
    /// The row does not exist.
    #[error("no such row")]
    NotFound,
    /// Any other error.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why the database is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum Outage {
    /// Reading or writing failed. The original error may contain the address.
    #[error("{0}")]
    Io(String),
    /// The peer sent something else than PostgreSQL's protocol.
    #[error("the peer does not respond like PostgreSQL: check host and port of the database URL")]
    Protocol,
    /// All connections of the pool are in use, or none can be opened.
    #[error("timed out waiting for a connection")]
    NoConnection,
    /// The pool is closed.
    #[error("shutting down")]
    ShuttingDown,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed")]
    Tls,
    /// The database rejected the connection or statement for the time being.
    #[error("rejected (SQLSTATE {0})")]
    Rejected(String),
}

/// Why a statement failed. The errors of the driver are not kept: those about decoding
/// and the protocol can contain values of rows.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The database rejected the statement.
    #[error("SQLSTATE {code}: {message}")]
    Statement {
        /// The SQLSTATE.
        code: String,
        /// The database's message.
        message: String,
    },
    /// The options of the connection are invalid.
    #[error("invalid connection options")]
    Options,
    /// A value of a row is not of the expected type.
    #[error("cannot decode a value")]
    Decode,
    /// A parameter cannot be sent.
    #[error("cannot encode a value")]
    Encode,
    /// A value cannot be serialized to be stored.
    #[error("cannot serialize {what}")]
    Serialize {
        /// What cannot be serialized.
        what: &'static str,
        /// The reason.
        source: serde_json::Error,
    },
    /// Any other failure of the driver.
    #[error("unexpected failure")]
    Other,
}

/// The SQLSTATE of a statement that was cancelled, such as by its timeout.
const CANCELED: &str = "57014";

impl DbError {
    /// Whether the statement took longer than its timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Unavailable(Outage::Rejected(code)) if code == CANCELED)
    }

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
            sqlx::Error::Io(error) => error.into(),
            sqlx::Error::Protocol(_) => Self::Unavailable(Outage::Protocol),
            sqlx::Error::PoolTimedOut => Self::Unavailable(Outage::NoConnection),
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(Outage::ShuttingDown)
            }
            sqlx::Error::Tls(_) => Self::Unavailable(Outage::Tls),
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
            other => Self::Failed(Failure::of_driver(&other)),
        }
    }
}

impl From<io::Error> for DbError {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(match error.kind() {
            // What follows an agreement on TLS is not TLS.
            io::ErrorKind::InvalidData => Outage::Protocol,
            _ => Outage::Io(io_reason(&error)),
        })
    }
}

/// The reason of an I/O error without its address: the operating system's text, or that
/// of the error's kind.
fn io_reason(error: &io::Error) -> String {
    /// How the standard library names a failed lookup, whose kind has no name.
    const LOOKUP: &str = "failed to lookup address information";
    if let Some(code) = error.raw_os_error() {
        return io::Error::from_raw_os_error(code).to_string();
    }
    if error.to_string().starts_with(LOOKUP) {
        return "the host name cannot be resolved".to_owned();
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer closed the connection".to_owned(),
        kind => kind.to_string(),
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
        DbError::Unavailable(Outage::Rejected(code.to_owned()))
    } else if code.starts_with("22") {
        DbError::Check {
            constraint: format!("SQLSTATE {code}"),
        }
    } else {
        DbError::Failed(Failure::Statement {
            code: code.to_owned(),
            message: message.to_owned(),
        })
    }
}

impl Failure {
    fn of_driver(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(_) => Self::Options,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Decode,
            sqlx::Error::Encode(_) => Self::Encode,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use fastllm_process::error::Chain;

    use super::*;

    /// The text with its sources, and the form for debugging.
    fn texts(error: sqlx::Error) -> String {
        let error = DbError::from(error);
        format!("{} {error:?}", Chain(&error))
    }

    #[test]
    fn an_error_of_the_driver_is_named_without_values_of_rows() {
        let canary = || Box::<dyn std::error::Error + Send + Sync>::from("canary");
        let decode = texts(sqlx::Error::ColumnDecode {
            index: "name".to_owned(),
            source: canary(),
        });
        for text in [
            decode,
            texts(sqlx::Error::Decode(canary())),
            texts(sqlx::Error::Encode(canary())),
            texts(sqlx::Error::Protocol("canary".to_owned())),
            texts(sqlx::Error::Tls(canary())),
            texts(sqlx::Error::Configuration(canary())),
            texts(sqlx::Error::Io(io::Error::other("canary"))),
        ] {
            assert!(!text.contains("canary"), "{text}");
        }
    }

    #[test]
    fn the_reason_of_an_outage_is_the_source() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = DbError::from(sqlx::Error::Io(refused));
        assert_eq!(Chain(&error).to_string(), "unreachable: connection refused");
    }

    #[tokio::test]
    async fn the_reason_of_an_io_error_is_named() {
        let unresolved = tokio::net::TcpStream::connect(("canary.invalid", 1)).await;
        for (error, reason) in [
            (unresolved.unwrap_err(), "the host name cannot be resolved"),
            (
                io::Error::from_raw_os_error(101),
                "Network is unreachable (os error 101)",
            ),
            (
                io::Error::new(io::ErrorKind::UnexpectedEof, "canary"),
                "the peer closed the connection",
            ),
        ] {
            let text = Chain(&DbError::from(error)).to_string();
            assert_eq!(text, format!("unreachable: {reason}"));
        }
    }
}
