use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::{BudgetUsage, Grant, LimitReport, LimitReportReply, LimitsState};
use fastllm_engine::Accounts;
use fastllm_process::error::Chain;
use http::{StatusCode, header};
use reqwest::Method;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::client::{ControlClient, ControlError, read_limited};
use super::snapshot_file::{read_json, write_json};
use crate::runtime::clock;
use crate::snapshot::CurrentSnapshot;

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a starting gateway waits for the state of limits before it serves.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is checked whether a report is due.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The minimum time between two reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// The interval at which a new gateway repeats its request while another gateway
/// holds all of a budget, and the number of intervals. By then the other gateway
/// has reported, too, and has returned a part.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const INTERVALS: u32 = 2;

/// How often the state is fetched if limits are not reconciled.
const LEARN_EVERY: Duration = Duration::from_secs(5);

/// The maximum response size in bytes: several hundred thousand budgets.
const LIMIT: usize = 32 << 20;

/// Fetches the state of limits from control: model prices, budget spending, and
/// the number of running gateways.
#[derive(Debug, Clone)]
pub(crate) struct LimitsStateSource {
    client: ControlClient,
    /// The file that keeps the last state for a start without control.
    path: PathBuf,
}

impl LimitsStateSource {
    /// Uses a file next to the copy of the snapshot.
    pub(crate) fn new(client: ControlClient, snapshot_cache: &Path) -> Self {
        Self {
            client,
            path: snapshot_cache.with_file_name("limits-state.json"),
        }
    }

    /// The initial state: from control, or else from the file.
    pub(crate) async fn first(&self) -> LimitsState {
        match timeout(FIRST_REQUEST_TIMEOUT, self.fetch(None)).await {
            Ok(Ok(Some((limits_state, _)))) => return limits_state,
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot fetch the limits state from the control plane");
            }
            Err(_) => tracing::warn!("timed out fetching the limits state from the control plane"),
        }
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || read_json(&path)).await;
        match read {
            Ok(Ok(kept)) => kept.unwrap_or_default(),
            Ok(Err(error)) => {
                let path = self.path.display();
                tracing::error!(%path, error = %Chain(&error), "the limits state on disk cannot be used");
                LimitsState::default()
            }
            Err(_) => LimitsState::default(),
        }
    }

    /// Returns nothing if the state is unchanged.
    async fn fetch(
        &self,
        etag: Option<&str>,
    ) -> Result<Option<(LimitsState, Option<String>)>, ControlError> {
        let mut request = self
            .client
            .request(Method::GET, "limits-state", REQUEST_TIMEOUT);
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let response = request.send().await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED => return Ok(None),
            other => return Err(ControlError::Status(other.as_u16())),
        }
        let etag = response.headers().get(header::ETAG);
        let etag = etag.and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let body = read_limited(response, LIMIT).await?;
        let limits_state = serde_json::from_slice(&body)
            .map_err(|error| ControlError::Unreadable(error.to_string()))?;
        Ok(Some((limits_state, etag)))
    }

    async fn keep(&self, limits_state: LimitsState) -> Result<(), String> {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || write_json(&path, &limits_state));
        match written.await {
            Ok(written) => written.map_err(|error| Chain(&error).to_string()),
            Err(_) => Err("writing was interrupted".to_owned()),
        }
    }
}

/// Reports usage to control and applies this gateway's shares of limits and
/// budgets: periodically, and at once when a share is spent while the whole
/// budget is not, or when others wait for what this gateway released. While control is unavailable, the last shares remain in
/// effect.
#[derive(Debug)]
pub(crate) struct Reconciler {
    pub(crate) source: LimitsStateSource,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) replica: String,
    pub(crate) boot_id: Arc<str>,
    /// If zero, shares are not requested.
    pub(crate) every: Duration,
}

/// State that is kept between rounds.
#[derive(Default)]
struct ReconcileState {
    etag: Option<String>,
    kept: Option<LimitsState>,
    reply: String,
    warned_of_disk: bool,
    /// Time of the last report.
    reported: Option<Instant>,
    /// When control first responded.
    began: Option<Instant>,
    /// A budget is not spent, and other gateways hold all that is left.
    lacks_share: bool,
    duplicate_replica: bool,
}

