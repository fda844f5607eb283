use std::collections::BTreeMap;

use fastllm_contract::{BudgetId, Timestamp};
use sqlx::{PgConnection, PgTransaction};

use super::reconcile::{GatewayStart, LIVE_SECONDS};
use super::spending::{WindowId, columns};
use super::{Db, DbError};
use crate::clock;
use crate::shares::ShareAmounts;

/// How long usage that an ended start of a gateway reported, but that is not stored
/// yet, is expected to arrive. After that it is lost.
pub(crate) const ENDED_SECONDS: f64 = 120.0;

/// A transaction that locks the windows of some budgets against others that store
/// usage or grant shares of them.
///
/// Invariant: locks are taken in one order (budgets, then windows, then shares,
/// each sorted), so that there are no deadlocks.
pub(crate) struct LockedWindows {
    transaction: PgTransaction<'static>,
    windows: Vec<WindowId>,
}

/// A window of an existing budget.
pub(crate) struct WindowRow {
    pub(crate) tokens_total: Option<u64>,
    pub(crate) cost_total_micros: Option<u64>,
    /// Stored usage.
    pub(crate) tokens_used: u64,
    pub(crate) cost_used_micros: u64,
}

/// The share of one start of a gateway in a window.
pub(crate) struct ShareRow {
    pub(crate) window: WindowId,
    pub(crate) replica: String,
    pub(crate) boot_id: String,
    pub(crate) tokens: ShareAmounts,
    pub(crate) cost: ShareAmounts,
    /// Recent usage: a sum with exponential decay.
    pub(crate) demand: f64,
    /// Age of the row in seconds; `None` before the first report.
    pub(crate) age_seconds: Option<f64>,
    /// Whether it is a current start of a live gateway.
    pub(crate) live: bool,
}

/// The new share of one start of a gateway in a window.
pub(crate) struct NewShare {
    pub(crate) window: WindowId,
    pub(crate) tokens: ShareAmounts,
    pub(crate) cost: ShareAmounts,
    pub(crate) demand: f64,
}

impl LockedWindows {
    /// Begins the transaction. `windows` are sorted and unique.
    pub(crate) async fn begin(db: &Db, windows: Vec<WindowId>) -> Result<Self, DbError> {
        let mut ensuring = db.begin().await?;
        ensure(&mut ensuring, &windows).await?;
        ensuring.commit().await?;
        let mut transaction = db.begin().await?;
        // A transaction that hangs would prevent usage from being stored.
        query!(
            "SELECT set_config('lock_timeout', '5s', true) AS lock, \
                    set_config('statement_timeout', '10s', true) AS statement, \
                    set_config('idle_in_transaction_session_timeout', '10s', true) AS idle"
        )
        .fetch_one(&mut transaction)
        .await?;
        Ok(Self {
            transaction,
            windows,
        })
    }

