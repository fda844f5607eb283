//! The cost of changes with many dependent rows, as numbers of function calls: the
//! lock on the configuration is held meanwhile.

use sqlx::AssertSqlSafe;

use crate::harness::{Database, started};

/// Creates `count` rows that depend on one row, under IDs from 1000.
const SETUPS: &str = "
    INSERT INTO principals (id, name) SELECT 1000 + n, 'p' || n FROM generate_series(0, $N) AS n;
    INSERT INTO models (id, name) SELECT 1000 + n, 'm' || n FROM generate_series(0, $N) AS n;
    INSERT INTO roles (id, name) SELECT 1000 + n, 'r' || n FROM generate_series(0, $N) AS n;
    INSERT INTO api_keys (id, hash, prefix, name, principal_id)
    SELECT 1000 + n, sha256(n::text::bytea), 'p', 'k' || n, 1000 FROM generate_series(1, $N) AS n;
    INSERT INTO limits (key_id, requests_per_min) SELECT id, 5 FROM api_keys;
    INSERT INTO budgets (key_id, tokens_total, budget_window) SELECT id, 5, 'daily' FROM api_keys;
    INSERT INTO limits (principal_id, model_id, requests_per_min)
    SELECT 1000 + n, 1000, 5 FROM generate_series(1, $N) AS n;
    INSERT INTO budgets (principal_id, model_id, tokens_total, budget_window)
    SELECT 1000 + n, 1000, 5, 'daily' FROM generate_series(1, $N) AS n;
    INSERT INTO budget_spending (budget_id, window_start) SELECT id, window_start FROM budgets;
    INSERT INTO model_backends (model_id, api_base, upstream_model)
    SELECT 1000, 'http://' || n, 'm' FROM generate_series(1, $N) AS n;
    INSERT INTO role_permissions (role_id, verb, resource)
    SELECT 1000, 'model:invoke', 'model/' || n FROM generate_series(1, $N) AS n;
    INSERT INTO virtual_models (id, name) VALUES (1000, 'v');
    INSERT INTO virtual_model_defaults (virtual_model_id, model_id, position)
    SELECT 1000, 1000 + n, n FROM generate_series(1, $N) AS n;
    INSERT INTO routing_rules (id, virtual_model_id, position)
    SELECT 1000 + n, 1000, n FROM generate_series(1, $N) AS n;
    INSERT INTO rule_targets (rule_id, model_id, position)
    SELECT 1000 + n, 1000 + n, 0 FROM generate_series(1, $N) AS n;
    INSERT INTO rule_principals (rule_id, principal_id)
    SELECT 1000 + n, 1000 + n FROM generate_series(1, $N) AS n;
    INSERT INTO rule_roles (rule_id, role_id)
    SELECT 1000 + n, 1000 + n FROM generate_series(1, $N) AS n;
    INSERT INTO principal_roles (principal_id, role_id)
    SELECT 1000 + n, 1000 + n FROM generate_series(1, $N) AS n;";

const CHANGES: [&str; 9] = [
    "DELETE FROM principals WHERE id = 1000",
    "UPDATE principals SET disabled = true WHERE id = 1000",
    "UPDATE api_keys SET disabled = true WHERE principal_id = 1000",
    "UPDATE api_keys SET last_used_at = now() WHERE principal_id = 1000",
    "UPDATE limits SET requests_per_min = 7",
    "DELETE FROM models WHERE id = 1000",
    "UPDATE models SET description = 'new'",
    "DELETE FROM roles WHERE id = 1000",
    "DELETE FROM virtual_models WHERE id = 1000",
];

/// The function calls of a change that is rolled back, with the version before and
/// after it.
async fn calls(database: &Database, change: &'static str) -> (i64, i64) {
    let mut transaction = database.pool.begin().await.unwrap();
    let version = "SELECT config_version FROM config_state";
    let before: i64 = sqlx::query_scalar(version)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    // Calls of earlier transactions may be included.
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_xact_user_functions";
    let earlier: i64 = sqlx::query_scalar(calls)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    for sql in ["SET LOCAL track_functions = 'all'", change] {
        sqlx::query(sql).execute(&mut *transaction).await.unwrap();
    }
    let calls: i64 = sqlx::query_scalar(calls)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    let after: i64 = sqlx::query_scalar(version)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    (calls - earlier, after - before)
}

async fn with_dependents(count: u32) -> Database {
    let (database, control) = started().await;
    drop(control);
    let sql = SETUPS.replace("$N", &count.to_string());
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&database.pool)
        .await
        .unwrap();
    database
}

#[tokio::test]
async fn the_cost_of_a_change_does_not_depend_on_the_number_of_dependent_rows() {
    let (few, many) = (with_dependents(2).await, with_dependents(300).await);
    for change in CHANGES {
        let (expected, versions) = calls(&few, change).await;
        assert_eq!(calls(&many, change).await, (expected, versions), "{change}");
        assert!(versions <= 1, "{change}");
    }
}

/// Without one, each deletion of a referenced row reads the whole table.
#[tokio::test]
async fn every_foreign_key_has_an_index() {
    let (database, _control) = started().await;
    let missing: Vec<String> = sqlx::query_scalar(
        "SELECT c.conrelid::regclass || ': ' || c.conname FROM pg_constraint AS c \
          WHERE c.contype = 'f' AND NOT EXISTS (SELECT FROM pg_index AS i \
                 WHERE i.indrelid = c.conrelid AND i.indpred IS NULL \
                   AND (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey) \
          ORDER BY 1",
    )
    .fetch_all(&database.pool)
    .await
    .unwrap();
    assert_eq!(missing, [] as [&str; 0]);
}

/// Changes of keys, their allowances and their principal reach the shard of the key.
#[tokio::test]
async fn every_change_of_a_key_changes_its_shard() {
    let database = with_dependents(2).await;
    let changed = "SELECT count(*) FROM key_shards AS s JOIN config_state AS c USING (change_id)";
    for (change, shards) in [
        ("DELETE FROM principals WHERE id = 1000", 2),
        ("UPDATE principals SET disabled = true WHERE id = 1000", 2),
        ("UPDATE principals SET disabled = false WHERE id = 1000", 0),
        ("UPDATE api_keys SET expires_at = now() WHERE id = 1001", 1),
        ("UPDATE api_keys SET hash = sha256('x') WHERE id = 1001", 2),
        ("UPDATE api_keys SET name = 'n', last_used_at = now()", 0),
        (
            "INSERT INTO api_keys (hash, prefix, name, principal_id) VALUES (sha256('x'), '', '', 1)",
            1,
        ),
        ("DELETE FROM limits WHERE key_id = 1002", 1),
        (
            "UPDATE limits SET tokens_per_min = 1 WHERE key_id = 1002",
            1,
        ),
        (
            "UPDATE budgets SET tokens_total = 1 WHERE key_id IS NOT NULL",
            2,
        ),
        (
            "UPDATE budgets SET tokens_total = 1 WHERE key_id IS NULL",
            0,
        ),
    ] {
        let mut transaction = database.pool.begin().await.unwrap();
        // So that no shard has the present change.
        sqlx::query("UPDATE config_state SET change_id = gen_random_uuid()")
            .execute(&mut *transaction)
            .await
            .unwrap();
        sqlx::query(change)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let found: i64 = sqlx::query_scalar(changed)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!(found, shards, "{change}");
    }
}
