use http::Method;

/// What clients with a key can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `GET /v1/models`
    Models,
}

impl Endpoint {
    const ALL: [Self; 2] = [Self::ChatCompletions, Self::Models];

    /// The path below `/v1`, which is what an upstream's address is followed by.
    pub(crate) fn sub_path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Models => "/models",
        }
    }

    fn method(self) -> Method {
        match self {
            Self::ChatCompletions => Method::POST,
            Self::Models => Method::GET,
        }
    }

    /// Looks up a request; `/v1` in front is optional.
    pub(crate) fn find(method: &Method, path: &str) -> Option<Self> {
        let path = path
            .strip_prefix("/v1")
            .filter(|rest| rest.starts_with('/'))
            .unwrap_or(path);
        Self::ALL
            .into_iter()
            .find(|endpoint| endpoint.sub_path() == path && endpoint.method() == *method)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::Endpoint;

    #[test]
    fn the_prefix_is_optional_and_nothing_else_is() {
        let find = |method: &str, path| Endpoint::find(&method.parse::<Method>().unwrap(), path);
        for path in ["/v1/chat/completions", "/chat/completions"] {
            assert_eq!(find("POST", path), Some(Endpoint::ChatCompletions));
            assert_eq!(find("GET", path), None);
        }
        for path in ["/v1/models", "/models"] {
            assert_eq!(find("GET", path), Some(Endpoint::Models));
        }
        for path in [
            "/v1",
            "/v1models",
            "/v1/v1/models",
            "/v2/models",
            "/models/",
            "/",
            "",
        ] {
            assert_eq!(find("GET", path), None, "{path}");
        }
    }
}
