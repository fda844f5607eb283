use std::borrow::Cow;

use fastllm_engine::EndpointIndex;
use fastllm_wire::{Measure, RequestSchema, StreamEnding};
use http::Method;
use percent_encoding::percent_decode_str;

/// The endpoints for clients with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint<'a> {
    /// `GET /v1/models`
    Models,
    /// `GET /v1/models/{id}`, with the id decoded.
    Model(Cow<'a, str>),
    /// Forwarded to an upstream.
    Proxied(ProxiedEndpoint),
}

/// The endpoints whose requests are forwarded to an upstream; all are `POST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxiedEndpoint {
    ChatCompletions,
    Completions,
    Responses,
    Embeddings,
    Rerank,
    Score,
    Transcriptions,
    Translations,
    Speech,
    ImageGenerations,
    ImageEdits,
    Moderations,
}

/// The format of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// JSON with the members of this schema.
    Json(RequestSchema),
    /// `multipart/form-data`.
    Form,
}

impl ProxiedEndpoint {
    const ALL: [Self; 12] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Embeddings,
        Self::Rerank,
        Self::Score,
        Self::Transcriptions,
        Self::Translations,
        Self::Speech,
        Self::ImageGenerations,
        Self::ImageEdits,
        Self::Moderations,
    ];

    /// Its number in routing decisions.
    pub(crate) fn index(self) -> EndpointIndex {
        EndpointIndex::new(self as u8)
    }

    /// The path below `/v1`, which is appended to an upstream's base URL.
    pub(crate) fn sub_path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Completions => "/completions",
            Self::Responses => "/responses",
            Self::Embeddings => "/embeddings",
            Self::Rerank => "/rerank",
            Self::Score => "/score",
            Self::Transcriptions => "/audio/transcriptions",
            Self::Translations => "/audio/translations",
            Self::Speech => "/audio/speech",
            Self::ImageGenerations => "/images/generations",
            Self::ImageEdits => "/images/edits",
            Self::Moderations => "/moderations",
        }
    }

    /// Whether its responses are text, so that their tokens can be estimated from
    /// their bytes.
    pub(crate) fn writes_text(self) -> bool {
        match self {
            Self::ChatCompletions
            | Self::Completions
            | Self::Responses
            | Self::Transcriptions
            | Self::Translations => true,
            Self::Embeddings
            | Self::Rerank
            | Self::Score
            | Self::Speech
            | Self::ImageGenerations
            | Self::ImageEdits
            | Self::Moderations => false,
        }
    }

    /// Whether its responses have completion tokens.
    pub(crate) fn has_completion(self) -> bool {
        !matches!(
            self,
            Self::Embeddings | Self::Rerank | Self::Score | Self::Moderations
        )
    }

    /// What its usage is measured in, besides tokens.
    pub(crate) fn measure(self) -> Measure {
        match self {
            Self::ImageGenerations | Self::ImageEdits => Measure::Images,
            Self::Transcriptions | Self::Translations => Measure::AudioInput,
            Self::Speech => Measure::AudioOutput,
            Self::ChatCompletions
            | Self::Completions
            | Self::Responses
            | Self::Embeddings
            | Self::Rerank
            | Self::Score
            | Self::Moderations => Measure::Tokens,
        }
    }

    /// How the end of a streamed response with this many choices is recognised.
    pub(crate) fn stream_ending(self, choices: u64) -> StreamEnding {
        match self {
            Self::ChatCompletions | Self::Completions => StreamEnding::Choices(choices),
            Self::Responses => StreamEnding::Response,
            Self::Transcriptions | Self::Translations | Self::Speech => StreamEnding::Audio,
            Self::ImageGenerations | Self::ImageEdits => StreamEnding::Image,
            Self::Embeddings | Self::Rerank | Self::Score | Self::Moderations => StreamEnding::Body,
        }
    }

    /// The format of its request body. The schema also decides whether the gateway
    /// may request usage.
    pub(crate) fn body(self) -> BodyKind {
        match self {
            Self::ChatCompletions => BodyKind::Json(RequestSchema::Chat),
            Self::Completions => BodyKind::Json(RequestSchema::Completion),
            Self::Responses => BodyKind::Json(RequestSchema::Response),
            Self::Speech => BodyKind::Json(RequestSchema::Speech),
            Self::ImageGenerations => BodyKind::Json(RequestSchema::Media),
            Self::Embeddings | Self::Rerank | Self::Score | Self::Moderations => {
                BodyKind::Json(RequestSchema::ModelOnly)
            }
            Self::Transcriptions | Self::Translations | Self::ImageEdits => BodyKind::Form,
        }
    }
}

