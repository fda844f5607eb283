use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;

use axum::extract::State;
use fastllm_contract::{
    Budget, BudgetShare, BudgetUsage, LimitReport, LimitReportReply, LimitShare, LimitUsage,
    Micros, Subject, Timestamp, Tokens,
};
use fastllm_engine::Window;
use sqlx::PgConnection;

use super::{MAX_NAME, check_name};
use crate::api::{ApiError, ErrorCode, Json};
use crate::app::AppState;
use crate::clock;
use crate::db::reconcile::{CountRow, Fleet, NewCounts};
use crate::db::shares::{Ledger, NewShare, ShareRow, WindowRow};
use crate::db::spending::WindowId;
use crate::db::{Db, DbError, budgets, reconcile, shares};
use crate::shares::{Account, HeldShare, faded, share, with_newcomer};

/// So many windows are held at a time, so that others need not wait for long.
const WINDOWS_AT_ONCE: usize = 500;

/// Tells a gateway its shares of limits and budgets.
pub(super) async fn post(
    State(app): State<AppState>,
    Json(report): Json<LimitReport>,
) -> Result<Json<LimitReportReply>, ApiError> {
    let LimitReport {
        replica_id,
        boot_id,
        counts,
        budgets,
    } = check(report)?;
    let mut connection = app.db.acquire().await?;
    let fleet = reconcile::register(&mut connection, &replica_id, &boot_id).await?;
    let allowances = limit_shares(&mut connection, &replica_id, counts, &fleet).await?;
    let budgets = with_others(&mut connection, (&replica_id, &boot_id), budgets).await?;
    let uses = known(&mut connection, budgets, &fleet).await?;
    drop(connection);
    let gateway = Gateway {
        replica: &replica_id,
        boot_id: &boot_id,
        live: fleet.live,
    };
    let mut shares = Vec::with_capacity(uses.len());
    for uses in uses.chunks(WINDOWS_AT_ONCE) {
        shares.extend(gateway.budget_shares(&app.db, uses).await?);
    }
    Ok(Json(LimitReportReply {
        replicas: u32::try_from(fleet.live).unwrap_or(u32::MAX),
        allowances,
        budgets: shares,
        duplicate_replica: fleet.duplicates > 1,
    }))
}

fn check(report: LimitReport) -> Result<LimitReport, ApiError> {
    check_name("replica_id", &report.replica_id)?;
    let boot_id = &report.boot_id;
    if boot_id.len() > MAX_NAME || boot_id.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            "boot_id",
            format!("boot_id may have {MAX_NAME} bytes at most"),
        ));
    }
    for (field, entries) in [
        ("counts", report.counts.len()),
        ("budgets", report.budgets.len()),
    ] {
        if entries > LimitReport::MAX_ENTRIES {
            let most = LimitReport::MAX_ENTRIES;
            return Err(ApiError::new(
                ErrorCode::ReportTooLarge,
                format!("{field} may have {most} entries at most"),
            )
            .with_field(field));
        }
    }
    Ok(report)
}

/// What somebody asks for lately.
#[derive(Clone, Copy, Default)]
struct Demand {
    requests: f64,
    tokens: f64,
}

