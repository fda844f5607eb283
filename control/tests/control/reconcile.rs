//! Shares of limits and budgets, and the limits state.

use std::collections::BTreeMap;
use std::time::Duration;

use fastllm_contract::{
    BudgetId, BudgetShare, BudgetUsage, Grant, LimitReport, LimitReportReply, LimitUsage,
    LimitsState, Micros, PrincipalId, Subject, Timestamp, Tokens,
};
use reqwest::{Method, StatusCode, header};
use serde_json::json;
use time::OffsetDateTime;

use crate::harness::{Control, Database, PASSWORD, eventually, started, status_and_json};

pub(crate) async fn reconcile(control: &Control, report: &LimitReport) -> LimitReportReply {
    let request = control.as_gateway(Method::POST, "/limits/reconcile");
    let response = request.json(report).send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn report(replica: &str) -> LimitReport {
    LimitReport {
        replica_id: replica.to_owned(),
        boot_id: "boot-1".to_owned(),
        ..LimitReport::default()
    }
}

/// Reports usage of principal 1. Returns the number of gateways and the shares of
/// requests and tokens.
async fn limit_shares(
    control: &Control,
    replica: &str,
    requests: u64,
    tokens: u64,
) -> (u32, f64, f64) {
    let mut report = report(replica);
    let subject = Subject::Principal(PrincipalId(1));
    report.counts.push(LimitUsage {
        subject: subject.clone(),
        requests,
        tokens,
        concurrency: None,
    });
    let reply = reconcile(control, &report).await;
    assert_eq!(reply.allowances.len(), 1);
    let share = &reply.allowances[0];
    assert_eq!(share.subject, subject);
    (reply.replicas, share.requests_share, share.tokens_share)
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.02, "{found}, not {expected}");
}

