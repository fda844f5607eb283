//! Authentication: `auth.keys` and the master key.

use std::collections::{HashMap, HashSet};

use fastllm_contract::{
    Budget, BudgetId, KeyEntry, KeyHash, KeyId, Limits, ModelName, Principal, PrincipalId, Secret,
    Timestamp,
};
use fastllm_engine::hash_key;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::allowance::{self, ModelLimits};
use super::grants::{Grant, Grantable};
use super::sections;
use super::unsupported::{Setting, ignored, restriction};
use super::value::{Context, MappingReader, SourceSpan, Value};

/// The error of a key whose principal an earlier key describes otherwise.
const CONFLICTING_KEY: &str =
    "an earlier key of the same name has other models, roles, limits or budget";

/// Restrictions of a key in LiteLLM that this program does not have.
const KEY_RESTRICTIONS: [Setting; 4] = [
    restriction(
        &[
            "budget_duration",
            "budget_id",
            "budget_limits",
            "max_budget",
            "model_max_budget",
            "soft_budget",
        ],
        "costs are counted with a control plane only; use budget.tokens_total",
    ),
    restriction(&["duration", "rotation_interval"], "use expires_at"),
    restriction(&["guardrails", "policies", "prompts"], sections::CONTENT),
    restriction(
        &["organization_id", "project_id", "team_id"],
        "limits of teams need a control plane; keys of one name share the limits of that name",
    ),
];

/// Members of a key in LiteLLM that restrict nothing.
const KEY: [Setting; 1] = [ignored(
    &[
        "description",
        "key_alias",
        "key_name",
        "metadata",
        "owner",
        "spend",
        "tags",
        "user_id",
    ],
    "the name of a key is its name in logs",
)];

/// Keys and principals.
#[derive(Debug, Default)]
pub(super) struct Auth {
    pub(super) principals: Vec<Principal>,
    pub(super) keys: HashMap<KeyHash, KeyEntry>,
    /// Granted models, and where the grant is in the file.
    pub(super) granted: Vec<(ModelName, SourceSpan)>,
    /// Models with limits of a principal, and where they are in the file.
    pub(super) limited: Vec<(ModelName, SourceSpan)>,
    /// No key is configured; an unusable key counts as configured.
    pub(super) open: bool,
    roles: HashSet<String>,
    /// Where each principal first occurs.
    first: HashMap<String, usize>,
}

/// An entry of `auth.keys`.
struct AuthKey {
    hash: KeyHash,
    name: String,
    allow_all: bool,
    models: Vec<(ModelName, SourceSpan)>,
    roles: Vec<String>,
    expires_at: Option<Timestamp>,
    disabled: bool,
    limits: Option<Limits>,
    budget: Option<Budget>,
    by_model: Vec<ModelLimits>,
    span: SourceSpan,
}

impl Auth {
    /// `master_key` grants access to all models.
    pub(super) fn read(
        context: &Context<'_>,
        keys: &[Value<'_>],
        master_key: Option<&Secret>,
        grantable: &Grantable<'_>,
    ) -> Self {
        let mut auth = Self {
            open: keys.is_empty() && master_key.is_none(),
            ..Self::default()
        };
        if let Some(key) = master_key {
            auth.add_master(key);
        }
        for (value, position) in keys.iter().zip(1..) {
            let read = |fields: &mut MappingReader<'_>| AuthKey::read(fields, grantable);
            if let Some(entry) = context.entry(|| value.fields(read).flatten()) {
                auth.add(context, entry, position);
            }
        }
        auth
    }

    fn add_master(&mut self, key: &Secret) {
        self.principals.push(Principal {
            team: None,
            limits: None,
            budget: None,
            models: Vec::new(),
            id: PrincipalId(0),
            name: "master-key".to_owned(),
            allow_all: true,
            allowed_models: Vec::new(),
            roles: Vec::new(),
        });
        let entry = KeyEntry {
            limits: None,
            budget: None,
            id: KeyId(0),
            principal: PrincipalId(0),
            expires_at: None,
            disabled: false,
        };
        self.keys.insert(hash_of(key), entry);
    }

    /// Entries of the same name are keys of one principal, so that a key can be
    /// rotated.
    fn add(&mut self, context: &Context<'_>, entry: AuthKey, position: u64) {
        let AuthKey {
            hash,
            name,
            allow_all,
            models,
            roles,
            expires_at,
            disabled,
            limits,
            budget,
            by_model,
            span,
        } = entry;
        if self.keys.contains_key(&hash) {
            return context.entry_error(span, "duplicate key");
        }
        let mut allowed_models: Vec<_> = models.iter().map(|(name, _)| name.clone()).collect();
        allowed_models.sort_unstable();
        allowed_models.dedup();
        let described = Principal {
            team: None,
            limits,
            budget: budget.map(|budget| Budget {
                id: BudgetId(position),
                ..budget
            }),
            models: by_model.iter().map(ModelLimits::allowance).collect(),
            id: PrincipalId(position),
            name,
            allow_all,
            allowed_models,
            roles,
        };
        let Some(id) = self.add_principal(described) else {
            return context.entry_error(span, CONFLICTING_KEY);
        };
        self.granted.extend(models);
        let limited = by_model.into_iter().map(ModelLimits::into_spot);
        self.limited.extend(limited);
        let entry = KeyEntry {
            limits: None,
            budget: None,
            id: KeyId(position),
            principal: id,
            expires_at,
            disabled,
        };
        self.keys.insert(hash, entry);
    }

    /// The principal of a key; `None` if an earlier key describes it otherwise.
    fn add_principal(&mut self, described: Principal) -> Option<PrincipalId> {
        if let Some(&first) = self.first.get(&described.name) {
            let first = &self.principals[first];
            let budget_id = |id: BudgetId| first.budget.as_ref().map_or(id, |budget| budget.id);
            let same = Principal {
                id: first.id,
                budget: described.budget.clone().map(|budget| Budget {
                    id: budget_id(budget.id),
                    ..budget
                }),
                ..described
            };
            return (same == *first).then_some(first.id);
        }
        let id = described.id;
        let at = self.principals.len();
        self.first.insert(described.name.clone(), at);
        self.roles.extend(described.roles.iter().cloned());
        self.principals.push(described);
        Some(id)
    }

    /// Returns the principal of this name.
    pub(super) fn principal(&self, name: &str) -> Option<PrincipalId> {
        self.first.get(name).map(|&first| self.principals[first].id)
    }

    /// Whether any principal has this role.
    pub(super) fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }
}