impl<'a> Endpoint<'a> {
    /// Whether there is an endpoint at this path, with any method.
    pub(crate) fn is_at(path: &'a str) -> bool {
        [Method::POST, Method::GET]
            .iter()
            .any(|method| Self::find(method, path).is_some())
    }

    /// Finds the endpoint of a request; the prefix `/v1` is optional.
    pub(crate) fn find(method: &Method, path: &'a str) -> Option<Self> {
        let path = path
            .strip_prefix("/v1")
            .filter(|rest| rest.starts_with('/'))
            .unwrap_or(path);
        if *method == Method::POST {
            return ProxiedEndpoint::ALL
                .into_iter()
                .find(|proxied| proxied.sub_path() == path)
                .map(Self::Proxied);
        }
        let below = path
            .strip_prefix("/models")
            .filter(|_| *method == Method::GET)?;
        if below.is_empty() {
            return Some(Self::Models);
        }
        // A slash is part of the name, encoded or not.
        let id = below.strip_prefix('/').filter(|id| !id.is_empty())?;
        decoded(id).map(Self::Model)
    }
}

/// Decodes percent-encoding; nothing if it is incomplete or not UTF-8.
pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    let complete = text.as_bytes().split(|&byte| byte == b'%').skip(1);
    let complete = complete
        .map(|rest| rest.get(..2))
        .all(|digits| digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if !complete {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use fastllm_wire::RequestSchema;
    use http::Method;

    use super::{BodyKind, Endpoint, ProxiedEndpoint};

    fn find<'a>(method: &str, path: &'a str) -> Option<Endpoint<'a>> {
        Endpoint::find(&method.parse::<Method>().unwrap(), path)
    }

    #[test]
    fn the_prefix_is_optional_and_nothing_else_is() {
        for proxied in ProxiedEndpoint::ALL {
            let path = proxied.sub_path();
            for path in [path.to_owned(), format!("/v1{path}")] {
                assert_eq!(find("POST", &path), Some(Endpoint::Proxied(proxied)));
                for method in ["GET", "PUT", "HEAD"] {
                    assert_eq!(find(method, &path), None, "{path}");
                }
            }
            assert_eq!(find("POST", &format!("{path}/")), None);
            assert!(Endpoint::is_at(path) && !Endpoint::is_at(&format!("{path}/")));
        }
        for path in ["/v1/models", "/models"] {
            assert_eq!(find("GET", path), Some(Endpoint::Models));
            assert_eq!(find("POST", path), None);
        }
        for path in [
            "/v1",
            "/v1models",
            "/v1/v1/models",
            "/v2/models",
            "/models/",
            "/modelsx",
            "/",
            "",
        ] {
            assert_eq!(find("GET", path), None, "{path}");
        }
    }

    #[test]
    fn a_models_id_may_hold_slashes_and_be_encoded() {
        for (path, id) in [
            ("/v1/models/m", "m"),
            ("/models/org/m", "org/m"),
            ("/v1/models/org%2Fm", "org/m"),
            ("/v1/models/org%2fm%3Av1%20%C3%A9", "org/m:v1 é"),
            ("/v1/models/a%2525", "a%25"),
            ("/v1/models//", "/"),
        ] {
            assert_eq!(
                find("GET", path),
                Some(Endpoint::Model(id.into())),
                "{path}"
            );
            assert_eq!(find("DELETE", path), None);
        }
        for path in ["/models/%", "/models/%2", "/models/%+1", "/models/%FF"] {
            assert_eq!(find("GET", path), None, "{path}");
        }
    }

    #[test]
    fn uploads_are_forms_and_usage_is_requested_for_completions_only() {
        let of = |kind| {
            ProxiedEndpoint::ALL
                .into_iter()
                .filter(|proxied| proxied.body() == kind)
                .map(ProxiedEndpoint::sub_path)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(BodyKind::Form),
            [
                "/audio/transcriptions",
                "/audio/translations",
                "/images/edits"
            ]
        );
        assert_eq!(
            of(BodyKind::Json(RequestSchema::Chat)),
            ["/chat/completions"]
        );
        assert_eq!(
            of(BodyKind::Json(RequestSchema::Completion)),
            ["/completions"]
        );
    }
}