/// Makes the reports of a gateway older.
pub(crate) async fn silent(database: &Database, replica: &str, seconds: f64) {
    for sql in [
        "UPDATE limit_replicas SET seen_at = seen_at - make_interval(secs => $2) WHERE replica = $1",
        "UPDATE limit_counts SET reported_at = reported_at - make_interval(secs => $2) WHERE replica = $1",
        "UPDATE budget_shares SET reported_at = reported_at - make_interval(secs => $2) WHERE replica = $1",
    ] {
        sqlx::query(sql)
            .bind(replica)
            .bind(seconds)
            .execute(&database.pool)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn limits_are_shared_by_demand() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    assert_eq!(limit_shares(&first, "a", 0, 0).await, (1, 1.0, 1.0));
    // Without demand, shares are even.
    assert_eq!(limit_shares(&second, "b", 0, 0).await, (2, 0.5, 0.5));
    assert_eq!(limit_shares(&first, "a", 30, 0).await.0, 2);
    let (_, requests, tokens) = limit_shares(&second, "b", 10, 500).await;
    near(requests, 0.25);
    near(tokens, 16.0 / 17.0);
    let (_, requests, tokens) = limit_shares(&first, "a", 0, 0).await;
    near(requests, 0.75);
    // An idle gateway keeps an eighth of an even share.
    near(tokens, 1.0 / 17.0);
    // Old demand has decayed.
    silent(&database, "a", 25.0).await;
    near(limit_shares(&first, "b", 10, 0).await.1, 20.0 / 28.5);
    silent(&database, "a", 5.5).await;
    assert_eq!(limit_shares(&second, "b", 1, 1).await, (1, 1.0, 1.0));
    assert_eq!(
        database.number("SELECT count(*) FROM limit_replicas").await,
        1
    );
    let third = limit_shares(&second, "c", 0, 0).await;
    assert_eq!(third.0, 2);
    near(third.1, 1.0 / 17.0);
}

/// Reports of the original implementation and of later releases.
#[tokio::test]
async fn reports_of_other_releases_are_accepted() {
    let (_database, control) = started().await;
    let send = async |body: &serde_json::Value| {
        status_and_json(
            control
                .as_gateway(Method::POST, "/limits/reconcile")
                .json(body),
        )
        .await
    };
    let body = json!({
        "replica_id": "a",
        "mood": "good",
        "counts": [{ "principal_id": 1, "requests": 3, "tokens": 4, "since": 5 }],
    });
    let (status, reply) = send(&body).await;
    let share = json!({ "principal_id": 1, "requests_share": 1.0, "tokens_share": 1.0 });
    assert_eq!((status, &reply["allowances"]), (200, &json!([share])));
    for (body, status) in [
        (json!({ "replica_id": "" }), 400),
        (json!({ "replica_id": "a\nb" }), 400),
        (
            json!({ "replica_id": "a", "boot_id": "x".repeat(257) }),
            400,
        ),
        (
            json!({ "replica_id": "a", "counts": vec![share.clone(); 10_001] }),
            413,
        ),
        (
            json!({
                "replica_id": "a",
                "budgets": vec![json!({ "budget": 1, "window_start": 0 }); 10_001],
            }),
            413,
        ),
    ] {
        assert_eq!(send(&body).await.0, status);
    }
    let response = control.get("/limits-state").send().await.unwrap();
    assert_eq!(response.status(), 401);
}

/// Sets a budget of principal 1 and returns an empty usage of its current window.
pub(crate) async fn budget(
    database: &Database,
    control: &Control,
    body: serde_json::Value,
) -> BudgetUsage {
    let root = control.session("root", PASSWORD).await;
    let (status, response) = root.put("/admin/principals/1/budget", body).await;
    assert_eq!(status, 204, "{response}");
    let (id, start): (i64, OffsetDateTime) =
        sqlx::query_as("SELECT id, window_start FROM budgets WHERE principal_id = 1")
            .fetch_one(&database.pool)
            .await
            .unwrap();
    BudgetUsage {
        budget: BudgetId(id.unsigned_abs()),
        window_start: timestamp(start),
        tokens: Tokens(0),
        tokens_reserved: Tokens(0),
        cost_micros: Micros(0),
        cost_reserved_micros: Micros(0),
    }
}

fn timestamp(at: OffsetDateTime) -> Timestamp {
    Timestamp(i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap())
}

/// Whether the reply contains a share of this budget.
fn has_share(reply: &LimitReportReply, entry: &BudgetUsage) -> bool {
    let mut shares = reply.budgets.iter();
    shares.any(|share| share.budget == entry.budget)
}

pub(crate) async fn budget_share(
    control: &Control,
    replica: &str,
    use_of: BudgetUsage,
) -> Option<BudgetShare> {
    let mut report = report(replica);
    report.budgets.push(use_of);
    let reply = reconcile(control, &report).await;
    let window = (use_of.budget, use_of.window_start);
    let mut shares = reply.budgets.into_iter();
    shares.find(|share| (share.budget, share.window_start) == window)
}

pub(crate) fn grant(total: u64, granted: u64, used_by_others: i64) -> Grant {
    Grant {
        total,
        granted,
        used_by_others,
    }
}

#[tokio::test]
async fn the_rest_of_a_budget_is_granted_once() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    let none = budget(&database, &first, body).await;
    let tokens = |tokens| BudgetUsage {
        tokens: Tokens(tokens),
        ..none
    };
    let share = budget_share(&first, "a", none).await.unwrap();
    assert_eq!(
        (share.tokens, share.cost_micros),
        (Some(grant(1000, 1000, 0)), None)
    );
    near(share.share, 1.0);
    // The other gateway has the whole grant until it reconciles again.
    let share = budget_share(&second, "b", none).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 0, 0)));
    near(share.share, 1.0 / 3.0);
    let share = budget_share(&second, "a", tokens(200)).await.unwrap();
    near(share.share, 24.0 / 26.0);
    assert_eq!(share.tokens, Some(grant(1000, 938, 0)));
    let share = budget_share(&first, "b", none).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 31, 200)));
    // Both leave a share for a gateway that joins.
    let share = budget_share(&first, "c", none).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 23, 200)));
    silent(&database, "c", 31.0).await;

    // Stored usage does not change the total.
    sqlx::query(
        "WITH stored AS (UPDATE budget_shares SET tokens_stored = 150 WHERE replica = 'a') \
         UPDATE budget_spending SET tokens_used = 150",
    )
    .execute(&database.pool)
    .await
    .unwrap();
    let share = budget_share(&first, "b", none).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 31, 200)));
    let share = budget_share(&first, "a", tokens(938)).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 969, 0)));
}