impl AuthKey {
    fn read(fields: &mut MappingReader<'_>, grantable: &Grantable<'_>) -> Option<Self> {
        let (key, key_hash) = (fields.take("key"), fields.take("key_hash"));
        let name = fields.required("name").and_then(|value| label(&value));
        let models = fields.list("models");
        let roles = fields.list("roles");
        let expires_at = fields.take_any(&["expires_at", "expires"]);
        let expires_at = expires_at.and_then(|value| moment(&value));
        let disabled = is_disabled(fields);
        let (limits, budget) = allowance::read(fields);
        let by_model = allowance::by_model(fields);
        fields.unsupported(&KEY_RESTRICTIONS);
        fields.unsupported(&KEY);
        fields.refuse_unknown();
        let hash = match (key, key_hash) {
            (Some(key), None) => secret(&key).map(|key| hash_of(&key)),
            (None, Some(hash)) => hash.parsed(),
            _ => {
                fields.error("expected either key or key_hash");
                None
            }
        };
        let mut allow_all = false;
        let mut granted = Vec::new();
        for value in &models {
            match grantable.read(value) {
                Some(Grant::Everything) => allow_all = true,
                Some(Grant::Models(models)) => {
                    granted.extend(models.into_iter().map(|model| (model, value.span())));
                }
                None => {}
            }
        }
        let mut roles: Vec<_> = roles.iter().filter_map(label).collect();
        roles.sort_unstable();
        roles.dedup();
        Some(Self {
            hash: hash?,
            name: name?,
            allow_all,
            models: if allow_all { Vec::new() } else { granted },
            roles,
            expires_at,
            disabled,
            limits,
            budget,
            by_model,
            span: fields.span(),
        })
    }
}

fn hash_of(key: &Secret) -> KeyHash {
    hash_key(key.expose().as_bytes())
}

/// Whether one of the flags of a key disables it. A flag that cannot be read
/// is an error of the key.
fn is_disabled(fields: &mut MappingReader<'_>) -> bool {
    let mut is = |name: &str, closing: bool| {
        let flag = fields.take(name).and_then(|value| value.flag());
        flag == Some(closing)
    };
    // Each of them counts, whatever the others are.
    let flags = [
        is("blocked", true),
        is("disabled", true),
        is("enabled", false),
    ];
    flags.contains(&true)
}

/// A key in the form in which clients send it.
pub(super) fn secret(value: &Value<'_>) -> Option<Secret> {
    let key = parse_secret(value.text()?);
    key.map_err(|reason| value.error(reason)).ok()
}

/// A key in the form in which clients send it, or why it is none.
pub(super) fn parse_secret(key: &str) -> Result<Secret, &'static str> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a key is printable ASCII without spaces, and not empty");
    }
    Ok(Secret::new(key))
}

/// The name of a principal or of a role.
pub(super) fn label(value: &Value<'_>) -> Option<String> {
    const MAX_BYTES: usize = 256;
    let text = value.text()?;
    if text.is_empty() || text.len() > MAX_BYTES || text.chars().any(char::is_control) {
        value.error(format!(
            "expected 1 to {MAX_BYTES} bytes without control characters"
        ));
        return None;
    }
    Some(text.to_owned())
}

/// An RFC 3339 timestamp, or a date, which means its beginning in UTC.
fn moment(value: &Value<'_>) -> Option<Timestamp> {
    let text = value.text()?;
    let parsed = if text.len() == "2026-01-31".len() {
        OffsetDateTime::parse(&format!("{text}T00:00:00Z"), &Rfc3339)
    } else {
        OffsetDateTime::parse(text, &Rfc3339)
    };
    let Ok(moment) = parsed else {
        value.error("expected a time such as 2026-01-31T12:00:00Z, or a date");
        return None;
    };
    let micros = moment.unix_timestamp_nanos() / 1000;
    Some(Timestamp(i64::try_from(micros).unwrap_or(i64::MAX)))
}
