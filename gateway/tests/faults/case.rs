//! A case of the table: what an upstream does, and what everybody has to see.

use fastllm_contract::{ModelName, RefusalKind, UsageEvent};
use serde_json::Value;

use crate::client::{ParsedResponse, TestProtocol};
use crate::counters::{MetricCounters, add, counters, finished, until_counted};
use crate::support::{Barrier, Options, Step, TestGateway, Upstream, backend, content};

/// A request for a stream of events.
pub(crate) const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";
/// One for a stream with its usage.
pub(crate) const ASKING: &str =
    "{\"model\":\"small\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
/// One for an answer in one piece.
pub(crate) const WHOLE: &str = "{\"model\":\"small\"}";

pub(crate) const ONE: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
pub(crate) const TWO: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"\u{e9}\u{65e5}\u{1f980}\"}}]}\n\n";
/// Holds [`USED`].
pub(crate) const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";
pub(crate) const JSON: &str = "{\"choices\":[{\"message\":{\"content\":\"\u{e9}\"}}],\
\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}";
/// Prompt and completion tokens.
pub(crate) const USED: (u64, u64) = (11, 5);

/// The longest that floods may go on where nobody takes them: what the kernel
/// holds for four sockets, and the gateway.
pub(crate) const HELD: usize = 40 << 20;

/// What the client has to see.
#[derive(Debug, Clone)]
enum ExpectedView {
    /// This status and exactly this body, complete.
    ParsedResponse(u16, Vec<u8>),
    /// An error of the gateway's own: status and code.
    Refusal(u16, &'static str),
    /// These bytes of a stream, and then an event that tells of the break.
    ControlReceived(Vec<u8>),
    /// Nothing that could be taken for a whole answer: of these bytes, a
    /// beginning.
    Broken(Vec<u8>),
}

/// One case. It begins with an upstream that does as its script says, and
/// [`Case::shows`] and its like say what has to be seen.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    request: &'static str,
    script: Vec<Step>,
    backup: Option<Vec<Step>>,
    hasty: bool,
    flags: Vec<&'static str>,
    barrier: Option<(usize, Barrier)>,
    view: ExpectedView,
    outcome: Option<&'static str>,
    used: Option<(u64, u64)>,
    first_event: bool,
    hangs_up: bool,
}

impl Case {
    /// A case of this request.
    pub(crate) fn of(request: &'static str, script: impl IntoIterator<Item = Step>) -> Self {
        Self {
            request,
            script: script.into_iter().collect(),
            backup: None,
            hasty: false,
            flags: Vec::new(),
            barrier: None,
            view: ExpectedView::Broken(Vec::new()),
            outcome: None,
            used: None,
            first_event: false,
            hangs_up: false,
        }
    }

    /// A case of a streamed request whose answer begins with an event.
    pub(crate) fn streamed(script: impl IntoIterator<Item = Step>) -> Self {
        Self {
            first_event: true,
            ..Self::of(STREAMED, script)
        }
    }

    /// A case of an unstreamed request.
    pub(crate) fn whole(script: impl IntoIterator<Item = Step>) -> Self {
        Self::of(WHOLE, script)
    }

    /// The answer shows no event.
    pub(crate) fn without_event(self) -> Self {
        Self {
            first_event: false,
            ..self
        }
    }

    /// Another request with the same upstream.
    pub(crate) fn request(self, request: &'static str) -> Self {
        Self { request, ..self }
    }

    /// There is a fallback model, whose upstream does this.
    pub(crate) fn backup(self, script: Vec<Step>) -> Self {
        Self {
            backup: Some(script),
            ..self
        }
    }

    /// The upstream answers before it has read the body of a request.
    pub(crate) fn hasty(self) -> Self {
        Self {
            hasty: true,
            ..self
        }
    }

    pub(crate) fn flag(mut self, flag: &'static str) -> Self {
        self.flags.push(flag);
        self
    }

    /// The gate opens when the client has so many bytes of the body, or, where
    /// they are none, the head.
    pub(crate) fn opens(self, barrier: &Barrier, at: usize) -> Self {
        Self {
            barrier: Some((at, barrier.clone())),
            ..self
        }
    }

    /// The client gets exactly this, under 200.
    pub(crate) fn shows<T: AsRef<[u8]>>(self, parts: &[T]) -> Self {
        self.answers(200, &joined(parts))
    }

    /// The client gets exactly this.
    pub(crate) fn answers(self, status: u16, body: &[u8]) -> Self {
        Self {
            view: ExpectedView::ParsedResponse(status, body.to_vec()),
            ..self
        }
    }

