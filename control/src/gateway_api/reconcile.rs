mod limits;

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use fastllm_contract::{
    Budget, BudgetShare, BudgetUsage, LimitReport, LimitReportReply, Micros, Timestamp, Tokens,
};
use fastllm_engine::Window;
use sqlx::PgConnection;

use super::{MAX_NAME, check_name};
use crate::api::{ApiError, ErrorCode, Json};
use crate::app::AppState;
use crate::clock;
use crate::db::reconcile::{Fleet, GatewayStart};
use crate::db::shares::{LockedWindows, NewShare, ShareRow, WindowRow};
use crate::db::spending::WindowId;
use crate::db::{Db, DbError, budgets, reconcile, shares};
use crate::shares::{GrantInput, ShareAmounts, decayed, share, with_newcomer};

/// The maximum number of windows in one transaction, to keep locks short.
const MAX_LOCKED_WINDOWS: usize = 500;

/// Stores the usage that a gateway reports and returns its shares of limits and
/// budgets.
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
    let start = GatewayStart {
        replica: &replica_id,
        boot_id: &boot_id,
    };
    // Each in its own transaction, so that gateways wait for each other only shortly.
    let mut transaction = app.db.gateways.begin().await?;
    let fleet = reconcile::register(&mut transaction, start).await?;
    transaction.commit().await.map_err(DbError::from)?;
    let allowances = limits::shares(&app.db.gateways, &replica_id, counts, &fleet).await?;
    let mut transaction = app.db.gateways.begin().await?;
    let budgets = with_windows_of_others(&mut transaction, start, budgets).await?;
    let usage = open_usage(&mut transaction, budgets, &fleet).await?;
    drop(transaction);
    let reporter = Reporter {
        start,
        live: fleet.live,
    };
    let mut shares = Vec::with_capacity(usage.len());
    for usage in usage.chunks(MAX_LOCKED_WINDOWS) {
        shares.extend(reporter.budget_shares(&app.db.gateways, usage).await?);
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
            format!("boot_id must have at most {MAX_NAME} bytes"),
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
                format!("{field} must have at most {most} entries"),
            )
            .with_field(field));
        }
    }
    Ok(report)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "only ratios are computed from it"
)]
fn float(count: u64) -> f64 {
    count as f64
}

