use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;

use super::{DbError, Failure, only};

/// A rule without its targets.
#[derive(Debug, Clone)]
pub(crate) struct RuleRow {
    pub(crate) id: i64,
    pub(crate) virtual_model_id: i64,
    /// Rules are evaluated in this order.
    pub(crate) position: i32,
    /// Sorted IDs; empty for any caller.
    pub(crate) principals: Vec<i64>,
    /// Sorted names; empty for any roles.
    pub(crate) roles: Vec<String>,
    /// `None` if a later release wrote unknown conditions: ignoring one would let the
    /// rule hold too often.
    pub(crate) conditions: Option<Conditions>,
}

/// The conditions that refer to no other table, as they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Conditions {
    pub(crate) min_prompt_tokens: Option<u64>,
    pub(crate) max_prompt_tokens: Option<u64>,
    pub(crate) min_max_tokens: Option<u64>,
    pub(crate) max_max_tokens: Option<u64>,
    pub(crate) stream: Option<bool>,
    /// Names are in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) min_budget_used_percent: Option<u8>,
    pub(crate) max_budget_used_percent: Option<u8>,
    pub(crate) max_inflight_per_backend: Option<u32>,
    /// Minute of the day.
    pub(crate) after_minute: Option<u16>,
    /// Minute of the day.
    pub(crate) before_minute: Option<u16>,
    /// Sorted, Monday is 1; empty for every day.
    pub(crate) days: Vec<u8>,
    /// The offset of the times and days from UTC.
    pub(crate) utc_offset_minutes: i32,
}

impl RuleRow {
    /// Whether the rule holds for every request.
    pub(crate) fn always_holds(&self) -> bool {
        let shift = self
            .conditions
            .as_ref()
            .map_or(0, |conditions| conditions.utc_offset_minutes);
        let nothing = Conditions {
            utc_offset_minutes: shift,
            ..Conditions::default()
        };
        self.principals.is_empty()
            && self.roles.is_empty()
            && self.conditions.as_ref() == Some(&nothing)
    }
}

/// The rules of the given virtual models, in the order of evaluation.
pub(crate) async fn of_virtual_models(
    connection: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<RuleRow>, DbError> {
    let rows = query!(
        r#"SELECT r.id, r.virtual_model_id, r.position, r.match_json,
                  ARRAY(SELECT p.principal_id FROM rule_principals AS p
                         WHERE p.rule_id = r.id ORDER BY p.principal_id) AS "principals!",
                  ARRAY(SELECT o.name FROM rule_roles AS h JOIN roles AS o ON o.id = h.role_id
                         WHERE h.rule_id = r.id ORDER BY o.name COLLATE "C") AS "roles!"
             FROM routing_rules AS r
            WHERE r.virtual_model_id = ANY ($1)
            ORDER BY r.virtual_model_id, r.position"#,
        ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| RuleRow {
            id: row.id,
            virtual_model_id: row.virtual_model_id,
            position: row.position,
            principals: row.principals,
            roles: row.roles,
            conditions: serde_json::from_value(row.match_json).ok(),
        })
        .collect())
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<RuleRow, DbError> {
    let virtual_model_id = query_scalar!(
        "SELECT virtual_model_id FROM routing_rules WHERE id = $1",
        id
    )
    .fetch_one(&mut *connection)
    .await?;
    let rows = of_virtual_models(connection, &[virtual_model_id]).await?;
    only(rows, |row| row.id == id)
}

/// Inserts the rule, with an ID of its own. A position of another rule is a duplicate.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    mut row: RuleRow,
) -> Result<i64, DbError> {
    row.id = query_scalar!(
        "INSERT INTO routing_rules (virtual_model_id, position) VALUES ($1, $2) RETURNING id",
        row.virtual_model_id,
        row.position,
    )
    .fetch_one(&mut *connection)
    .await?;
    update(connection, &row).await?;
    Ok(row.id)
}

/// A position of another rule is a duplicate. Conditions of a later release are kept.
pub(crate) async fn update(connection: &mut PgConnection, row: &RuleRow) -> Result<(), DbError> {
    let RuleRow {
        id,
        virtual_model_id: _,
        position,
        principals,
        roles,
        conditions,
    } = row;
    let conditions = conditions
        .as_ref()
        .map(serde_json::to_value)
        .transpose()
        .map_err(|source| Failure::Serialize {
            what: "the conditions of a rule",
            source,
        })?;
    query!(
        "UPDATE routing_rules SET position = $2, \
                match_json = coalesce(jsonb_strip_nulls($3::jsonb), match_json) \
          WHERE id = $1",
        id,
        position,
        conditions as Option<Value>,
    )
    .execute(&mut *connection)
    .await?;
    query!("DELETE FROM rule_principals WHERE rule_id = $1", id)
        .execute(&mut *connection)
        .await?;
    query!(
        "INSERT INTO rule_principals (rule_id, principal_id) \
         SELECT $1, p FROM unnest($2::bigint[]) AS p",
        id,
        principals,
    )
    .execute(&mut *connection)
    .await?;
    query!("DELETE FROM rule_roles WHERE rule_id = $1", id)
        .execute(&mut *connection)
        .await?;
    query!(
        "INSERT INTO rule_roles (rule_id, role_id) \
         SELECT $1, r.id FROM roles AS r WHERE r.name = ANY ($2)",
        id,
        roles,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Moves a rule to a position; the rule that has it, and those after it, move
/// on by one.
pub(crate) async fn place(
    connection: &mut PgConnection,
    virtual_model_id: i64,
    id: i64,
    position: i32,
) -> Result<(), DbError> {
    query!(
        "UPDATE routing_rules SET position = CASE WHEN id = $2 THEN $3 ELSE position + 1 END \
          WHERE virtual_model_id = $1 \
            AND (id = $2 OR position >= $3 AND EXISTS ( \
                 SELECT FROM routing_rules AS o \
                  WHERE o.virtual_model_id = $1 AND o.position = $3 AND o.id <> $2))",
        virtual_model_id,
        id,
        position,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Numbers the rules from 0 in the order of `ids`, which are all rules of one virtual
/// model.
pub(crate) async fn reorder(connection: &mut PgConnection, ids: &[i64]) -> Result<(), DbError> {
    query!(
        "UPDATE routing_rules AS r SET position = o.number - 1 \
           FROM unnest($1::bigint[]) WITH ORDINALITY AS o (id, number) WHERE r.id = o.id",
        ids,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes the rule and its targets.
pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM routing_rules WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}

/// The IDs that belong to no principal.
pub(crate) async fn missing_principals(
    connection: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<i64>, DbError> {
    let missing = query_scalar!(
        r#"SELECT n AS "n!" FROM unnest($1::bigint[]) AS n
            WHERE NOT EXISTS (SELECT FROM principals AS p WHERE p.id = n)"#,
        ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(missing)
}

/// The names that belong to no role.
pub(crate) async fn missing_roles(
    connection: &mut PgConnection,
    names: &[String],
) -> Result<Vec<String>, DbError> {
    let missing = query_scalar!(
        r#"SELECT n AS "n!" FROM unnest($1::text[]) AS n
            WHERE NOT EXISTS (SELECT FROM roles AS r WHERE r.name = n)"#,
        names,
    )
    .fetch_all(connection)
    .await?;
    Ok(missing)
}