    /// The client gets an error of the gateway's own.
    pub(crate) fn refused(self, status: u16, code: &'static str) -> Self {
        let without = self.without_event();
        Self {
            view: ExpectedView::Refusal(status, code),
            ..without
        }
    }

    /// The client gets these events, and one that tells of the break.
    pub(crate) fn told_after<T: AsRef<[u8]>>(self, parts: &[T]) -> Self {
        Self {
            view: ExpectedView::ControlReceived(joined(parts)),
            ..self
        }
    }

    /// The client gets at most this, and cannot take it for complete.
    pub(crate) fn breaks_within<T: AsRef<[u8]>>(self, parts: &[T]) -> Self {
        let without = self.without_event();
        Self {
            view: ExpectedView::Broken(joined(parts)),
            ..without
        }
    }

    /// The account says [`USED`].
    pub(crate) fn used(self) -> Self {
        Self {
            used: Some(USED),
            ..self
        }
    }

    /// Counted like this, against the look of it.
    pub(crate) fn counted_as(self, outcome: &'static str) -> Self {
        Self {
            outcome: Some(outcome),
            ..self
        }
    }

    /// The upstream, which waits, sees its connection closed.
    pub(crate) fn hangs_up(self) -> Self {
        Self {
            hangs_up: true,
            ..self
        }
    }

    fn outcome(&self) -> &'static str {
        let by_look = match &self.view {
            ExpectedView::ParsedResponse(status, _) if *status < 400 => "ok",
            ExpectedView::ParsedResponse(..)
            | ExpectedView::ControlReceived(_)
            | ExpectedView::Broken(_) => "upstream_error",
            ExpectedView::Refusal(..) => "unavailable",
        };
        self.outcome.unwrap_or(by_look)
    }

    fn status(&self) -> u16 {
        match &self.view {
            ExpectedView::ParsedResponse(status, _) | ExpectedView::Refusal(status, _) => *status,
            ExpectedView::ControlReceived(_) | ExpectedView::Broken(_) => 200,
        }
    }

    /// Whether the account can only say what it may have cost: an answer began,
    /// and has not said it.
    fn estimated(&self) -> bool {
        let began = self.first_event || self.request == WHOLE || self.outcome() == "ok";
        began && self.status() < 300 && self.used.is_none()
    }

    fn model(&self) -> &'static str {
        match self.backup {
            Some(_) => "large",
            None => "small",
        }
    }

    fn counted(&self) -> MetricCounters {
        let mut counted = finished(self.outcome());
        let model = self.model();
        if self.backup.is_some() {
            add(&mut counted, "fastllm_failovers_total", 1);
        }
        if matches!(self.view, ExpectedView::Refusal(..)) {
            return counted;
        }
        if self.backup.is_some() {
            add(&mut counted, "fastllm_fallback_used_total", 1);
        }
        let class = match self.status() {
            429 => "rate_limited",
            500.. => "server_error",
            400.. => "client_error",
            _ => "success",
        };
        let by_class = format!("fastllm_upstream_status_total{{class=\"{class}\"}}");
        let by_model = format!("fastllm_model_requests_total{{model=\"{model}\"}}");
        add(&mut counted, &by_class, 1);
        add(&mut counted, &by_model, 1);
        let (prompt, completion) = self.used.unwrap_or_default();
        for (kind, count) in [("prompt", prompt), ("completion", completion)] {
            let name = format!("fastllm_model_tokens_total{{kind=\"{kind}\",model=\"{model}\"}}");
            add(&mut counted, &name, count);
        }
        counted
    }

    fn check_view(&self, answer: &ParsedResponse) {
        let status = answer.head.as_ref().map(|head| head.status);
        let text = String::from_utf8_lossy(&answer.body);
        match &self.view {
            ExpectedView::ParsedResponse(expected, body) => {
                assert_eq!(status, Some(*expected), "{text}");
                assert_eq!(text, String::from_utf8_lossy(body));
                assert!(answer.complete && answer.body == *body);
            }
            ExpectedView::Refusal(expected, code) => {
                assert_eq!(status, Some(*expected), "{text}");
                let error: Value = serde_json::from_slice(&answer.body).unwrap();
                assert_eq!(error["error"]["code"], *code);
                assert!(answer.complete);
            }
            ExpectedView::ControlReceived(body) => {
                assert_eq!(status, Some(200), "{text}");
                assert!(answer.complete);
                let last = answer.body.strip_prefix(body.as_slice());
                let last = last.unwrap_or_else(|| panic!("other events: {text}"));
                let last = str::from_utf8(last).unwrap().trim();
                let data = last.strip_prefix("data: ").unwrap();
                let error: Value = serde_json::from_str(data).unwrap();
                assert_eq!(error["error"]["code"], "upstream_aborted");
            }
            ExpectedView::Broken(body) => {
                assert!(status.is_none_or(|status| status == 200), "{status:?}");
                assert!(!answer.complete, "seems to be complete: {text}");
                assert!(body.starts_with(&answer.body), "{text}");
            }
        }
    }

    fn check_account(&self, events: &[UsageEvent]) {
        assert_eq!(events.len(), 1, "{events:?}");
        let event = &events[0];
        let refused = matches!(self.view, ExpectedView::Refusal(..));
        assert_eq!(event.status, Some(self.status()));
        assert_eq!(event.refusal, refused.then_some(RefusalKind::NoBackend));
        assert_eq!(event.model.as_str(), self.model());
        let requested = self.backup.is_some().then_some("small");
        let found = event.requested_model.as_ref().map(ModelName::as_str);
        assert_eq!(found, requested);
        assert_eq!(event.usage_reported, refused || self.used.is_some());
        if let Some(used) = self.used {
            let found = (event.prompt_tokens.0, event.completion_tokens.0);
            assert_eq!(found, used);
        }
        assert_eq!(event.estimated, self.estimated());
        if self.estimated() {
            assert_eq!(event.prompt_tokens.0, estimated_tokens(self.request));
            let least = u64::from(self.first_event);
            assert!(
                (least..=10).contains(&event.completion_tokens.0),
                "{event:?}"
            );
        } else if self.used.is_none() {
            assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (0, 0));
        }
        assert_eq!(event.endpoint.as_deref(), Some("/chat/completions"));
        assert_eq!(event.ttft_ms.is_some(), self.first_event);
        assert!(event.duration_ms.is_some());
    }
}