/// Its usage still counts, whether stored or not.
#[tokio::test]
async fn an_ended_start_has_no_grant() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    let none = budget(&database, &first, body).await;
    let tokens = Tokens(938);
    budget_share(&first, "a", BudgetUsage { tokens, ..none }).await;
    database
        .execute(
            "UPDATE budget_shares SET tokens_stored = 150; \
             UPDATE budget_spending SET tokens_used = 150",
        )
        .await;
    let mut restarted = report("a");
    restarted.boot_id = "boot-2".to_owned();
    restarted.budgets.push(none);
    let reply = reconcile(&second, &restarted).await;
    assert_eq!(reply.budgets[0].tokens, Some(grant(1000, 62, 938)));
    // Usage that is not stored within two minutes is lost.
    database
        .execute("UPDATE budget_shares SET reported_at = now() - interval '121 s' WHERE boot_id = 'boot-1' AND replica = 'a'")
        .await;
    let reply = reconcile(&second, &restarted).await;
    assert_eq!(reply.budgets[0].tokens, Some(grant(1000, 850, 150)));

    // The gateway restarts its count: nothing of the new count is stored.
    sqlx::query(
        "UPDATE budget_shares SET tokens_used = 30, tokens_stored = 20 WHERE boot_id = 'boot-2'",
    )
    .execute(&database.pool)
    .await
    .unwrap();
    let reply = reconcile(&second, &restarted).await;
    assert_eq!(reply.budgets[0].tokens, Some(grant(1000, 850, 150)));
    let kept = "SELECT tokens_stored FROM budget_shares WHERE boot_id = 'boot-2'";
    assert_eq!(database.number(kept).await, 0);

    let lower = json!({ "cost_total_micros": 70, "tokens_total": 100, "window": "daily" });
    budget(&database, &first, lower).await;
    let reply = reconcile(&first, &restarted).await;
    assert_eq!(reply.budgets[0].tokens, Some(grant(100, 0, 150)));
    assert_eq!(reply.budgets[0].cost_micros, Some(grant(70, 70, 0)));
}

/// Both are counted, and no amount is granted twice.
#[tokio::test]
async fn duplicate_replicas_are_reported_and_share_limits() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    let none = budget(&database, &first, body).await;
    let reconcile_as = async |control: &Control, replica: &str, boot_id: &str| {
        let subject = Subject::Principal(PrincipalId(1));
        let reply = reconcile(
            control,
            &LimitReport {
                boot_id: boot_id.to_owned(),
                counts: vec![LimitUsage {
                    subject,
                    requests: 10,
                    tokens: 10,
                    concurrency: None,
                }],
                budgets: vec![none],
                ..report(replica)
            },
        )
        .await;
        let share = reply.allowances[0].requests_share;
        let granted = reply.budgets[0].tokens.unwrap().granted;
        (reply.replicas, reply.duplicate_replica, share, granted)
    };
    // Restarts are not duplicates, however many there are.
    for boot_id in ["boot-1", "boot-2", "boot-3", "boot-3"] {
        let alone = reconcile_as(&first, "a", boot_id).await;
        assert_eq!(alone, (1, false, 1.0, 1000), "{boot_id}");
    }
    // An earlier start reports again. The other one keeps its grant.
    assert_eq!(
        reconcile_as(&second, "a", "boot-2").await,
        (2, true, 0.5, 0)
    );
    let (replicas, taken, share, granted) = reconcile_as(&first, "a", "boot-3").await;
    assert_eq!((replicas, taken, share), (2, true, 0.5));
    assert!((300..700).contains(&granted), "{granted}");
    let (replicas, taken, share, more) = reconcile_as(&second, "a", "boot-2").await;
    assert_eq!((replicas, taken, share), (2, true, 0.5));
    assert!(more > 200 && granted + more <= 1000, "{granted} and {more}");
    let (replicas, taken, ..) = reconcile_as(&first, "b", "boot-1").await;
    assert_eq!((replicas, taken), (3, false));

    // One of them stops.
    silent(&database, "b", 31.0).await;
    database
        .execute("UPDATE duplicate_gateways SET seen_at = seen_at - interval '31 s', concurrent_at = concurrent_at - interval '31 s'")
        .await;
    let (replicas, taken, share, _) = reconcile_as(&second, "a", "boot-3").await;
    assert_eq!((replicas, taken, share), (1, false, 1.0));
    // Old starts are deleted: only the last two are known.
    for boot_id in ["boot-4", "boot-5"] {
        database
            .execute("UPDATE duplicate_gateways SET seen_at = seen_at - interval '31 s'")
            .await;
        assert_eq!(reconcile_as(&second, "a", boot_id).await.0, 1);
    }
    assert_eq!(
        database
            .number("SELECT count(*) FROM duplicate_gateways")
            .await,
        1
    );
}

