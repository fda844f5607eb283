use std::collections::BTreeMap;

use fastllm_contract::{BudgetId, Timestamp};
use sqlx::{PgConnection, PgTransaction};

use super::reconcile::LIVE_SECONDS;
use super::spending::{WindowId, columns};
use super::{Db, DbError};
use crate::clock;
use crate::shares::HeldShare;

/// So long what a start of a gateway had taken when it ended, and was not stored
/// then, is taken to be on its way. Later it is lost.
pub(crate) const ENDED_SECONDS: f64 = 120.0;

/// The windows of some budgets, held against everybody else who stores or
/// grants something of them.
///
/// Invariant: locks are taken in one order (budgets, then windows, then shares,
/// each sorted), so that no two of them wait for each other.
pub(crate) struct Ledger {
    transaction: PgTransaction<'static>,
    windows: Vec<WindowId>,
}

/// A window of a budget that exists.
pub(crate) struct WindowRow {
    pub(crate) tokens_total: Option<u64>,
    pub(crate) cost_total_micros: Option<u64>,
    /// What is stored.
    pub(crate) tokens_used: u64,
    pub(crate) cost_used_micros: u64,
}

/// What one start of one gateway has of a window.
pub(crate) struct ShareRow {
    pub(crate) window: WindowId,
    pub(crate) replica: String,
    pub(crate) boot_id: String,
    pub(crate) tokens: HeldShare,
    pub(crate) cost: HeldShare,
    /// What it took lately, fading.
    pub(crate) demand: f64,
    /// Since it was written; nothing before its first report.
    pub(crate) age_seconds: Option<f64>,
    /// It is the present start of a gateway that is live, or one of several.
    pub(crate) live: bool,
}

/// What one start of one gateway has of a window from now on.
pub(crate) struct NewShare {
    pub(crate) window: WindowId,
    pub(crate) tokens: HeldShare,
    pub(crate) cost: HeldShare,
    pub(crate) demand: f64,
}

impl Ledger {
    /// Opens the windows; they are sorted, each once.
    pub(crate) async fn open(db: &Db, windows: Vec<WindowId>) -> Result<Self, DbError> {
        ensure(&mut *db.acquire().await?, &windows).await?;
        let mut transaction = db.pool().begin().await?;
        // One that hangs would keep usage from being stored.
        sqlx::query!(
            "SELECT set_config('lock_timeout', '5s', true) AS lock, \
                    set_config('statement_timeout', '10s', true) AS statement, \
                    set_config('idle_in_transaction_session_timeout', '10s', true) AS idle"
        )
        .fetch_one(&mut *transaction)
        .await?;
        Ok(Self {
            transaction,
            windows,
        })
    }

