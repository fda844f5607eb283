//! The response cache: which requests use it, what is stored of a response, and
//! what a client gets of a cached one.

use std::sync::Arc;

use fastllm_contract::ModelName;
use fastllm_engine::{
    CacheKey, CacheKeyBuilder, CacheLimits, CacheScope, CacheUsage, CachedResponse, Caller, Chain,
    ModelCaching, ResponseCache, ResponseCapture,
};
use fastllm_wire::http1::{HeaderField, HeaderFields};
use fastllm_wire::json::Object;
use fastllm_wire::{Members, Segment, Splice};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Response};

use crate::http::{
    CACHE, ClientFields, ClientQuery, ForwardedFields, Head, LocalResponse, ProxiedEndpoint,
    REQUEST_ID, RateLimitFields,
};
use crate::request_log::{RequestLog, UsageSummary};
use crate::runtime::clock;
use crate::telemetry::CacheUse;

/// The value with which a client skips the cache.
const SKIP: &[u8] = b"skip";

/// The longest request body that is looked up or cached, in bytes: hashing a
/// longer one would delay the other requests of its thread.
const MAX_BODY_BYTES: usize = 1 << 20;

/// The header fields that are cached if they are forwarded: those that describe
/// the body, and the release of the model. All others belong to one request: its ID, its time, the
/// limits and cookies of its caller.
const KEPT_FIELDS: [HeaderName; 5] = [
    http::header::CONTENT_TYPE,
    http::header::CONTENT_ENCODING,
    http::header::CONTENT_LANGUAGE,
    http::header::CONTENT_DISPOSITION,
    HeaderName::from_static("openai-version"),
];

type ResponseEntries = ResponseCache<UsageSummary>;

/// A cached response, with its usage.
pub(crate) type Hit = CachedResponse<UsageSummary>;

/// What the cache may hold. It is off where one of the bounds is zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) max_entries: u64,
    pub(crate) max_bytes: u64,
    /// Principals share cached responses.
    pub(crate) shared: bool,
}

impl Config {
    pub(crate) fn build(self) -> Arc<CachedResponses> {
        let bounds = CacheLimits {
            entries: self.max_entries,
            bytes: self.max_bytes,
        };
        Arc::new(CachedResponses {
            entries: ResponseCache::new(bounds),
            shared: self.shared,
        })
    }
}

/// The cached responses of this process.
#[derive(Debug)]
pub(crate) struct CachedResponses {
    entries: Option<ResponseEntries>,
    /// Principals share cached responses.
    shared: bool,
}

/// What a request is cached by, whichever backend gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheableRequest<'a> {
    pub(crate) endpoint: ProxiedEndpoint,
    pub(crate) client: ClientFields<'a>,
    pub(crate) query: ClientQuery<'a>,
    pub(crate) members: &'a Members,
    pub(crate) body: &'a [u8],
}

/// A response that may be cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheableResponse<'a> {
    /// The model that generates it.
    pub(crate) model: &'a ModelName,
    pub(crate) fields: HeaderFields<'a>,
    /// Which of them clients see.
    pub(crate) forwarded: ForwardedFields,
    /// The length of the body, where it is known.
    pub(crate) length: Option<u64>,
}

impl CachedResponses {
    /// What the cache holds.
    pub(crate) fn occupancy(&self) -> CacheUsage {
        let entries = self.entries.as_ref();
        entries.map(ResponseCache::usage).unwrap_or_default()
    }

    /// How the cache applies to a request; `None` if none of the models of
    /// its chain is cached, or the client opts out.
    pub(crate) fn policy(
        self: &Arc<Self>,
        caller: &Caller,
        chain: &Chain,
        head: &Head,
        request: &CacheableRequest<'_>,
    ) -> Option<Box<CachePolicy>> {
        let CacheableRequest {
            endpoint,
            client: _,
            query: _,
            members,
            body,
        } = *request;
        let wanted = chain.pools().iter().any(|pool| pool.caching().is_some());
        if !wanted || self.entries.is_none() {
            return None;
        }
        let in_one_piece = !members.is_stream() && members.form_type().is_none();
        if !in_one_piece || body.len() > MAX_BODY_BYTES || extends_conversation(endpoint, body) {
            return None;
        }
        let may_look_up = match CacheControl::of(head) {
            CacheControl::Allow => true,
            CacheControl::NoCache => false,
            CacheControl::NoStore => return None,
        };
        // Boxed, since few requests have a policy and all would be larger by it.
        Some(Box::new(CachePolicy {
            cached: Arc::clone(self),
            audience: CacheScope::of(caller, self.shared),
            may_look_up,
            looked_up: None,
        }))
    }
}