    /// Locks and returns the windows of existing budgets.
    pub(crate) async fn lock(&mut self) -> Result<BTreeMap<WindowId, WindowRow>, DbError> {
        let (budgets, starts) = columns(&self.windows);
        let totals = query!(
            "SELECT id, tokens_total, cost_total_micros FROM budgets \
              WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE",
            &budgets,
        )
        .fetch_all(&mut self.transaction)
        .await?;
        let totals: BTreeMap<i64, _> = totals.into_iter().map(|row| (row.id, row)).collect();
        let rows = query!(
            "SELECT s.budget_id, s.window_start, s.tokens_used, s.cost_used_micros \
               FROM budget_spending AS s \
               JOIN unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start) \
                    USING (budget_id, window_start) \
              ORDER BY s.budget_id, s.window_start FOR UPDATE OF s",
            &budgets,
            &starts,
        )
        .fetch_all(&mut self.transaction)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                let of = totals.get(&row.budget_id)?;
                let window = WindowId {
                    budget: row.budget_id,
                    start: row.window_start,
                };
                let row = WindowRow {
                    tokens_total: of.tokens_total.map(i64::unsigned_abs),
                    cost_total_micros: of.cost_total_micros.map(i64::unsigned_abs),
                    tokens_used: row.tokens_used.unsigned_abs(),
                    cost_used_micros: row.cost_used_micros.unsigned_abs(),
                };
                Some((window, row))
            })
            .collect())
    }

    /// The shares of live gateways, of recently ended starts, and of `own` even if it
    /// is not live.
    pub(crate) async fn shares(&mut self, own: GatewayStart<'_>) -> Result<Vec<ShareRow>, DbError> {
        let (budgets, starts) = columns(&self.windows);
        let rows = query!(
            r#"SELECT s.*, extract(epoch FROM clock_timestamp() - s.reported_at)::float8 AS age_seconds,
                      r.replica IS NOT NULL AS "live!"
                 FROM unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start)
                 JOIN budget_shares AS s USING (budget_id, window_start)
                 LEFT JOIN gateway_starts AS r
                        ON r.replica = s.replica AND r.boot_id = s.boot_id
                       AND r.seen_at >= statement_timestamp() - make_interval(secs => $3)
                WHERE r.replica IS NOT NULL
                   OR s.reported_at > statement_timestamp() - make_interval(secs => $4)
                   OR (s.replica = $5 AND s.boot_id = $6)"#,
            &budgets,
            &starts,
            LIVE_SECONDS,
            ENDED_SECONDS,
            own.replica,
            own.boot_id,
        )
        .fetch_all(&mut self.transaction)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| ShareRow {
                window: WindowId {
                    budget: row.budget_id,
                    start: row.window_start,
                },
                replica: row.replica,
                boot_id: row.boot_id,
                tokens: ShareAmounts {
                    granted: row.tokens_granted.unsigned_abs(),
                    used: row.tokens_used.unsigned_abs(),
                    reserved: row.tokens_reserved.unsigned_abs(),
                    stored: row.tokens_stored.unsigned_abs(),
                },
                cost: ShareAmounts {
                    granted: row.cost_granted_micros.unsigned_abs(),
                    used: row.cost_used_micros.unsigned_abs(),
                    reserved: row.cost_reserved_micros.unsigned_abs(),
                    stored: row.cost_stored_micros.unsigned_abs(),
                },
                demand: row.demand,
                age_seconds: row.age_seconds,
                live: row.live,
            })
            .collect())
    }

    /// Writes the shares of one start of a gateway and commits.
    pub(crate) async fn commit(
        mut self,
        start: GatewayStart<'_>,
        shares: &[NewShare],
    ) -> Result<(), DbError> {
        let windows: Vec<WindowId> = shares.iter().map(|share| share.window).collect();
        let (budgets, starts) = columns(&windows);
        let tokens =
            |amount: fn(&ShareAmounts) -> u64| column(shares, |share| amount(&share.tokens));
        let cost = |amount: fn(&ShareAmounts) -> u64| column(shares, |share| amount(&share.cost));
        let demands: Vec<f64> = shares.iter().map(|share| share.demand).collect();
        query!(
            "INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, tokens_stored, \
                    tokens_used, tokens_reserved, tokens_granted, cost_stored_micros, \
                    cost_used_micros, cost_reserved_micros, cost_granted_micros, demand, \
                    reported_at) \
             SELECT n.budget_id, n.window_start, $1, $2, n.tokens_stored, n.tokens_used, \
                    n.tokens_reserved, n.tokens_granted, n.cost_stored, n.cost_used, \
                    n.cost_reserved, n.cost_granted, n.demand, clock_timestamp() \
               FROM unnest($3::bigint[], $4::timestamptz[], $5::bigint[], $6::bigint[], \
                           $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], \
                           $11::bigint[], $12::bigint[], $13::float8[]) \
                    AS n (budget_id, window_start, tokens_stored, tokens_used, tokens_reserved, \
                          tokens_granted, cost_stored, cost_used, cost_reserved, cost_granted, \
                          demand) \
             ON CONFLICT (budget_id, window_start, replica, boot_id) DO UPDATE \
                SET tokens_stored = excluded.tokens_stored, \
                    tokens_used = excluded.tokens_used, \
                    tokens_reserved = excluded.tokens_reserved, \
                    tokens_granted = excluded.tokens_granted, \
                    cost_stored_micros = excluded.cost_stored_micros, \
                    cost_used_micros = excluded.cost_used_micros, \
                    cost_reserved_micros = excluded.cost_reserved_micros, \
                    cost_granted_micros = excluded.cost_granted_micros, \
                    demand = excluded.demand, reported_at = excluded.reported_at",
            start.replica,
            start.boot_id,
            &budgets,
            &starts,
            &tokens(|amounts| amounts.stored),
            &tokens(|amounts| amounts.used),
            &tokens(|amounts| amounts.reserved),
            &tokens(|amounts| amounts.granted),
            &cost(|amounts| amounts.stored),
            &cost(|amounts| amounts.used),
            &cost(|amounts| amounts.reserved),
            &cost(|amounts| amounts.granted),
            &demands,
        )
        .execute(&mut self.transaction)
        .await?;
        self.transaction.commit().await?;
        Ok(())
    }
}