    /// The windows of those budgets that exist, from now on held.
    pub(crate) async fn windows(&mut self) -> Result<BTreeMap<WindowId, WindowRow>, DbError> {
        let (budgets, starts) = columns(&self.windows);
        let totals = sqlx::query!(
            "SELECT id, tokens_total, cost_total_micros FROM budgets \
              WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE",
            &budgets,
        )
        .fetch_all(&mut *self.transaction)
        .await?;
        let totals: BTreeMap<i64, _> = totals.into_iter().map(|row| (row.id, row)).collect();
        let rows = sqlx::query!(
            "SELECT s.budget_id, s.window_start, s.tokens_used, s.cost_used_micros \
               FROM budget_spending AS s \
               JOIN unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start) \
                    USING (budget_id, window_start) \
              ORDER BY s.budget_id, s.window_start FOR UPDATE OF s",
            &budgets,
            &starts,
        )
        .fetch_all(&mut *self.transaction)
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

    /// What live gateways have of the windows, `replica` with `boot_id` also where
    /// it is not; and what starts had that ended a moment ago.
    pub(crate) async fn shares(
        &mut self,
        replica: &str,
        boot_id: &str,
    ) -> Result<Vec<ShareRow>, DbError> {
        let (budgets, starts) = columns(&self.windows);
        let rows = sqlx::query!(
            r#"SELECT s.*, extract(epoch FROM now() - s.reported_at)::float8 AS age_seconds,
                      r.replica IS NOT NULL AS "live!"
                 FROM unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start)
                 JOIN budget_shares AS s USING (budget_id, window_start)
                 LEFT JOIN gateway_starts AS r
                        ON r.replica = s.replica AND r.boot_id = s.boot_id
                       AND r.seen_at >= now() - make_interval(secs => $3)
                WHERE r.replica IS NOT NULL
                   OR s.reported_at > now() - make_interval(secs => $4)
                   OR (s.replica = $5 AND s.boot_id = $6)"#,
            &budgets,
            &starts,
            LIVE_SECONDS,
            ENDED_SECONDS,
            replica,
            boot_id,
        )
        .fetch_all(&mut *self.transaction)
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
                tokens: HeldShare {
                    granted: row.tokens_granted.unsigned_abs(),
                    used: row.tokens_used.unsigned_abs(),
                    reserved: row.tokens_reserved.unsigned_abs(),
                    stored: row.tokens_stored.unsigned_abs(),
                },
                cost: HeldShare {
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

    /// Writes what one start of one gateway said and was granted, and commits.
    pub(crate) async fn close(
        mut self,
        replica: &str,
        boot_id: &str,
        shares: &[NewShare],
    ) -> Result<(), DbError> {
        let windows: Vec<WindowId> = shares.iter().map(|share| share.window).collect();
        let (budgets, starts) = columns(&windows);
        let tokens = |part: fn(&HeldShare) -> u64| amounts(shares, |share| part(&share.tokens));
        let cost = |part: fn(&HeldShare) -> u64| amounts(shares, |share| part(&share.cost));
        let demands: Vec<f64> = shares.iter().map(|share| share.demand).collect();
        sqlx::query!(
            "INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, tokens_stored, \
                    tokens_used, tokens_reserved, tokens_granted, cost_stored_micros, \
                    cost_used_micros, cost_reserved_micros, cost_granted_micros, demand, \
                    reported_at) \
             SELECT n.budget_id, n.window_start, $1, $2, n.tokens_stored, n.tokens_used, \
                    n.tokens_reserved, n.tokens_granted, n.cost_stored, n.cost_used, \
                    n.cost_reserved, n.cost_granted, n.demand, now() \
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
            replica,
            boot_id,
            &budgets,
            &starts,
            &tokens(|held| held.stored),
            &tokens(|held| held.used),
            &tokens(|held| held.reserved),
            &tokens(|held| held.granted),
            &cost(|held| held.stored),
            &cost(|held| held.used),
            &cost(|held| held.reserved),
            &cost(|held| held.granted),
            &demands,
        )
        .execute(&mut *self.transaction)
        .await?;
        self.transaction.commit().await?;
        Ok(())
    }
}

fn amounts(shares: &[NewShare], of: impl Fn(&NewShare) -> u64) -> Vec<i64> {
    shares
        .iter()
        .map(|share| i64::try_from(of(share)).unwrap_or(i64::MAX))
        .collect()
}

/// The windows from which live gateways other than this one have lately spent,
/// and of which this one has not said that it uses them; at most so many.
pub(crate) async fn in_use(
    connection: &mut PgConnection,
    (replica, boot_id): (&str, &str),
    most: usize,
) -> Result<Vec<(BudgetId, Timestamp)>, DbError> {
    let rows = sqlx::query!(
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
        replica,
        LIVE_SECONDS,
        i64::try_from(most).unwrap_or(i64::MAX),
        boot_id,
    )
    .fetch_all(connection)
    .await?;
    let window = |budget: i64, start| (BudgetId(budget.unsigned_abs()), clock::timestamp(start));
    Ok(rows
        .into_iter()
        .map(|row| window(row.budget_id, row.window_start))
        .collect())
}

/// A row for each window that has none, to be held. By itself, in one statement:
/// whoever waits here holds no window yet that another could wait for.
async fn ensure(connection: &mut PgConnection, windows: &[WindowId]) -> Result<(), DbError> {
    let (budgets, starts) = columns(windows);
    sqlx::query!(
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

/// Takes out shares of windows that are over, of starts that have said nothing
/// for a day.
pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = sqlx::query!(
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