/// What a client requests of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheControl {
    /// A cached response is fine.
    Allow,
    /// The response must not come from the cache, but may be cached.
    NoCache,
    /// The response must neither come from the cache nor be cached.
    NoStore,
}

impl CacheControl {
    fn of(head: &Head) -> Self {
        let fields = head.fields();
        let skips = fields
            .all(CACHE)
            .any(|value| value.trim_ascii().eq_ignore_ascii_case(SKIP));
        if skips || has_directive(fields, b"no-store") {
            Self::NoStore
        } else if has_directive(fields, b"no-cache") {
            Self::NoCache
        } else {
            Self::Allow
        }
    }
}

/// Whether `cache-control` has this directive, with or without a value.
fn has_directive(fields: HeaderFields<'_>, directive: &[u8]) -> bool {
    let mut given = fields
        .all("cache-control")
        .flat_map(|value| value.split(|byte| *byte == b','));
    given.any(|given| {
        let name = given.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(directive)
    })
}

/// Whether the request adds a turn to a conversation that the upstream stores,
/// so that its repetition is a different request.
fn extends_conversation(endpoint: ProxiedEndpoint, body: &[u8]) -> bool {
    let members = Object::open(body)
        .ok()
        .filter(|_| endpoint == ProxiedEndpoint::Responses);
    members
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .any(|member| &*member.name == b"conversation" && member.value != b"null")
}

/// How the cache applies to one request.
#[derive(Debug)]
pub(crate) struct CachePolicy {
    cached: Arc<CachedResponses>,
    audience: CacheScope,
    /// The response may come from the cache.
    may_look_up: bool,
    /// The key that was looked up.
    looked_up: Option<CacheKey>,
}

impl CachePolicy {
    /// The cached response of the first model of the chain.
    pub(crate) fn look_up(
        &mut self,
        chain: &Chain,
        request: &CacheableRequest<'_>,
        log: &mut RequestLog,
    ) -> Option<Arc<Hit>> {
        let entries = self.cached.entries.as_ref().filter(|_| self.may_look_up)?;
        let pool = chain.pools().first()?;
        let key = self.key(pool.caching()?, pool.model(), request);
        self.looked_up = Some(key);
        let hit = entries.get(&key, clock::timestamp());
        log.record_cache_lookup(pool.model(), hit.is_some());
        hit
    }

    /// The key of this model's response.
    fn key(
        &self,
        caching: &ModelCaching,
        model: &ModelName,
        request: &CacheableRequest<'_>,
    ) -> CacheKey {
        let CacheableRequest {
            endpoint,
            client,
            query,
            members,
            body,
        } = *request;
        let mut key = CacheKeyBuilder::new(caching, endpoint.sub_path(), &self.audience);
        for (name, value) in client.deciding() {
            key.header(name, value);
        }
        for pair in query.pairs() {
            key.query_parameter(pair);
        }
        // The same key for each name of the model.
        let splice = Splice::new(members).model(model.as_str());
        key.finish(splice.pieces(body.len()).map(|piece| match piece {
            Segment::Original(range) => body.get(range).unwrap_or_default(),
            Segment::Inserted(bytes) => bytes,
        }))
    }

    /// Starts to cache a response that has begun; `None` if it must not be
    /// cached.
    pub(crate) fn begin_entry(
        &self,
        chain: &Chain,
        request: &CacheableRequest<'_>,
        response: &CacheableResponse<'_>,
    ) -> Option<PendingEntry> {
        let CacheableResponse {
            model,
            fields,
            forwarded,
            length,
        } = *response;
        let private = [b"no-store".as_slice(), b"private"];
        if private
            .iter()
            .any(|directive| has_directive(fields, directive))
            || fields.get("set-cookie").is_some()
        {
            return None;
        }
        let mut pools = chain.pools().iter().enumerate();
        let (index, pool) = pools.find(|(_, pool)| pool.model() == model)?;
        let caching = pool.caching()?;
        let key = match self.looked_up.filter(|_| index == 0) {
            Some(key) => key,
            None => self.key(caching, pool.model(), request),
        };
        let entries = self.cached.entries.as_ref()?;
        Some(PendingEntry {
            cached: Arc::clone(&self.cached),
            capture: entries.begin_capture(key, caching, length)?,
            fields: kept_fields(forwarded.on(fields))?,
        })
    }
}

