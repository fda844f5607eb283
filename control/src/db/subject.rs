use fastllm_contract::{KeyId, ModelName, PrincipalId, Subject, TeamId};
use sqlx::PgConnection;

use super::DbError;

/// The subject of limits and a budget, by ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubjectId {
    Principal(i64),
    /// A principal's use of one model.
    Model {
        principal: i64,
        model: i64,
    },
    Key(i64),
    Team(i64),
}

/// The columns that identify a subject in the tables of limits and budgets.
#[expect(clippy::struct_field_names, reason = "the names of the columns")]
pub(super) struct SubjectColumns {
    pub(super) principal_id: Option<i64>,
    pub(super) model_id: Option<i64>,
    pub(super) key_id: Option<i64>,
    pub(super) team_id: Option<i64>,
}

impl SubjectId {
    pub(super) fn columns(self) -> SubjectColumns {
        let (principal_id, model_id, key_id, team_id) = match self {
            Self::Principal(id) => (Some(id), None, None, None),
            Self::Model { principal, model } => (Some(principal), Some(model), None, None),
            Self::Key(id) => (None, None, Some(id), None),
            Self::Team(id) => (None, None, None, Some(id)),
        };
        SubjectColumns {
            principal_id,
            model_id,
            key_id,
            team_id,
        }
    }
}

/// The IDs and names of a subject.
pub(crate) struct SubjectRow {
    pub(crate) principal_id: Option<i64>,
    pub(crate) principal: Option<String>,
    pub(crate) model_id: Option<i64>,
    pub(crate) model: Option<String>,
    pub(crate) key_id: Option<i64>,
    pub(crate) key: Option<String>,
    pub(crate) team_id: Option<i64>,
    pub(crate) team: Option<String>,
}

/// Takes the subject out of a row of a query, with or without the names.
macro_rules! subject_of {
    ($row:ident as SubjectRow) => {
        $crate::db::subject::SubjectRow {
            principal_id: $row.principal_id,
            principal: $row.principal,
            model_id: $row.model_id,
            model: $row.model,
            key_id: $row.key_id,
            key: $row.key,
            team_id: $row.team_id,
            team: $row.team,
        }
    };
    ($row:ident as SubjectColumns) => {
        $crate::db::subject::SubjectColumns {
            principal_id: $row.principal_id,
            model_id: $row.model_id,
            key_id: $row.key_id,
            team_id: $row.team_id,
        }
    };
}

pub(super) use subject_of;

/// The limits or the budget of a subject.
pub(crate) struct Allowance<T> {
    pub(crate) id: i64,
    pub(crate) subject: SubjectRow,
    pub(crate) value: T,
}

/// The subject as it is published to gateways. `None` if a later release stored an
/// unknown kind or an invalid model name.
pub(super) fn published(
    SubjectColumns {
        principal_id,
        model_id,
        key_id,
        team_id,
    }: &SubjectColumns,
    model: Option<&str>,
) -> Option<Subject> {
    match (principal_id, model_id, key_id, team_id) {
        (Some(id), None, None, None) => Some(Subject::Principal(PrincipalId(id.unsigned_abs()))),
        (Some(id), Some(_), None, None) => {
            let model = ModelName::new(model?).ok()?;
            Some(Subject::Model(PrincipalId(id.unsigned_abs()), model))
        }
        (None, None, Some(id), None) => Some(Subject::Key(KeyId(id.unsigned_abs()))),
        (None, None, None, Some(id)) => Some(Subject::Team(TeamId(id.unsigned_abs()))),
        _ => None,
    }
}

/// The kind of object of the subject that does not exist; `None` if all exist.
pub(crate) async fn missing(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<Option<&'static str>, DbError> {
    let of = subject.columns();
    let there = query!(
        r#"SELECT $1::bigint IS NULL OR EXISTS(SELECT FROM principals WHERE id = $1) AS "principal!",
                  $2::bigint IS NULL OR EXISTS(SELECT FROM models WHERE id = $2) AS "model!",
                  $3::bigint IS NULL OR EXISTS(SELECT FROM api_keys WHERE id = $3) AS "key!",
                  $4::bigint IS NULL OR EXISTS(SELECT FROM teams WHERE id = $4) AS "team!""#,
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
    )
    .fetch_one(connection)
    .await?;
    Ok([
        ("principal", there.principal),
        ("model", there.model),
        ("key", there.key),
        ("team", there.team),
    ]
    .into_iter()
    .find_map(|(what, there)| (!there).then_some(what)))
}
