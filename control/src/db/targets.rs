use sqlx::PgConnection;

use super::DbError;

/// The owner of a list of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A rule: `rule_targets`.
    Rule,
    /// A virtual model, for its default targets: `virtual_model_defaults`.
    VirtualModel,
}

/// A target in the list of an owner.
#[derive(Debug, Clone)]
pub(crate) struct TargetRow {
    pub(crate) id: i64,
    /// The ID of the rule or virtual model.
    pub(crate) owner: i64,
    pub(crate) model_id: i64,
    pub(crate) model: String,
    pub(crate) weight: i32,
    pub(crate) position: i32,
}

/// A target to insert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTargetRow {
    pub(crate) model_id: i64,
    pub(crate) weight: i32,
    pub(crate) position: i32,
}

/// The targets of the given owners, in their order.
pub(crate) async fn of(
    connection: &mut PgConnection,
    owner: Owner,
    ids: &[i64],
) -> Result<Vec<TargetRow>, DbError> {
    let rows = match owner {
        Owner::Rule => query_as!(
            TargetRow,
            "SELECT t.id, t.rule_id AS owner, t.model_id, m.name AS model, t.weight, t.position \
                   FROM rule_targets AS t JOIN models AS m ON m.id = t.model_id \
                  WHERE t.rule_id = ANY ($1) ORDER BY t.rule_id, t.position",
            ids,
        )
        .fetch_all(connection)
        .await?,
        Owner::VirtualModel => {
            query_as!(
                TargetRow,
                "SELECT t.id, t.virtual_model_id AS owner, t.model_id, m.name AS model, t.weight, \
                        t.position \
                   FROM virtual_model_defaults AS t JOIN models AS m ON m.id = t.model_id \
                  WHERE t.virtual_model_id = ANY ($1) ORDER BY t.virtual_model_id, t.position",
                ids,
            )
            .fetch_all(connection)
            .await?
        }
    };
    Ok(rows)
}

/// Inserts a target. A position or model that the list already has is a duplicate.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    owner: Owner,
    owner_id: i64,
    target: NewTargetRow,
) -> Result<i64, DbError> {
    let NewTargetRow {
        model_id,
        weight,
        position,
    } = target;
    let id =
        match owner {
            Owner::Rule => {
                query_scalar!(
                    "INSERT INTO rule_targets (rule_id, model_id, weight, position) \
                 VALUES ($1, $2, $3, $4) RETURNING id",
                    owner_id,
                    model_id,
                    weight,
                    position,
                )
                .fetch_one(connection)
                .await?
            }
            Owner::VirtualModel => query_scalar!(
                "INSERT INTO virtual_model_defaults (virtual_model_id, model_id, weight, position) \
                 VALUES ($1, $2, $3, $4) RETURNING id",
                owner_id,
                model_id,
                weight,
                position,
            )
            .fetch_one(connection)
            .await?,
        };
    Ok(id)
}

/// Replaces all targets of the owner.
pub(crate) async fn replace(
    connection: &mut PgConnection,
    owner: Owner,
    owner_id: i64,
    targets: &[NewTargetRow],
) -> Result<(), DbError> {
    match owner {
        Owner::Rule => query!("DELETE FROM rule_targets WHERE rule_id = $1", owner_id),
        Owner::VirtualModel => query!(
            "DELETE FROM virtual_model_defaults WHERE virtual_model_id = $1",
            owner_id
        ),
    }
    .execute(&mut *connection)
    .await?;
    for target in targets {
        insert(connection, owner, owner_id, *target).await?;
    }
    Ok(())
}

/// The ID of the rule or virtual model that owns the target.
pub(crate) async fn owner(
    connection: &mut PgConnection,
    owner: Owner,
    id: i64,
) -> Result<i64, DbError> {
    let owner_id = match owner {
        Owner::Rule => {
            query_scalar!("SELECT rule_id FROM rule_targets WHERE id = $1", id)
                .fetch_one(connection)
                .await?
        }
        Owner::VirtualModel => {
            query_scalar!(
                "SELECT virtual_model_id FROM virtual_model_defaults WHERE id = $1",
                id
            )
            .fetch_one(connection)
            .await?
        }
    };
    Ok(owner_id)
}

/// Deletes one target.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    owner: Owner,
    id: i64,
) -> Result<(), DbError> {
    match owner {
        Owner::Rule => query!("DELETE FROM rule_targets WHERE id = $1", id),
        Owner::VirtualModel => {
            query!("DELETE FROM virtual_model_defaults WHERE id = $1", id)
        }
    }
    .execute(connection)
    .await?;
    Ok(())
}

/// A use of a model as a target: the virtual model's name, and the rule's ID and
/// position, or `None` for a default target.
pub(crate) struct TargetUse {
    pub(crate) virtual_model: String,
    pub(crate) rule: Option<(i64, i32)>,
}

/// The first uses of the model as a target.
pub(crate) async fn uses(
    connection: &mut PgConnection,
    model_id: i64,
) -> Result<Vec<TargetUse>, DbError> {
    let rows = query!(
        r#"SELECT v.name AS "name!", r.id AS "id?", r.position AS "position?"
             FROM rule_targets AS t
             JOIN routing_rules AS r ON r.id = t.rule_id
             JOIN virtual_models AS v ON v.id = r.virtual_model_id
            WHERE t.model_id = $1
           UNION ALL
           SELECT v.name, NULL, NULL
             FROM virtual_model_defaults AS t
             JOIN virtual_models AS v ON v.id = t.virtual_model_id
            WHERE t.model_id = $1
            ORDER BY 1, 3 NULLS LAST LIMIT 5"#,
        model_id,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| TargetUse {
            virtual_model: row.name,
            rule: row.id.zip(row.position),
        })
        .collect())
}

/// The IDs that belong to no model.
pub(crate) async fn missing_models(
    connection: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<i64>, DbError> {
    let missing = query_scalar!(
        r#"SELECT n AS "n!" FROM unnest($1::bigint[]) AS n
            WHERE NOT EXISTS (SELECT FROM models AS m WHERE m.id = n)"#,
        ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(missing)
}