/// A gateway starts with an even share of a budget that it has not reported yet.
#[tokio::test]
async fn gateways_that_do_not_use_a_budget_receive_a_small_share() {
    let (database, control) = started().await;
    let body = json!({ "tokens_total": 900, "window": "daily" });
    let none = budget(&database, &control, body).await;
    for replica in ["a", "b", "c"] {
        assert_eq!(reconcile(&control, &report(replica)).await.budgets, []);
    }
    let tokens = |tokens| BudgetUsage {
        tokens: Tokens(tokens),
        ..none
    };
    // Two other gateways may have started to use it.
    let share = budget_share(&control, "a", tokens(30)).await.unwrap();
    assert_eq!(share.tokens, Some(grant(900, 30 + 270, 0)));
    for replica in ["b", "c"] {
        let reply = reconcile(&control, &report(replica)).await.budgets;
        assert_eq!(reply.len(), 1);
        assert_eq!(reply[0].budget, none.budget);
        assert_eq!(reply[0].tokens, Some(grant(900, 25, 30)));
    }
    let share = budget_share(&control, "a", tokens(30)).await.unwrap();
    assert_eq!(share.tokens, Some(grant(900, 30 + 795, 0)));
    // Budgets without usage are not sent.
    silent(&database, "a", 31.0).await;
    assert_eq!(reconcile(&control, &report("b")).await.budgets, []);
}

#[tokio::test]
async fn only_open_windows_have_shares() {
    let (database, control) = started().await;
    let body = json!({ "cost_total_micros": 1000, "window": "daily" });
    let present = budget(&database, &control, body).await;
    let day = 24 * 60 * 60 * 1_000_000;
    for (shift, known) in [
        (0, true),
        (-day, true),
        (-2 * day, false),
        (day, false),
        (1, false),
    ] {
        let shifted = BudgetUsage {
            window_start: Timestamp(present.window_start.0 + shift),
            cost_micros: Micros(10),
            ..present
        };
        let share = budget_share(&control, "a", shifted).await;
        assert_eq!(share.is_some(), known, "{shift}");
        let reply = share.map(|share| (share.window_start, share.cost_micros, share.tokens));
        let expected = (shifted.window_start, Some(grant(1000, 1000, 0)), None);
        assert_eq!(reply, known.then_some(expected));
    }
    let impossible = BudgetUsage {
        window_start: Timestamp(i64::MIN),
        budget: BudgetId(u64::MAX),
        ..present
    };
    assert_eq!(budget_share(&control, "a", impossible).await, None);
    let most = BudgetUsage {
        tokens: Tokens(u64::MAX),
        cost_micros: Micros(u64::MAX),
        cost_reserved_micros: Micros(u64::MAX),
        ..present
    };
    for replica in ["a", "b", "a"] {
        let share = budget_share(&control, replica, most).await.unwrap();
        assert_eq!(share.cost_micros.unwrap().total, 1000);
    }
    let root = control.session("root", PASSWORD).await;
    let shown = root.get("/admin/principals/1/budget").await;
    assert_eq!(shown["cost_reserved_micros"], i64::MAX);
    root.delete("/admin/principals/1/budget").await;
    assert_eq!(budget_share(&control, "a", present).await, None);
}

/// The actual state of a gateway, as opposed to what the control plane has stored.
struct FakeGateway {
    name: String,
    boot: u32,
    granted: u64,
    used: u64,
    in_flight: u64,
    stored: u64,
}

impl FakeGateway {
    fn free(&self) -> u64 {
        self.granted.saturating_sub(self.used + self.in_flight)
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }
}

struct Simulation<'a> {
    database: &'a Database,
    controls: [&'a Control; 2],
    random: fastrand::Rng,
    none: BudgetUsage,
    total: u64,
    /// The actual usage.
    taken: u64,
    gateways: Vec<FakeGateway>,
    /// Ended starts: replica, boot ID and usage that is not stored.
    ended: Vec<(String, String, u64)>,
}