fn column(shares: &[NewShare], amount: impl Fn(&NewShare) -> u64) -> Vec<i64> {
    shares
        .iter()
        .map(|share| i64::try_from(amount(share)).unwrap_or(i64::MAX))
        .collect()
}

/// Up to `limit` windows that other live gateways recently used but this one does
/// not.
pub(crate) async fn in_use(
    connection: &mut PgConnection,
    own: GatewayStart<'_>,
    limit: usize,
) -> Result<Vec<(BudgetId, Timestamp)>, DbError> {
    let rows = query!(
        r#"SELECT DISTINCT s.budget_id, s.window_start
             FROM budget_shares AS s
             JOIN gateway_starts AS r ON r.replica = s.replica AND r.boot_id = s.boot_id
            WHERE (s.replica, s.boot_id) <> ($1, $4)
              AND s.reported_at >= now() - make_interval(secs => $2)
              AND r.seen_at >= now() - make_interval(secs => $2)
              AND greatest(s.tokens_used, s.tokens_reserved,
                           s.cost_used_micros, s.cost_reserved_micros) > 0
              AND NOT EXISTS (SELECT FROM budget_shares AS o
                               WHERE o.budget_id = s.budget_id AND o.window_start = s.window_start
                                 AND o.replica = $1 AND o.boot_id = $4
                                 AND greatest(o.tokens_used, o.tokens_reserved,
                                              o.cost_used_micros, o.cost_reserved_micros) > 0)
            ORDER BY s.budget_id, s.window_start LIMIT $3"#,
        own.replica,
        LIVE_SECONDS,
        i64::try_from(limit).unwrap_or(i64::MAX),
        own.boot_id,
    )
    .fetch_all(connection)
    .await?;
    let window = |budget: i64, start| (BudgetId(budget.unsigned_abs()), clock::timestamp(start));
    Ok(rows
        .into_iter()
        .map(|row| window(row.budget_id, row.window_start))
        .collect())
}

/// Inserts missing rows of windows, to be locked. A separate statement, so that a
/// transaction that waits here does not hold locks on windows.
async fn ensure(connection: &mut PgConnection, windows: &[WindowId]) -> Result<(), DbError> {
    let (budgets, starts) = columns(windows);
    query!(
        "INSERT INTO budget_spending (budget_id, window_start) \
         SELECT b.id, w.window_start \
           FROM unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start) \
           JOIN budgets AS b ON b.id = w.budget_id \
          WHERE NOT EXISTS (SELECT FROM budget_spending AS s \
                             WHERE s.budget_id = w.budget_id AND s.window_start = w.window_start) \
          ORDER BY 1, 2 FOR KEY SHARE OF b \
         ON CONFLICT DO NOTHING",
        &budgets,
        &starts,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes shares in ended windows of starts that have not reported for a day.
pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM budget_shares AS s USING budgets AS b \
          WHERE b.id = s.budget_id \
            AND coalesce(s.reported_at, '-infinity') < now() - interval '1 day' \
            AND s.window_start < now() - CASE b.budget_window \
                    WHEN 'daily' THEN interval '2 days' \
                    WHEN 'weekly' THEN interval '8 days' \
                    ELSE interval '32 days' END"
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
