use fastllm_contract::HealthCheck;
use http::Method;
use http::uri::PathAndQuery;

use super::target::{Location, is_path};

/// The health probe of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    method: Method,
    target: PathAndQuery,
    expect: ExpectedStatuses,
}

/// The statuses of a healthy backend.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedStatuses(Vec<(u16, u16)>);

/// Why a health check is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHealthCheck {
    /// Not a path.
    #[error("health_path must be a path that begins with /, without a query")]
    Path,
    /// Not a safe method.
    #[error("health_method must be GET, HEAD or POST")]
    Method,
    /// Not a list of statuses.
    #[error("health_expect must be statuses and classes such as 2xx,401")]
    Expect,
}

impl Probe {
    /// Parses a health check; `None` if it is disabled.
    pub(super) fn of(
        described: &HealthCheck,
        location: &Location,
    ) -> Result<Option<Self>, InvalidHealthCheck> {
        let parsed = ParsedHealthCheck::parse(described)?;
        if !described.enabled {
            return Ok(None);
        }
        let target = location
            .beside(&described.path)
            .ok_or(InvalidHealthCheck::Path)?;
        Ok(Some(Self {
            method: parsed.method,
            target,
            expect: parsed.expect,
        }))
    }

    /// The request's method. Its body is empty.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The request's target, query included.
    pub fn target(&self) -> &PathAndQuery {
        &self.target
    }

    /// Whether a response with this status means healthy.
    pub fn expects(&self, status: u16) -> bool {
        let ExpectedStatuses(ranges) = &self.expect;
        ranges
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&status))
    }
}

struct ParsedHealthCheck {
    method: Method,
    expect: ExpectedStatuses,
}

impl ParsedHealthCheck {
    fn parse(described: &HealthCheck) -> Result<Self, InvalidHealthCheck> {
        let HealthCheck {
            enabled: _,
            path,
            method,
            expect,
        } = described;
        if !path.starts_with('/') || !is_path(path) {
            return Err(InvalidHealthCheck::Path);
        }
        let method = match method.as_str() {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            "POST" => Method::POST,
            _ => return Err(InvalidHealthCheck::Method),
        };
        Ok(Self {
            method,
            expect: ExpectedStatuses::parse(expect).ok_or(InvalidHealthCheck::Expect)?,
        })
    }
}

/// Checks that a health check is valid.
pub fn check_health_check(described: &HealthCheck) -> Result<(), InvalidHealthCheck> {
    ParsedHealthCheck::parse(described).map(|_| ())
}

impl ExpectedStatuses {
    fn parse(text: &str) -> Option<Self> {
        let ranges = text.split(',').map(|part| range(part.trim()));
        ranges.collect::<Option<_>>().map(Self)
    }
}

/// The statuses of `2xx` or `200`.
fn range(text: &str) -> Option<(u16, u16)> {
    let class = |hundreds: u16| (1..=5).contains(&hundreds);
    if let Some(hundreds) = text.strip_suffix("xx") {
        let hundreds: u16 = hundreds.parse().ok().filter(|hundreds| class(*hundreds))?;
        return Some((hundreds * 100, hundreds * 100 + 99));
    }
    let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let status: u16 = text.parse().ok().filter(|status| class(status / 100))?;
    digits.then_some((status, status))
}

#[cfg(test)]
mod tests {
    use super::{ExpectedStatuses, range};

    #[test]
    fn statuses_and_classes_are_parsed() {
        assert_eq!(range("2xx"), Some((200, 299)));
        assert_eq!(range("401"), Some((401, 401)));
        for wrong in [
            "", "xx", "6xx", "0xx", "+2xx0", "20", "2000", "600", "2XX", "+20",
        ] {
            assert_eq!(range(wrong), None, "{wrong}");
        }
        assert_eq!(
            ExpectedStatuses::parse("200, 3xx"),
            Some(ExpectedStatuses(vec![(200, 200), (300, 399)]))
        );
        assert_eq!(ExpectedStatuses::parse("200,"), None);
    }
}
