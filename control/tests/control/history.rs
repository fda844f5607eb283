//! Times that order history are those at which a change holds its lock: a
//! transaction may have waited for another one since it began.

use fastllm_contract::{
    BudgetId, BudgetUsage, LimitUsage, LimitsState, Micros, PrincipalId, Subject, Timestamp, Tokens,
};
use reqwest::Method;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::accounting::{batch, event, reply, send};
use crate::harness::{
    Control, Database, PASSWORD, Session, WAITING, eventually, started, status_and_json,
};
use crate::prices::{micros, with};
use crate::reconcile::{reconcile, report};

async fn limits_state(control: &Control) -> LimitsState {
    let request = control.as_gateway(Method::GET, "/limits-state");
    serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn the_shown_price_is_the_billed_and_the_published_one() {
    const ROUNDS: u64 = 60;
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let root = first.session("root", PASSWORD).await;
    let other = second.session("root", PASSWORD).await;
    let prices = json!({ "name": "m", "input_price_per_mtok": 0, "output_price_per_mtok": 0 });
    let (_, made) = root.post("/admin/models", prices).await;
    let path = format!("/admin/models/{}", made["id"]);
    let set = async |session: &Session<'_>, price: u64| {
        let body = json!({ "input_price_per_mtok": price });
        assert_eq!(session.patch(&path, body).await.0, 204);
    };
    for round in 1..=ROUNDS {
        let price = round * 2000;
        tokio::join!(
            set(&root, price),
            set(&other, price + 1000),
            set(&root, price + 2000),
            set(&other, price + 3000)
        );
        let shown = root.get(&path).await["input_price_per_mtok"].clone();
        let price = shown.as_u64().unwrap();
        let now = micros(OffsetDateTime::now_utc());
        let events = [with("m", json!({ "at": now, "prompt_tokens": 1_000_000 }))];
        assert_eq!(
            send(&first, &batch(round, &events)).await,
            reply(1, 0, false)
        );
        let billed = root.get("/admin/usage/events?limit=1").await[0]["cost_micros"].clone();
        assert_eq!(billed, shown, "round {round}");
        let published = limits_state(&second).await.prices[0].prices;
        assert_eq!(published.input_price_per_mtok, Some(Micros(price)));
    }
    let histories = "SELECT count(*) FROM model_prices WHERE valid_from > clock_timestamp()";
    assert_eq!(database.number(histories).await, 0);
}

/// The clock of the database may be set back.
#[tokio::test]
async fn a_new_price_is_valid_at_once_even_after_one_of_the_future() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let prices = json!({ "name": "m", "input_price_per_mtok": 1000, "output_price_per_mtok": 0 });
    let (_, made) = root.post("/admin/models", prices).await;
    database
        .execute(
            "UPDATE model_prices SET valid_from = valid_from - interval '2 h'; \
             UPDATE models SET input_price_per_mtok = 2000; \
             UPDATE model_prices SET valid_from = valid_from + interval '1 h' \
              WHERE input_price_per_mtok = 2000",
        )
        .await;
    let path = format!("/admin/models/{}", made["id"]);
    let body = json!({ "input_price_per_mtok": 3000 });
    assert_eq!(root.patch(&path, body).await.0, 204);
    let now = micros(OffsetDateTime::now_utc());
    let events = [0, 3_600_000_000].map(|before| {
        let more = json!({ "at": now - before, "prompt_tokens": 1_000_000 });
        with("m", more)
    });
    assert_eq!(send(&control, &batch(1, &events)).await, reply(2, 0, false));
    let rows = root.get("/admin/usage/events").await;
    let costs = [&rows[1]["cost_micros"], &rows[0]["cost_micros"]];
    assert_eq!(costs, [3000, 1000]);
}

/// Runs a request that waits for a lock. Returns its status and the time at which the
/// lock was released.
fn released_at<'a>(
    database: &'a Database,
    lock: &'static str,
    request: impl Future<Output = u16> + 'a,
) -> impl Future<Output = (u16, OffsetDateTime)> + 'a {
    let request = Box::pin(request);
    async move {
        let mut transaction = database.pool.begin().await.unwrap();
        sqlx::query(lock).execute(&mut *transaction).await.unwrap();
        let release = async {
            eventually("the request waits", async || {
                (database.number(WAITING).await > 0).then_some(())
            })
            .await;
            let now = sqlx::query_scalar("SELECT clock_timestamp()");
            let now: OffsetDateTime = now.fetch_one(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            now
        };
        tokio::join!(request, release)
    }
}

/// Asserts that the times which a query returns are not earlier than `released`.
async fn assert_later(database: &Database, released: OffsetDateTime, newest: &'static str) {
    let time: Option<OffsetDateTime> = sqlx::query_scalar(newest)
        .fetch_one(&database.pool)
        .await
        .unwrap();
    assert!(time.is_some_and(|time| time >= released), "{newest}");
}

