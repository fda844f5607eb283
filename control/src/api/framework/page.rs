use axum::Json;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::error::ApiError;
use crate::db::Page;

/// The maximum and default number of rows in a response.
const MAX_ROWS: i64 = 1000;

/// The requested part of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// The maximum number of results, from 1 to 1000 (the default).
    limit: Option<i64>,
    /// Return only objects with a greater ID.
    after: Option<i64>,
}

impl ListParams {
    /// The requested part of the list.
    pub(crate) fn page(&self) -> Result<Page, ApiError> {
        whole(self.limit, self.after)
    }
}

/// Checks `limit` and `after`.
pub(crate) fn page(limit: Option<i64>, default: i64, after: Option<i64>) -> Result<Page, ApiError> {
    let limit = limit.unwrap_or(default);
    if !(1..=MAX_ROWS).contains(&limit) {
        return Err(ApiError::invalid(
            "limit",
            format!("limit must be from 1 to {MAX_ROWS}"),
        ));
    }
    Ok(Page { after, limit })
}

/// Checks `limit` and `after` of a list that is returned in full by default.
pub(crate) fn whole(limit: Option<i64>, after: Option<i64>) -> Result<Page, ApiError> {
    page(limit, MAX_ROWS, after)
}

/// A JSON array, with `Link: <…>; rel="next"` if there may be more rows. `cursor` is
/// the parameter that continues the list: `after`, or `before` for lists with the
/// newest rows first. Each row comes with its ID.
pub(crate) fn respond<T: Serialize>(
    uri: &Uri,
    page: Page,
    cursor: &str,
    rows: impl Iterator<Item = (i64, T)>,
) -> Response {
    let (ids, rows): (Vec<i64>, Vec<T>) = rows.unzip();
    let full = i64::try_from(ids.len()).is_ok_and(|count| count == page.limit);
    let next = ids
        .last()
        .filter(|_| full)
        .map(|last| next_link(uri, cursor, *last));
    let mut response = Json(rows).into_response();
    if let Some(link) = next.and_then(|link| HeaderValue::from_str(&link).ok()) {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

fn next_link(uri: &Uri, cursor: &str, last: i64) -> String {
    let others = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(cursor));
    let query: Vec<String> = others
        .map(str::to_owned)
        .chain([format!("{cursor}={last}")])
        .collect();
    format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_link_keeps_other_parameters() {
        let uri: Uri = "/admin/keys?limit=2&after=5&principal_id=1"
            .parse()
            .unwrap();
        assert_eq!(
            next_link(&uri, "after", 9),
            "</admin/keys?limit=2&principal_id=1&after=9>; rel=\"next\""
        );
    }

    #[test]
    fn limit_is_bounded() {
        assert!(whole(Some(0), None).is_err());
        assert!(whole(Some(1001), None).is_err());
        assert_eq!(whole(None, Some(3)).unwrap().limit, MAX_ROWS);
    }
}