impl Simulation<'_> {
    async fn report(&mut self, who: usize) {
        let control = self.controls[self.random.usize(..2)];
        let gateway = &mut self.gateways[who];
        let mut report = report(&gateway.name);
        report.boot_id = gateway.boot_id();
        report.budgets.push(BudgetUsage {
            tokens: Tokens(gateway.used),
            tokens_reserved: Tokens(gateway.in_flight),
            ..self.none
        });
        let reply = reconcile(control, &report).await;
        let grant = reply.budgets[0].tokens.unwrap();
        assert_eq!(grant.total, self.total);
        assert!(grant.granted >= gateway.used);
        gateway.granted = grant.granted;
    }

    /// Stores usage as a batch does.
    async fn store(&self, replica: &str, boot_id: &str, tokens: u64) {
        let tokens = i64::try_from(tokens).unwrap();
        let id = i64::try_from(self.none.budget.0).unwrap();
        let mut transaction = self.database.pool.begin().await.unwrap();
        for sql in [
            "INSERT INTO budget_spending (budget_id, window_start, tokens_used) \
             SELECT id, window_start, $2 FROM budgets WHERE id = $1 AND ($3 || $4) <> '' \
             ON CONFLICT (budget_id, window_start) DO UPDATE \
                SET tokens_used = budget_spending.tokens_used + $2",
            "INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, tokens_stored) \
             SELECT id, window_start, $3, $4, $2 FROM budgets WHERE id = $1 \
             ON CONFLICT (budget_id, window_start, replica, boot_id) DO UPDATE \
                SET tokens_stored = budget_shares.tokens_stored + $2",
        ] {
            sqlx::query(sql)
                .bind(id)
                .bind(tokens)
                .bind(replica)
                .bind(boot_id)
                .execute(&mut *transaction)
                .await
                .unwrap();
        }
        transaction.commit().await.unwrap();
    }

    async fn set_total(&mut self, total: u64) {
        sqlx::query("UPDATE budgets SET tokens_total = $1")
            .bind(i64::try_from(total).unwrap())
            .execute(&self.database.pool)
            .await
            .unwrap();
        self.total = total;
    }

    /// Ends a start after a last report, and begins another.
    async fn restart(&mut self, who: usize) {
        self.finish(who);
        self.report(who).await;
        let gateway = &mut self.gateways[who];
        let left = gateway.used - gateway.stored;
        let ended = (gateway.name.clone(), gateway.boot_id(), left);
        gateway.boot += 1;
        (gateway.granted, gateway.used, gateway.stored) = (0, 0, 0);
        self.ended.push(ended);
    }

    fn finish(&mut self, who: usize) {
        let gateway = &mut self.gateways[who];
        self.taken += gateway.in_flight;
        gateway.used += std::mem::take(&mut gateway.in_flight);
    }

    async fn step(&mut self) {
        let who = self.random.usize(..self.gateways.len());
        let most = self.random.u64(..300);
        match self.random.u32(..16) {
            0..=3 => {
                let gateway = &mut self.gateways[who];
                let amount = gateway.free().min(most);
                gateway.used += amount;
                self.taken += amount;
            }
            4..=5 => {
                let gateway = &mut self.gateways[who];
                gateway.in_flight += gateway.free().min(most);
            }
            6..=7 => self.finish(who),
            8..=10 => self.report(who).await,
            11..=12 => {
                let gateway = &mut self.gateways[who];
                let amount = (gateway.used - gateway.stored).min(most);
                gateway.stored += amount;
                let (name, boot) = (gateway.name.clone(), gateway.boot_id());
                self.store(&name, &boot, amount).await;
            }
            13 => {
                if let Some((name, boot, left)) = self.ended.pop() {
                    self.store(&name, &boot, left).await;
                }
            }
            14 => self.restart(who).await,
            _ => {
                let total = self.random.u64(2000..6000);
                self.set_total(total).await;
            }
        }
    }

    /// The actual usage and the amount that can be used before reconciling.
    fn bound(&self) -> u64 {
        let free = self
            .gateways
            .iter()
            .map(|gateway| gateway.in_flight + gateway.free());
        self.taken + free.sum::<u64>()
    }
}