fn kept_fields<'b>(forwarded: impl Iterator<Item = HeaderField<'b>>) -> Option<HeaderMap> {
    let mut kept = HeaderMap::new();
    for field in forwarded {
        if let Some(name) = KEPT_FIELDS.iter().find(|name| field.is(name.as_str())) {
            kept.append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
    }
    Some(kept)
}

/// A response that is cached once it is complete.
#[derive(Debug)]
pub(crate) struct PendingEntry {
    cached: Arc<CachedResponses>,
    capture: ResponseCapture,
    fields: HeaderMap,
}

impl PendingEntry {
    /// Takes a part of the body; `None` if the response is now too large.
    #[must_use]
    pub(crate) fn take(mut self, part: &[u8]) -> Option<Self> {
        self.capture.push(part)?;
        Some(self)
    }

    /// Caches the complete response. False where it must not be cached.
    pub(crate) fn complete(self, usage: UsageSummary) -> bool {
        let Self {
            cached,
            capture,
            fields,
        } = self;
        let Some(entries) = &cached.entries else {
            return false;
        };
        is_final(capture.body()) && entries.insert(capture, fields, usage, clock::timestamp())
    }
}

/// Whether a response is final and no error: some engines report errors with
/// status 200, and some responses describe work that continues. A body that is
/// not a JSON object is final.
fn is_final(body: &[u8]) -> bool {
    const UNFINISHED: [&[u8]; 4] = [
        b"\"queued\"",
        b"\"in_progress\"",
        b"\"failed\"",
        b"\"cancelled\"",
    ];
    let Ok(mut members) = Object::open(body) else {
        return !body.is_empty();
    };
    members.all(|member| match member {
        Ok(member) => match &*member.name {
            b"error" => member.value == b"null",
            b"status" => !UNFINISHED.contains(&member.value),
            _ => true,
        },
        Err(_) => false,
    })
}

/// The response to a client; ends the log of its request.
pub(crate) fn cached_response(hit: &Hit, log: Box<RequestLog>) -> LocalResponse {
    let mut response = Response::new(hit.body().clone());
    let headers = response.headers_mut();
    headers.clone_from(hit.headers());
    headers.insert(REQUEST_ID, log.request_id().clone());
    headers.insert(CACHE, HeaderValue::from_static(CacheUse::Hit.as_str()));
    if let Some(rates) = log.rates().and_then(RateLimitFields::of) {
        headers.extend(rates.named());
    }
    log.finish_cached(*hit.attachment());
    response
}

#[cfg(test)]
mod tests {
    use super::{CacheControl, extends_conversation, is_final};
    use crate::http::{Head, ProxiedEndpoint};

    #[test]
    fn cache_control_of_the_client_is_respected() {
        for (lines, wish) in [
            ("", CacheControl::Allow),
            ("cache-control: max-age=0\r\n", CacheControl::Allow),
            (
                "cache-control: no-transform, NO-CACHE\r\n",
                CacheControl::NoCache,
            ),
            ("cache-control: no-cache=\"a\"\r\n", CacheControl::NoCache),
            (
                "cache-control: no-cache, no-store\r\n",
                CacheControl::NoStore,
            ),
            (
                "cache-control: a\r\ncache-control: no-store\r\n",
                CacheControl::NoStore,
            ),
            ("x-fastllm-cache: Skip\r\n", CacheControl::NoStore),
            ("x-fastllm-cache: hit\r\n", CacheControl::Allow),
            ("pragma: no-cache\r\n", CacheControl::Allow),
        ] {
            assert_eq!(CacheControl::of(&Head::with(lines)), wish, "{lines}");
        }
    }

    #[test]
    fn turns_of_stored_conversations_are_not_cached() {
        let body = b"{\"model\":\"m\",\"conversation\":\"conv_1\"}";
        assert!(extends_conversation(ProxiedEndpoint::Responses, body));
        assert!(!extends_conversation(
            ProxiedEndpoint::ChatCompletions,
            body
        ));
        for other in [
            "{\"model\":\"m\",\"conversation\":null}",
            "{\"a\":{\"conversation\":1}}",
        ] {
            assert!(!extends_conversation(
                ProxiedEndpoint::Responses,
                other.as_bytes()
            ));
        }
    }

    #[test]
    fn errors_and_unfinished_responses_are_not_final() {
        for (body, is) in [
            ("{\"choices\":[]}", true),
            ("{\"error\":null,\"status\":\"completed\"}", true),
            ("{\"status\":\"incomplete\"}", true),
            ("{\"a\":{\"error\":{}}}", true),
            ("[1]", true),
            ("ID3\u{4}", true),
            ("", false),
            ("{\"error\":{\"message\":\"m\"}}", false),
            ("{\"a\":1,\"error\":\"m\"}", false),
            ("{\"status\":\"queued\"}", false),
            ("{\"status\":\"in_progress\"}", false),
            ("{\"status\":\"failed\"}", false),
            ("{\"choices\":[", false),
        ] {
            assert_eq!(is_final(body.as_bytes()), is, "{body}");
        }
    }
}
