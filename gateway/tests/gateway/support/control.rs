use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastllm_contract::{
    HealthReport, LimitReport, LimitReportReply, LimitsState, ModelName, ModelPrices, Prices,
    Snapshot, UsageBatch,
};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::http::{Message, Reader};
use super::soon;

pub(crate) const TOKEN: &str = "canary-proxy-token";

/// Requests that the control plane received.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControlReceived {
    /// Bodies of usage requests, with the status of each response.
    pub(crate) usage: Vec<(u16, Vec<u8>)>,
    pub(crate) health: Vec<HealthReport>,
    pub(crate) reports: Vec<LimitReport>,
    /// Limit reports that received a 503.
    pub(crate) rejected_reports: Vec<LimitReport>,
    /// Snapshot requests, by the `ETag` that each carried.
    pub(crate) fetches: Vec<Option<String>>,
    /// Snapshot requests whose response omitted a section.
    pub(crate) deltas: usize,
}

/// A scripted control plane that serves the gateway API.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) address: SocketAddr,
    state: Arc<ControlState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct ControlState {
    snapshot: watch::Sender<Snapshot>,
    /// Text that is served instead of the snapshot.
    nonsense: Mutex<Option<String>>,
    /// Whether the last change affected only the version.
    renumbered: AtomicBool,
    held: Mutex<Vec<(String, Snapshot)>>,
    received: watch::Sender<ControlReceived>,
    usage_statuses: Mutex<VecDeque<u16>>,
    /// 404 if absent, as with an older control plane.
    limits_state: Mutex<Option<LimitsState>>,
    report_reply: Mutex<LimitReportReply>,
    away: AtomicBool,
    reject_reports: AtomicBool,
}

impl Control {
    pub(crate) async fn start(snapshot: Snapshot) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, snapshot)
    }

    pub(crate) fn start_on(listener: TcpListener, snapshot: Snapshot) -> Self {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ControlState {
            snapshot: watch::Sender::new(snapshot),
            nonsense: Mutex::new(None),
            renumbered: AtomicBool::new(false),
            held: Mutex::default(),
            received: watch::Sender::default(),
            usage_statuses: Mutex::default(),
            limits_state: Mutex::default(),
            report_reply: Mutex::default(),
            away: AtomicBool::new(false),
            reject_reports: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(connection(stream, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves another snapshot from now on.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.state.nonsense.lock() = None;
        self.state.snapshot.send_replace(snapshot);
    }

    /// Serves the same content under another version.
    pub(crate) fn renumber(&self, version: u64) {
        self.state.renumbered.store(true, Ordering::SeqCst);
        self.state
            .snapshot
            .send_modify(|snapshot| snapshot.version = version);
    }

    /// Serves text that is not a snapshot, under a new version.
    pub(crate) fn publish_text(&self, version: u64, text: &str) {
        *self.state.nonsense.lock() = Some(text.to_owned());
        self.state
            .snapshot
            .send_modify(|snapshot| snapshot.version = version);
    }

    /// Sets the statuses of the next usage responses; later ones are 200.
    pub(crate) fn set_usage_statuses(&self, statuses: &[u16]) {
        self.state.usage_statuses.lock().extend(statuses);
    }

    /// Sets whether limit reports are rejected from now on.
    pub(crate) fn reject_reports(&self, refuse: bool) {
        self.state.reject_reports.store(refuse, Ordering::SeqCst);
    }

    /// Sets the limits state served from now on.
    /// Sets the prices of `small` for one gateway.
    pub(crate) fn set_prices(&self, prices: Prices) {
        self.set_limits_state(LimitsState {
            replicas: 1,
            prices: vec![ModelPrices {
                model: ModelName::new("small").unwrap(),
                prices,
            }],
            budgets: Vec::new(),
        });
    }

    pub(crate) fn set_limits_state(&self, limits_state: LimitsState) {
        *self.state.limits_state.lock() = Some(limits_state);
    }

    /// Sets the reply to limit reports from now on.
    pub(crate) fn set_report_reply(&self, report_reply: LimitReportReply) {
        *self.state.report_reply.lock() = report_reply;
    }

    /// Sets whether usage requests receive 503 from now on, which overrides all else.
    pub(crate) fn set_unavailable(&self, away: bool) {
        self.state.away.store(away, Ordering::SeqCst);
    }

    pub(crate) fn received(&self) -> ControlReceived {
        self.state.received.borrow().clone()
    }

    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&ControlReceived) -> bool) {
        let mut received = self.state.received.subscribe();
        let waited = soon(what, received.wait_for(condition)).await;
        drop(waited.unwrap());
    }

    /// The usage batches that were stored.
    pub(crate) fn batches(&self) -> Vec<UsageBatch> {
        self.received()
            .usage
            .iter()
            .filter(|(status, _)| *status == 200)
            .map(|(_, body)| serde_json::from_slice(body).unwrap())
            .collect()
    }
}