#[tokio::test]
async fn times_of_changes_are_those_at_which_they_hold_the_lock() {
    const LOCK: &str = "SELECT config_version FROM config_state FOR UPDATE";
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (model, former) = (root.model("m").await, root.model("former").await);
    let (_, made) = root.post("/admin/principals", json!({ "name": "p" })).await;
    let change = async |method: Method, path: String, body: Value| {
        let (status, _) = status_and_json(root.request(method, &path).json(&body)).await;
        status
    };
    let model = format!("/admin/models/{model}");
    let former = format!("/admin/models/{former}");
    let principal = format!("/admin/principals/{}", made["id"]);
    let list = |name: &str| format!("/admin/{name}");
    let key = json!({ "name": "k", "principal_id": 1 });
    for (method, path, body, newest) in [
        (
            Method::PATCH,
            model,
            json!({ "input_price_per_mtok": 5 }),
            "SELECT max(valid_from) FROM model_prices",
        ),
        (
            Method::DELETE,
            former,
            json!({}),
            "SELECT max(deleted_at) FROM former_models",
        ),
        (
            Method::DELETE,
            principal,
            json!({}),
            "SELECT max(deleted_at) FROM former_principals",
        ),
        (
            Method::POST,
            list("teams"),
            json!({ "name": "t" }),
            "SELECT max(created_at) FROM teams",
        ),
        (
            Method::POST,
            list("principals"),
            json!({ "name": "q" }),
            "SELECT max(created_at) FROM principals",
        ),
        (
            Method::POST,
            list("keys"),
            key,
            "SELECT max(created_at) FROM api_keys",
        ),
    ] {
        let changed = change(method, path, body);
        let (status, released) = released_at(&database, LOCK, changed).await;
        assert!((200..300).contains(&status), "{status}: {newest}");
        assert_later(&database, released, newest).await;
        assert_later(&database, released, "SELECT max(at) FROM audit_events").await;
    }
}

#[tokio::test]
async fn a_session_begins_when_it_holds_the_lock() {
    let (database, control) = started().await;
    let lock = "SELECT FROM principals WHERE name = 'root' FOR UPDATE";
    let login = async { control.login("root", PASSWORD).await.status().as_u16() };
    let (status, released) = released_at(&database, lock, login).await;
    assert_eq!(status, 200);
    assert_later(&database, released, "SELECT max(created_at) FROM sessions").await;
}

#[tokio::test]
async fn times_of_limit_reports_are_those_at_which_they_hold_the_lock() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    assert_eq!(root.put("/admin/principals/1/budget", body).await.0, 204);
    let budget = "SELECT id FROM budgets";
    let start: OffsetDateTime = sqlx::query_scalar("SELECT window_start FROM budgets")
        .fetch_one(&database.pool)
        .await
        .unwrap();
    let mut report = report("gateway-0");
    report.counts.push(LimitUsage {
        subject: Subject::Principal(PrincipalId(1)),
        requests: 1,
        tokens: 1,
        concurrency: None,
    });
    report.budgets.push(BudgetUsage {
        budget: BudgetId(database.number(budget).await.unsigned_abs()),
        window_start: Timestamp(micros(start)),
        tokens: Tokens(1),
        tokens_reserved: Tokens(0),
        cost_micros: Micros(0),
        cost_reserved_micros: Micros(0),
    });
    reconcile(&control, &report).await;
    let report = &report;
    for (lock, newest) in [
        (
            "SELECT FROM limit_replicas FOR UPDATE",
            "SELECT max(seen_at) FROM limit_replicas",
        ),
        (
            "SELECT pg_advisory_xact_lock(7406329015572)",
            "SELECT max(reported_at) FROM limit_counts",
        ),
        (
            "SELECT FROM budget_spending FOR UPDATE",
            "SELECT max(reported_at) FROM budget_shares",
        ),
    ] {
        let reported = async {
            reconcile(&control, report).await;
            200
        };
        let (_, released) = released_at(&database, lock, reported).await;
        assert_later(&database, released, newest).await;
    }
}

#[tokio::test]
async fn times_of_usage_are_those_at_which_it_holds_the_lock() {
    let (database, control) = started().await;
    control.session("root", PASSWORD).await.model("m").await;
    assert_eq!(send(&control, &batch(1, &[])).await, reply(0, 0, false));
    let lock = "SELECT FROM usage_reporters FOR UPDATE";
    let next = batch(2, &[event("m")]);
    let stored = async { send(&control, &next).await.0 };
    let (status, released) = released_at(&database, lock, stored).await;
    assert_eq!(status, 200);
    for newest in [
        "SELECT max(seen_at) FROM usage_reporters",
        "SELECT max(received_at) FROM usage_events",
    ] {
        assert_later(&database, released, newest).await;
    }
}

/// `now()` is the start of the transaction.
#[tokio::test]
async fn no_column_defaults_to_the_start_of_the_transaction() {
    let (database, _control) = started().await;
    let found: Vec<String> = sqlx::query_scalar(
        "SELECT d.adrelid::regclass || '.' || a.attname \
           FROM pg_attrdef AS d \
           JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
          WHERE pg_get_expr(d.adbin, d.adrelid) ~* 'now\\(\\)|current_timestamp' \
            AND d.adrelid <> '_sqlx_migrations'::regclass ORDER BY 1",
    )
    .fetch_all(&database.pool)
    .await
    .unwrap();
    assert_eq!(found, [] as [&str; 0]);
}