/// What a gateway takes a request's prompt for.
pub(crate) fn estimated_tokens(request: &str) -> u64 {
    request.len() as u64 * 2 / 7
}

fn joined<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|part| part.as_ref().to_vec())
        .collect()
}

/// Plays a case in some protocol.
pub(crate) async fn run<P: TestProtocol>(case: Case) {
    let scripts = [case.script.clone()];
    let upstream = if case.hasty {
        Upstream::start_hasty(scripts).await
    } else {
        Upstream::start(scripts).await
    };
    let backup = Upstream::start(case.backup.clone()).await;
    let mut content = content(&[upstream.api_base()]);
    if case.backup.is_some() {
        content.models[1].backends = vec![backend(9, &backup.api_base())];
        content.fallback = ModelName::new("large").ok();
    }
    let gateway = TestGateway::serving(&content, Options::flags(&case.flags)).await;
    let before = counters(&gateway).await;

    let mut client = P::connect(gateway.address).await;
    client.ask(case.request).await;
    let answer = client
        .answer(|body| {
            if let Some((at, barrier)) = &case.barrier
                && body.len() >= *at
            {
                barrier.cancel();
            }
        })
        .await;
    case.check_view(&answer);
    if answer.complete {
        assert!(client.is_in_order().await, "the connection is not in order");
    }
    if case.hangs_up {
        upstream
            .wait_for("the upstream to be dropped", |seen| seen.hang_ups == 1)
            .await;
        assert!(upstream.seen().flooded < HELD);
    }
    until_counted(&gateway, &before, &case.counted()).await;
    drop(client);
    case.check_account(&gateway.finish().await);
    assert_eq!(upstream.seen().requests.len(), 1);
    assert_eq!(
        backup.seen().requests.len(),
        usize::from(case.backup.is_some())
    );
}

/// Tests of cases, one a case and protocol.
macro_rules! cases {
    ($($(#[$meta:meta])* $name:ident: $case:expr;)*) => {
        $(fn $name() -> crate::case::Case { $case })*

        mod http1 {
            $(
                $(#[$meta])*
                #[tokio::test]
                async fn $name() {
                    crate::case::run::<crate::client::Http1>(super::$name()).await;
                }
            )*
        }

        mod http2 {
            $(
                $(#[$meta])*
                #[tokio::test]
                async fn $name() {
                    crate::case::run::<crate::http2::Http2>(super::$name()).await;
                }
            )*
        }
    };
}

pub(crate) use cases;