impl Reconciler {
    /// Runs until `stop`, then saves the final state.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.current.changes();
        tokio::select! {
            _ = changes.wait_for(|count| *count > 0) => {}
            () = stop.cancelled() => return,
        }
        let mut state = ReconcileState::default();
        loop {
            let Some(tables) = self.current.tables() else {
                return;
            };
            let accounts = tables.accounts();
            let round = tokio::select! {
                round = self.round(accounts, &mut state) => round,
                () = stop.cancelled() => break,
            };
            state.note(round);
            self.keep(accounts, &mut state).await;
            tokio::select! {
                () = self.pause(accounts, &state) => {}
                () = stop.cancelled() => break,
            }
        }
        if let Some(tables) = self.current.tables() {
            self.keep(tables.accounts(), &mut state).await;
        }
    }

    async fn pause(&self, accounts: &Accounts, state: &ReconcileState) {
        let came = state.began.map(|began| began.elapsed());
        let every = if self.every.is_zero() {
            LEARN_EVERY
        } else if state.lacks_share && came.is_some_and(|came| came < self.every * INTERVALS) {
            self.every.min(ASK_AGAIN)
        } else {
            self.every
        };
        let began = Instant::now();
        sleep(MIN_REPORT_INTERVAL).await;
        while began.elapsed() < every && !accounts.take_report_due() {
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn round(
        &self,
        accounts: &Accounts,
        state: &mut ReconcileState,
    ) -> Result<(), ControlError> {
        let learnt = self.learn(accounts, state).await;
        let shared = if self.every.is_zero() {
            Ok(())
        } else {
            self.share(accounts, state).await
        };
        learnt.and(shared)
    }

    async fn learn(
        &self,
        accounts: &Accounts,
        state: &mut ReconcileState,
    ) -> Result<(), ControlError> {
        if let Some((limits_state, etag)) = self.source.fetch(state.etag.as_deref()).await? {
            accounts.apply_limits_state(&limits_state);
            state.etag = etag;
        }
        Ok(())
    }

    /// One round, with as many requests as necessary. The next round includes
    /// whatever a failed request did not report.
    async fn share(
        &self,
        accounts: &Accounts,
        state: &mut ReconcileState,
    ) -> Result<(), ControlError> {
        let now = Instant::now();
        let last = state.reported.replace(now);
        let gathered = last.map_or(Duration::ZERO, |last| now - last);
        let report = accounts.limit_report(
            self.replica.clone(),
            self.boot_id.to_string(),
            clock::timestamp(),
        );
        let mut reply = LimitReportReply::default();
        let reports = report.split();
        for (at, report) in reports.iter().enumerate() {
            match self.post(report).await {
                Ok(more) => reply.add(more),
                Err(error) => {
                    for untold in reports.iter().skip(at) {
                        accounts.restore_counts(&untold.counts, gathered);
                    }
                    if at > 0 {
                        accounts.apply_partial_shares(&reply);
                    }
                    return Err(error);
                }
            }
        }
        accounts.apply_shares(&reply);
        state.began.get_or_insert_with(Instant::now);
        state.lacks_share = lacks_share(&reports, &reply);
        state.note_name(reply.duplicate_replica, &self.replica);
        Ok(())
    }

    async fn post(&self, report: &LimitReport) -> Result<LimitReportReply, ControlError> {
        let body = serde_json::to_vec(report)
            .map_err(|error| ControlError::Unreadable(error.to_string()))?;
        let reply = self.source.client.post_limited(
            "limits/reconcile",
            Bytes::from(body),
            REQUEST_TIMEOUT,
            LIMIT,
        );
        match reply.await? {
            (200, body) => serde_json::from_slice(&body)
                .map_err(|error| ControlError::Unreadable(error.to_string())),
            (status, _) => Err(ControlError::Status(status)),
        }
    }

    async fn keep(&self, accounts: &Accounts, state: &mut ReconcileState) {
        let limits_state = accounts.limits_state();
        if state.kept.as_ref() == Some(&limits_state) {
            return;
        }
        let kept = self.source.keep(limits_state.clone()).await;
        state.kept = Some(limits_state);
        let warned_before = std::mem::replace(&mut state.warned_of_disk, kept.is_err());
        match kept {
            Err(error) if !warned_before => tracing::warn!(
                path = %self.source.path.display(),
                error,
                "cannot write the limits state to disk; a restart without the control plane would lose it"
            ),
            _ => {}
        }
    }
}

/// Whether this gateway has no share of a budget that is not spent.
fn lacks_share(reports: &[LimitReport], reply: &LimitReportReply) -> bool {
    let used: HashMap<_, _> = reports
        .iter()
        .flat_map(|report| &report.budgets)
        .map(|used| ((used.budget, used.window_start), used))
        .collect();
    let nothing = |grant: Option<Grant>, used: u64| {
        grant.is_some_and(|grant| {
            let spent = i128::from(grant.used_by_others) + i128::from(used);
            grant.granted <= used && spent < i128::from(grant.total)
        })
    };
    reply.budgets.iter().any(|share| {
        let used = used.get(&(share.budget, share.window_start));
        let of = |part: fn(&BudgetUsage) -> u64| used.map_or(0, |used| part(used));
        nothing(share.tokens, of(|used| used.tokens.0))
            || nothing(share.cost_micros, of(|used| used.cost_micros.0))
    })
}

impl ReconcileState {
    /// Logs once when a duplicate replica appears or disappears.
    fn note_name(&mut self, taken: bool, replica: &str) {
        match (std::mem::replace(&mut self.duplicate_replica, taken), taken) {
            (false, true) => tracing::warn!(
                replica,
                "another gateway reports under the same name; give each gateway a unique name"
            ),
            (true, false) => tracing::info!(
                replica,
                "no other gateway uses this gateway's name any longer"
            ),
            _ => {}
        }
    }

    /// Logs a repeated failure once.
    fn note(&mut self, round: Result<(), ControlError>) {
        let text = round
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        if text == self.reply {
            return;
        }
        if text.is_empty() {
            tracing::info!("reconciliation of limits and budgets resumed");
        } else {
            tracing::warn!(
                error = text,
                "cannot reconcile limits and budgets; the last shares stay in effect"
            );
        }
        self.reply = text;
    }
}