#[tokio::test]
async fn no_order_of_events_overspends_a_budget() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let body = json!({ "tokens_total": 4000, "window": "monthly" });
    let none = budget(&database, &first, body).await;
    for seed in 0..3 {
        database
            .execute(
                "DELETE FROM budget_shares; DELETE FROM budget_spending; \
                 DELETE FROM limit_replicas; DELETE FROM duplicate_gateways",
            )
            .await;
        let gateway = |number| FakeGateway {
            name: format!("gateway-{number}"),
            boot: 0,
            granted: 0,
            used: 0,
            in_flight: 0,
            stored: 0,
        };
        let mut simulation = Simulation {
            database: &database,
            controls: [&first, &second],
            random: fastrand::Rng::with_seed(seed),
            none,
            total: 0,
            taken: 0,
            gateways: (0..3).map(gateway).collect(),
            ended: Vec::new(),
        };
        simulation.set_total(4000).await;
        for step in 0..300 {
            let before = simulation.bound();
            simulation.step().await;
            let (bound, total) = (simulation.bound(), simulation.total);
            assert!(
                bound <= before.max(total),
                "seed {seed}, step {step}: {before} to {bound} of {total}"
            );
        }
        // Finally, one gateway can use the whole rest.
        simulation.set_total(simulation.taken + 1000).await;
        for who in 0..3 {
            simulation.restart(who).await;
        }
        for _ in 0..40 {
            simulation.report(0).await;
            let free = simulation.gateways[0].free();
            simulation.gateways[0].used += free;
            simulation.taken += free;
            for who in 1..3 {
                simulation.report(who).await;
            }
        }
        assert!(
            simulation.taken + 2 >= simulation.total,
            "{} of {}",
            simulation.taken,
            simulation.total
        );
        assert!(simulation.bound() <= simulation.total);
    }
}

/// Many concurrent reports with overlapping windows.
#[tokio::test]
async fn concurrent_reports_do_not_deadlock() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    database
        .execute(
            "INSERT INTO principals (name) SELECT 'p' || n FROM generate_series(1, 60) AS n; \
             INSERT INTO budgets (principal_id, tokens_total, budget_window) \
             SELECT id, 100000, 'daily' FROM principals WHERE name LIKE 'p%'",
        )
        .await;
    let rows: Vec<(i64, OffsetDateTime)> = sqlx::query_as("SELECT id, window_start FROM budgets")
        .fetch_all(&database.pool)
        .await
        .unwrap();
    let gateways = (0..8_u64).map(|number| {
        let (first, second, rows) = (&first, &second, &rows);
        async move {
            let mut random = fastrand::Rng::with_seed(number);
            let mut used = vec![0; rows.len()];
            let mut granted = BTreeMap::new();
            for round in 0..12 {
                let mut report = report(&format!("gateway-{number}"));
                for (index, (id, start)) in rows.iter().enumerate() {
                    if random.u8(..4) > 0 {
                        let most = granted.get(&id.unsigned_abs()).copied().unwrap_or(0);
                        used[index] = random.u64(..=most).max(used[index]);
                        report.budgets.push(BudgetUsage {
                            budget: BudgetId(id.unsigned_abs()),
                            window_start: timestamp(*start),
                            tokens: Tokens(used[index]),
                            tokens_reserved: Tokens(0),
                            cost_micros: Micros(0),
                            cost_reserved_micros: Micros(0),
                        });
                    }
                    report.counts.push(LimitUsage {
                        subject: Subject::Principal(PrincipalId(id.unsigned_abs())),
                        requests: 1,
                        tokens: 1,
                        concurrency: None,
                    });
                }
                random.shuffle(&mut report.budgets);
                random.shuffle(&mut report.counts);
                let control = if round % 2 == 0 { first } else { second };
                let reply = reconcile(control, &report).await;
                assert!(report.budgets.iter().all(|entry| has_share(&reply, entry)));
                assert_eq!(reply.allowances.len(), rows.len());
                for share in reply.budgets {
                    granted.insert(share.budget.0, share.tokens.unwrap().granted);
                }
            }
        }
    });
    futures_util::future::join_all(gateways).await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.number(deadlocks).await, 0);
    // No amount was granted twice.
    let over = "SELECT count(*) FROM (SELECT sum(tokens_granted) AS granted FROM budget_shares \
                 GROUP BY budget_id) AS s WHERE granted > 100000";
    assert_eq!(database.number(over).await, 0);
}