/// Takes a gateway's counts in, and tells its share of each.
async fn limit_shares(
    connection: &mut PgConnection,
    replica: &str,
    counts: Vec<LimitUsage>,
    fleet: &Fleet,
) -> Result<Vec<LimitShare>, ApiError> {
    if counts.is_empty() {
        return Ok(Vec::new());
    }
    let mut asked: BTreeMap<String, (Subject, Demand)> = BTreeMap::new();
    for count in counts {
        let key = serde_json::to_string(&count.subject).map_err(|_| ApiError::internal())?;
        let (_, demand) = asked
            .entry(key)
            .or_insert_with(|| (count.subject, Demand::default()));
        demand.requests += float(count.requests);
        demand.tokens += float(count.tokens);
    }
    let subjects: Vec<String> = asked.keys().cloned().collect();
    let mut others: BTreeMap<String, Vec<Demand>> = BTreeMap::new();
    for row in reconcile::counts(connection, &subjects).await? {
        let CountRow {
            subject,
            replica: whose,
            requests,
            tokens,
            age_seconds,
        } = row;
        let before = Demand {
            requests: faded(requests, age_seconds),
            tokens: faded(tokens, age_seconds),
        };
        if whose != replica {
            others.entry(subject).or_default().push(before);
        } else if let Some((_, demand)) = asked.get_mut(&subject) {
            demand.requests += before.requests;
            demand.tokens += before.tokens;
        }
    }
    let mut new = NewCounts::default();
    let mut shares = Vec::with_capacity(asked.len());
    for (key, (subject, own)) in asked {
        let others = others.remove(&key).unwrap_or_default();
        let of = |part: fn(&Demand) -> f64| {
            // Counts are kept by name: of what duplicates ask for each has an even
            // part.
            let own = part(&own) / float(fleet.duplicates as u64);
            let others = others.iter().map(part);
            let others: Vec<f64> = others.chain(repeat_n(own, fleet.duplicates - 1)).collect();
            share(own, &others, fleet.live)
        };
        shares.push(LimitShare {
            subject,
            requests_share: of(|demand| demand.requests),
            tokens_share: of(|demand| demand.tokens),
        });
        new.subjects.push(key);
        new.requests.push(own.requests);
        new.tokens.push(own.tokens);
    }
    reconcile::put_counts(connection, replica, &new).await?;
    Ok(shares)
}

#[expect(clippy::cast_precision_loss, reason = "only shares are made of it")]
fn float(count: u64) -> f64 {
    count as f64
}

/// Adds those windows that other gateways spend from: this one may begin to at
/// any time, and then must know what it may have. Until it does, an even part is
/// kept for it.
async fn with_others(
    connection: &mut PgConnection,
    (replica, boot_id): (&str, &str),
    mut uses: Vec<BudgetUsage>,
) -> Result<Vec<BudgetUsage>, DbError> {
    let room = LimitReport::MAX_ENTRIES.saturating_sub(uses.len());
    let own: BTreeSet<_> = uses
        .iter()
        .map(|entry| (entry.budget, entry.window_start))
        .collect();
    let others = shares::in_use(connection, (replica, boot_id), LimitReport::MAX_ENTRIES).await?;
    let unused = others
        .into_iter()
        .filter(|window| !own.contains(window))
        .map(|(budget, window_start)| BudgetUsage {
            budget,
            window_start,
            tokens: Tokens(0),
            tokens_reserved: Tokens(0),
            cost_micros: Micros(0),
            cost_reserved_micros: Micros(0),
        });
    uses.extend(unused.take(room));
    Ok(uses)
}

/// What a gateway said of windows that can still be spent from: the present one
/// of each budget that exists, and the one before it. By window, each once.
async fn known(
    connection: &mut PgConnection,
    uses: Vec<BudgetUsage>,
    fleet: &Fleet,
) -> Result<Vec<(WindowId, BudgetUsage)>, DbError> {
    if uses.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = uses
        .iter()
        .filter_map(|entry| i64::try_from(entry.budget.0).ok())
        .collect();
    let found = budgets::find(connection, Some(&ids)).await?;
    let open: BTreeMap<u64, [Timestamp; 2]> = found
        .iter()
        .filter_map(|budget| Some((budget.id.0, open_windows(budget, fleet)?)))
        .collect();
    let uses: BTreeMap<WindowId, BudgetUsage> = uses
        .into_iter()
        .filter(|entry| {
            open.get(&entry.budget.0)
                .is_some_and(|starts| starts.contains(&entry.window_start))
        })
        .filter_map(|entry| Some((WindowId::new(entry.budget, entry.window_start)?, entry)))
        .collect();
    Ok(uses.into_iter().collect())
}

/// When the present window and the one before it began.
fn open_windows(budget: &Budget, fleet: &Fleet) -> Option<[Timestamp; 2]> {
    let window = Window::of(budget).ok()?;
    let present = window.at(fleet.now).start;
    let before = Timestamp(present.0.saturating_sub(1));
    Some([present, window.at(before).start])
}

/// Who asks, among how many.
struct Gateway<'a> {
    replica: &'a str,
    boot_id: &'a str,
    live: usize,
}

