use std::num::NonZeroU64;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{BudgetId, KeyId, Micros, ModelName, PrincipalId, TeamId, Timestamp, Tokens};

/// Rate and concurrency limits of a subject. An absent limit is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_min: Option<NonZeroU64>,
    /// Tokens of prompts and responses per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_min: Option<NonZeroU64>,
    /// Concurrent requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<NonZeroU64>,
}

/// The budget of a subject per window. An absent total is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Identity: with another ID nothing is spent yet.
    pub id: BudgetId,
    /// Tokens of prompts and responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_total: Option<Tokens>,
    /// Cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_total_micros: Option<Micros>,
    /// The length of a window.
    pub window: WindowLength,
    /// The IANA time zone in which windows start at midnight, on the first day
    /// of the week (Monday) or month. Without it, windows follow each other
    /// from `window_start` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The start of a window of fixed length.
    pub window_start: Timestamp,
}

/// The length of a budget's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowLength {
    /// 24 hours, or a calendar day.
    Daily,
    /// 7 days, or a calendar week.
    Weekly,
    /// 30 days, or a calendar month.
    Monthly,
    /// A length that this release does not know: the window does not end.
    #[serde(other)]
    Unknown,
}

/// Principals that share limits and a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    /// Identity.
    pub id: TeamId,
    /// Unique name.
    pub name: String,
    /// Their joint limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Their joint budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// Limits and budget of a principal for one concrete model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAllowance {
    /// The model.
    pub model: ModelName,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Its budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// The subject of limits and budgets. Written as the IDs that identify it:
/// `principal_id`, with `model` for one model of it; `key_id`; `team_id`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A principal, with all its keys.
    Principal(PrincipalId),
    /// A principal's requests to one concrete model.
    Model(PrincipalId, ModelName),
    /// One key.
    Key(KeyId),
    /// All principals of a team.
    Team(TeamId),
}

#[derive(Serialize, Deserialize)]
struct SubjectMembers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal_id: Option<PrincipalId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<ModelName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_id: Option<KeyId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    team_id: Option<TeamId>,
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = SubjectMembers {
            principal_id: None,
            model: None,
            key_id: None,
            team_id: None,
        };
        match self {
            Self::Principal(id) => fields.principal_id = Some(*id),
            Self::Model(id, model) => {
                fields.principal_id = Some(*id);
                fields.model = Some(model.clone());
            }
            Self::Key(id) => fields.key_id = Some(*id),
            Self::Team(id) => fields.team_id = Some(*id),
        }
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SubjectMembers {
            principal_id,
            model,
            key_id,
            team_id,
        } = SubjectMembers::deserialize(deserializer)?;
        match (principal_id, model, key_id, team_id) {
            (Some(id), None, None, None) => Ok(Self::Principal(id)),
            (Some(id), Some(model), None, None) => Ok(Self::Model(id, model)),
            (None, None, Some(id), None) => Ok(Self::Key(id)),
            (None, None, None, Some(id)) => Ok(Self::Team(id)),
            _ => Err(de::Error::custom(
                "one of principal_id, key_id and team_id names whose it is",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_written_as_its_ids() {
        let model = ModelName::new("small").unwrap();
        for (subject, text) in [
            (
                Subject::Principal(PrincipalId(7)),
                r#"{"principal_id":7}"#.to_owned(),
            ),
            (
                Subject::Model(PrincipalId(7), model),
                r#"{"principal_id":7,"model":"small"}"#.to_owned(),
            ),
            (Subject::Key(KeyId(9)), r#"{"key_id":9}"#.to_owned()),
            (Subject::Team(TeamId(3)), r#"{"team_id":3}"#.to_owned()),
        ] {
            assert_eq!(serde_json::to_string(&subject).unwrap(), text);
            assert_eq!(serde_json::from_str::<Subject>(&text).unwrap(), subject);
        }
        for text in [
            "{}",
            r#"{"model":"small"}"#,
            r#"{"principal_id":7,"key_id":9}"#,
        ] {
            assert!(serde_json::from_str::<Subject>(text).is_err(), "{text}");
        }
    }
}