async fn limits_state(
    control: &Control,
    held: Option<&str>,
) -> (StatusCode, String, Option<LimitsState>) {
    let mut request = control.as_gateway(Method::GET, "/limits-state?of=later");
    if let Some(held) = held {
        request = request.header(header::IF_NONE_MATCH, held);
    }
    let response = request.send().await.unwrap();
    let status = response.status();
    let tag = response.headers()[header::ETAG]
        .to_str()
        .unwrap()
        .to_owned();
    let body = (status == StatusCode::OK).then_some(response);
    let body = match body {
        Some(response) => Some(response.json().await.unwrap()),
        None => None,
    };
    (status, tag, body)
}

#[tokio::test]
async fn every_replica_returns_the_same_limits_state() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let root = first.session("root", PASSWORD).await;
    let (_, _, reply) = limits_state(&first, None).await;
    assert_eq!(
        reply,
        Some(LimitsState {
            replicas: 1,
            ..LimitsState::default()
        })
    );
    root.model("unpriced").await;
    for (name, price) in [("b", 7), ("B", 0)] {
        let model = json!({ "name": name, "input_price_per_mtok": price });
        assert_eq!(root.post("/admin/models", model).await.0, 201);
    }
    let body = json!({ "tokens_total": 10, "window": "daily" });
    let none = budget(&database, &first, body).await;
    let (_, before, _) = limits_state(&first, None).await;
    let version = "SELECT config_version FROM config_state";
    let configured = database.number(version).await;
    database
        .execute(
            "INSERT INTO budget_spending (budget_id, window_start, tokens_used, cost_used_micros) \
             SELECT id, window_start, 3, 4 FROM budgets; \
             INSERT INTO budget_spending (budget_id, window_start, tokens_used) \
             SELECT id, window_start - interval '1 day', 9 FROM budgets",
        )
        .await;
    for name in ["a", "b"] {
        reconcile(&second, &report(name)).await;
    }
    let (status, tag, reply) = limits_state(&first, Some(&before)).await;
    assert_eq!(status, StatusCode::OK);
    let reply = reply.unwrap();
    let prices: Vec<(&str, Option<Micros>)> = reply
        .prices
        .iter()
        .map(|row| (row.model.as_str(), row.prices.input_price_per_mtok))
        .collect();
    assert_eq!(prices, [("B", Some(Micros(0))), ("b", Some(Micros(7)))]);
    assert_eq!((reply.replicas, reply.budgets.len()), (2, 1));
    let spent = &reply.budgets[0];
    assert_eq!(
        (spent.budget, spent.window_start),
        (none.budget, none.window_start)
    );
    assert_eq!(
        (spent.tokens_used, spent.cost_used_micros),
        (Tokens(3), Micros(4))
    );
    assert_eq!(
        limits_state(&second, Some(&tag)).await.0,
        StatusCode::NOT_MODIFIED
    );
    assert_eq!(database.number(version).await, configured);
}

#[tokio::test]
async fn expired_shares_and_counts_are_deleted() {
    let (database, control) = started().await;
    let body = json!({ "tokens_total": 10, "window": "daily" });
    let present = budget(&database, &control, body).await;
    budget_share(&control, "gateway", present).await;
    limit_shares(&control, "gateway", 1, 1).await;
    database
        .execute(
            "INSERT INTO budget_spending (budget_id, window_start) \
             SELECT id, now() - make_interval(days => d) FROM budgets, unnest(ARRAY[40, 73]) AS d; \
             INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, reported_at) \
             SELECT id, now() - interval '3 days', 'old', 'x', now() - interval '3 days' \
               FROM budgets; \
             INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, reported_at) \
             SELECT id, now() - interval '3 days', 'late', 'x', now() FROM budgets; \
             INSERT INTO limit_counts (subject, replica, requests, tokens, reported_at) \
             VALUES ('old', 'gateway', 1, 1, now() - interval '61 min'); \
             INSERT INTO limit_counts (subject, replica, requests, tokens, concurrency_limit, \
                                       concurrency_held, reported_at) \
             VALUES ('held', 'gateway', 0, 0, 9, 3, now() - interval '61 min')",
        )
        .await;
    // A control plane deletes expired rows at start.
    let _second = Control::start(&database).await;
    for (sql, left) in [
        ("SELECT count(*) FROM budget_spending", 2),
        ("SELECT count(*) FROM budget_shares", 2),
        ("SELECT count(*) FROM limit_counts", 2),
    ] {
        let deleted = eventually(sql, async || {
            (database.number(sql).await == left).then_some(())
        });
        tokio::time::timeout(Duration::from_secs(30), deleted)
            .await
            .unwrap();
    }
}
