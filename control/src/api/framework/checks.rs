//! Checks of values that several resources have.

use std::fmt::Display;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use super::error::ApiError;
use crate::name::{self, is_invisible};

/// The maximum length of an email address in SMTP, in bytes.
const MAX_EMAIL: usize = 254;
pub(crate) const MAX_TEXT: usize = 2048;

/// Names of principals, roles and keys.
pub(crate) fn name(field: &str, text: String) -> Result<String, ApiError> {
    match name::check(&text) {
        Ok(()) => Ok(text),
        Err(error) => Err(ApiError::invalid(field, format!("{field} {error}"))),
    }
}

/// An email address, by its form only.
pub(crate) fn email(field: &str, text: String) -> Result<String, ApiError> {
    let is_part = |part: &str| {
        let is_odd = |it: char| it.is_control() || it.is_whitespace() || is_invisible(it);
        !part.is_empty() && !part.contains(is_odd)
    };
    let is_address = text.rsplit_once('@').is_some_and(|(mailbox, domain)| {
        let labels = domain.split('.').all(|label| !label.is_empty());
        is_part(mailbox) && is_part(domain) && !mailbox.contains('@') && labels
    });
    if !is_address || text.len() > MAX_EMAIL {
        return Err(ApiError::invalid(
            field,
            format!("{field} must be an address like name@example.com; null clears it"),
        ));
    }
    Ok(text)
}

/// Free text, such as descriptions.
pub(crate) fn text(field: &str, value: String) -> Result<String, ApiError> {
    if value.len() > MAX_TEXT {
        return Err(ApiError::invalid(
            field,
            format!("{field} may have at most {MAX_TEXT} bytes"),
        ));
    }
    if value.contains('\0') {
        return Err(ApiError::invalid(
            field,
            format!("{field} must not contain the character U+0000"),
        ));
    }
    Ok(value)
}

/// A number within bounds, both included.
pub(crate) fn between<T: PartialOrd + Display + Copy>(
    least: T,
    most: T,
) -> impl Fn(&'static str, T) -> Result<T, ApiError> {
    move |field, value| {
        if value < least || value > most {
            return Err(ApiError::invalid(
                field,
                format!("{field} must be from {least} to {most}"),
            ));
        }
        Ok(value)
    }
}

/// A number that may be zero.
pub(crate) fn not_negative(field: &'static str, value: i64) -> Result<i64, ApiError> {
    if value < 0 {
        return Err(ApiError::invalid(
            field,
            format!("{field} must be 0 or more"),
        ));
    }
    Ok(value)
}

/// A number of 1 or more.
pub(crate) fn positive<T: PartialOrd + From<u8>>(
    field: &'static str,
    value: T,
) -> Result<T, ApiError> {
    if value < T::from(1) {
        return Err(ApiError::invalid(
            field,
            format!("{field} must be 1 or more"),
        ));
    }
    Ok(value)
}

/// A time, converted to UTC, within the years that RFC 3339 can express.
pub(crate) fn time(field: &str, text: &str) -> Result<OffsetDateTime, ApiError> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .and_then(|at| at.checked_to_offset(UtcOffset::UTC))
        .filter(|at| (1..=9999).contains(&at.year()))
        .ok_or_else(|| {
            ApiError::invalid(
                field,
                format!("{field} must be a time like 2030-01-31T00:00:00Z"),
            )
        })
}