async fn connection(stream: TcpStream, state: Arc<ControlState>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    while let Some(request) = reader.message().await {
        let response = if request.header("authorization") == Some(&format!("Bearer {TOKEN}")) {
            state.respond(&request).await
        } else {
            plain(401, "")
        };
        if writer.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl ControlState {
    async fn respond(&self, request: &Message) -> String {
        let (path, query) = request
            .word(1)
            .split_once('?')
            .unwrap_or((request.word(1), ""));
        match (request.word(0), path) {
            ("GET", "/snapshot") => self.fetch(request, query == "wait=30s").await,
            ("POST", "/usage") => self.usage(request),
            ("POST", "/health-report") => {
                let report = serde_json::from_slice(&request.body).unwrap();
                self.received
                    .send_modify(|received| received.health.push(report));
                plain(204, "")
            }
            ("GET", "/limits-state") => match &*self.limits_state.lock() {
                Some(limits_state) => plain(200, &serde_json::to_string(limits_state).unwrap()),
                None => plain(404, ""),
            },
            ("POST", "/limits/reconcile") => {
                let report = serde_json::from_slice(&request.body).unwrap();
                if self.reject_reports.load(Ordering::SeqCst) {
                    self.received
                        .send_modify(|received| received.rejected_reports.push(report));
                    return plain(503, "");
                }
                self.received
                    .send_modify(|received| received.reports.push(report));
                plain(
                    200,
                    &serde_json::to_string(&*self.report_reply.lock()).unwrap(),
                )
            }
            _ => plain(404, ""),
        }
    }

    fn usage(&self, request: &Message) -> String {
        let status = if self.away.load(Ordering::SeqCst) {
            503
        } else {
            self.usage_statuses.lock().pop_front().unwrap_or(200)
        };
        let body = request.body.clone();
        let batch: UsageBatch = serde_json::from_slice(&body).unwrap();
        self.received
            .send_modify(|received| received.usage.push((status, body)));
        let accepted = batch.events.len();
        plain(
            status,
            &format!("{{\"accepted\":{accepted},\"dropped\":0}}"),
        )
    }

    async fn fetch(&self, request: &Message, wait: bool) -> String {
        let known = request.header("if-none-match").map(str::to_owned);
        self.received
            .send_modify(|received| received.fetches.push(known.clone()));
        let mut snapshots = self.snapshot.subscribe();
        if wait && known.as_deref() == Some(&etag(&snapshots.borrow_and_update())) {
            let news = snapshots.wait_for(|snapshot| Some(etag(snapshot)) != known);
            drop(news.await.unwrap());
        }
        let snapshot = self.snapshot.borrow().clone();
        let etag = etag(&snapshot);
        if self.renumbered.swap(false, Ordering::SeqCst) {
            return format!("HTTP/1.1 304 Not Modified\r\netag: {etag}\r\n\r\n");
        }
        if let Some(text) = &*self.nonsense.lock() {
            return with_etag(&etag, text);
        }
        let mut held = self.held.lock();
        let before = held.iter().find(|(held, _)| Some(held) == known.as_ref());
        let response = match before {
            Some((_, before)) => {
                self.received.send_modify(|received| received.deltas += 1);
                snapshot.without_sections_of(before)
            }
            None => snapshot.clone(),
        };
        held.push((etag.clone(), snapshot));
        with_etag(&etag, &serde_json::to_string(&response).unwrap())
    }
}

fn etag(snapshot: &Snapshot) -> String {
    format!("\"{}-0123456789abcdef\"", snapshot.version)
}

fn with_etag(etag: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\netag: {etag}\r\ncontent-type: application/json\r\n\
content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn plain(status: u16, body: &str) -> String {
    if status == 204 {
        return "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
    }
    format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