impl Gateway<'_> {
    /// Takes in what the gateway has of some windows, and tells what it may have.
    async fn budget_shares(
        &self,
        db: &Db,
        uses: &[(WindowId, BudgetUsage)],
    ) -> Result<Vec<BudgetShare>, DbError> {
        let windows = uses.iter().map(|(window, _)| *window).collect();
        let mut ledger = Ledger::open(db, windows).await?;
        let open = ledger.windows().await?;
        let mut rows: BTreeMap<WindowId, Vec<ShareRow>> = BTreeMap::new();
        for row in ledger.shares(self.replica, self.boot_id).await? {
            rows.entry(row.window).or_default().push(row);
        }
        let mut new = Vec::with_capacity(uses.len());
        let mut shares = Vec::with_capacity(uses.len());
        for (window, reported) in uses {
            let Some(row) = open.get(window) else {
                continue;
            };
            let held = rows.remove(window).unwrap_or_default();
            let (told, kept) = self.budget_share(row, held, *window, reported);
            shares.push(told);
            new.push(kept);
        }
        ledger.close(self.replica, self.boot_id, &new).await?;
        Ok(shares)
    }

    fn budget_share(
        &self,
        row: &WindowRow,
        held: Vec<ShareRow>,
        window: WindowId,
        reported: &BudgetUsage,
    ) -> (BudgetShare, NewShare) {
        let (own, held): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|row| row.replica == self.replica && row.boot_id == self.boot_id);
        let own = own.into_iter().next();
        let mut tokens = said(
            own.as_ref().map(|row| row.tokens),
            reported.tokens.0,
            reported.tokens_reserved.0,
        );
        let mut cost = said(
            own.as_ref().map(|row| row.cost),
            reported.cost_micros.0,
            reported.cost_reserved_micros.0,
        );
        let (live, ended): (Vec<_>, Vec<_>) = held.into_iter().partition(|row| row.live);
        let by_tokens = row.tokens_total.is_some();
        let before = own.as_ref().map_or(0, |row| taken(row, by_tokens));
        let now = if by_tokens { &tokens } else { &cost };
        let more = now.used.saturating_add(now.reserved).saturating_sub(before);
        let demand = own.as_ref().map_or(0.0, present_demand) + float(more);
        let others: Vec<f64> = live.iter().map(present_demand).collect();
        let heard = live.iter().filter(|row| row.age_seconds.is_some()).count();
        let silent = self.live.saturating_sub(heard + 1);
        let share = share(demand, &others, with_newcomer(self.live));
        let grant = |total: Option<u64>, spent, own, of: fn(&ShareRow) -> HeldShare| {
            let account = Account {
                total: total?,
                spent,
                own,
                others: live.iter().map(of).collect(),
                ended: ended
                    .iter()
                    .map(|row| of(row).pending())
                    .fold(0, u64::saturating_add),
                live: self.live,
                silent,
            };
            Some(account.grant(share))
        };
        let told = BudgetShare {
            budget: reported.budget,
            window_start: clock::timestamp(window.start),
            share,
            tokens: grant(row.tokens_total, row.tokens_used, tokens, |row| row.tokens),
            cost_micros: grant(row.cost_total_micros, row.cost_used_micros, cost, |row| {
                row.cost
            }),
        };
        tokens.granted = told.tokens.map_or(0, |grant| grant.granted);
        cost.granted = told.cost_micros.map_or(0, |grant| grant.granted);
        let kept = NewShare {
            window,
            tokens,
            cost,
            demand,
        };
        (told, kept)
    }
}

/// One dimension as the gateway says now.
fn said(before: Option<HeldShare>, used: u64, reserved: u64) -> HeldShare {
    let before = before.unwrap_or_default();
    // It has begun to count anew, as when the budget got other windows: nothing
    // of the new count is stored.
    let stored = if used < before.used { 0 } else { before.stored };
    HeldShare {
        granted: before.granted,
        used,
        reserved,
        stored,
    }
}

/// What a gateway had taken and set aside when it said so last.
fn taken(row: &ShareRow, by_tokens: bool) -> u64 {
    let held = if by_tokens { &row.tokens } else { &row.cost };
    held.used.saturating_add(held.reserved)
}

fn present_demand(row: &ShareRow) -> f64 {
    faded(row.demand, row.age_seconds.unwrap_or_default())
}