/// Adds the windows that other gateways use, so that this one has a share before its
/// first request. Until it reports, an even share is reserved for it.
async fn with_windows_of_others(
    connection: &mut PgConnection,
    start: GatewayStart<'_>,
    mut uses: Vec<BudgetUsage>,
) -> Result<Vec<BudgetUsage>, DbError> {
    let room = LimitReport::MAX_ENTRIES.saturating_sub(uses.len());
    let own: BTreeSet<_> = uses
        .iter()
        .map(|entry| (entry.budget, entry.window_start))
        .collect();
    let others = shares::in_use(connection, start, LimitReport::MAX_ENTRIES).await?;
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

/// The reported usage of open windows: the current one of each existing budget, and
/// the previous one. Sorted by window and unique.
async fn open_usage(
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

/// The starts of the current window and of the previous one.
fn open_windows(budget: &Budget, fleet: &Fleet) -> Option<[Timestamp; 2]> {
    let window = Window::of(budget).ok()?;
    let present = window.at(fleet.now).start;
    let before = Timestamp(present.0.saturating_sub(1));
    Some([present, window.at(before).start])
}

/// The gateway that reconciles.
struct Reporter<'a> {
    start: GatewayStart<'a>,
    /// The number of live gateways.
    live: usize,
}

impl Reporter<'_> {
    /// Stores the usage of some windows and returns the new shares.
    async fn budget_shares(
        &self,
        db: &Db,
        uses: &[(WindowId, BudgetUsage)],
    ) -> Result<Vec<BudgetShare>, DbError> {
        let windows = uses.iter().map(|(window, _)| *window).collect();
        let mut transaction = LockedWindows::begin(db, windows).await?;
        let locked = transaction.lock().await?;
        let mut rows: BTreeMap<WindowId, Vec<ShareRow>> = BTreeMap::new();
        for row in transaction.shares(self.start).await? {
            rows.entry(row.window).or_default().push(row);
        }
        let mut new = Vec::with_capacity(uses.len());
        let mut shares = Vec::with_capacity(uses.len());
        for (window, reported) in uses {
            let Some(row) = locked.get(window) else {
                continue;
            };
            let stored = rows.remove(window).unwrap_or_default();
            let (share, row) = self.budget_share(row, stored, *window, reported);
            shares.push(share);
            new.push(row);
        }
        transaction.commit(self.start, &new).await?;
        Ok(shares)
    }

    fn budget_share(
        &self,
        row: &WindowRow,
        stored: Vec<ShareRow>,
        window: WindowId,
        reported: &BudgetUsage,
    ) -> (BudgetShare, NewShare) {
        let GatewayStart { replica, boot_id } = self.start;
        let (own, others): (Vec<_>, Vec<_>) = stored
            .into_iter()
            .partition(|row| row.replica == replica && row.boot_id == boot_id);
        let own = own.into_iter().next();
        let mut tokens = current(
            own.as_ref().map(|row| row.tokens),
            reported.tokens.0,
            reported.tokens_reserved.0,
        );
        let mut cost = current(
            own.as_ref().map(|row| row.cost),
            reported.cost_micros.0,
            reported.cost_reserved_micros.0,
        );
        let (live, ended): (Vec<_>, Vec<_>) = others.into_iter().partition(|row| row.live);
        let by_tokens = row.tokens_total.is_some();
        let before = own.as_ref().map_or(0, |row| committed(row, by_tokens));
        let now = if by_tokens { &tokens } else { &cost };
        let more = now.used.saturating_add(now.reserved).saturating_sub(before);
        let demand = own.as_ref().map_or(0.0, current_demand) + float(more);
        let others: Vec<f64> = live.iter().map(current_demand).collect();
        let reporting = live.iter().filter(|row| row.age_seconds.is_some()).count();
        let silent = self.live.saturating_sub(reporting + 1);
        let share = share(demand, &others, with_newcomer(self.live));
        let grant = |total: Option<u64>, spent, own, amounts: fn(&ShareRow) -> ShareAmounts| {
            let input = GrantInput {
                total: total?,
                spent,
                own,
                others: live.iter().map(amounts).collect(),
                ended: ended
                    .iter()
                    .map(|row| amounts(row).pending())
                    .fold(0, u64::saturating_add),
                live: self.live,
                silent,
            };
            Some(input.grant(share))
        };
        let new_share = BudgetShare {
            budget: reported.budget,
            window_start: clock::timestamp(window.start),
            share,
            tokens: grant(row.tokens_total, row.tokens_used, tokens, |row| row.tokens),
            cost_micros: grant(row.cost_total_micros, row.cost_used_micros, cost, |row| {
                row.cost
            }),
        };
        tokens.granted = new_share.tokens.map_or(0, |grant| grant.granted);
        cost.granted = new_share.cost_micros.map_or(0, |grant| grant.granted);
        let new_row = NewShare {
            window,
            tokens,
            cost,
            demand,
        };
        (new_share, new_row)
    }
}

/// The amounts of one dimension after the gateway's report.
fn current(before: Option<ShareAmounts>, used: u64, reserved: u64) -> ShareAmounts {
    let before = before.unwrap_or_default();
    // The gateway restarted its count, for example because the budget's windows
    // changed: nothing of the new count is stored yet.
    let stored = if used < before.used { 0 } else { before.stored };
    ShareAmounts {
        granted: before.granted,
        used,
        reserved,
        stored,
    }
}

/// The amount that a gateway had used and reserved at its last report.
fn committed(row: &ShareRow, by_tokens: bool) -> u64 {
    let amounts = if by_tokens { &row.tokens } else { &row.cost };
    amounts.used.saturating_add(amounts.reserved)
}

fn current_demand(row: &ShareRow) -> f64 {
    decayed(row.demand, row.age_seconds.unwrap_or_default())
}
