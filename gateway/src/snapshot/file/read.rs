//! Converts the text of a file to a snapshot.

use std::collections::{BTreeMap, HashSet};

use fastllm_contract::{
    FORMAT, KeyEntry, KeyHash, KeyMap, KeyShard, PolicyKind, Secret, Section, Snapshot,
    shard_prefix,
};
use fastllm_engine::{RoutingState, Tuning};
use ring::digest::{SHA256, digest};
use serde::Serialize;

use super::auth::Auth;
use super::models::Models;
use super::problem::Problems;
use super::value::{Context, MappingReader, Value};
use super::virtual_models::KnownNames;
use super::{tuning, yaml};
use crate::snapshot::file::auth;
use crate::snapshot::file::virtual_models;

/// Sections that LiteLLM supports and this program does not.
const WITHOUT_EFFECT: [&str; 16] = [
    "assistant_settings",
    "callback_settings",
    "credential_list",
    "default_vertex_config",
    "environment_variables",
    "files_settings",
    "finetune_settings",
    "guardrails",
    "include",
    "litellm_settings",
    "mcp_servers",
    "mcp_tools",
    "prompts",
    "router_settings",
    "search_tools",
    "vector_store_registry",
];

/// Members of `general_settings` that have no effect.
const GENERAL_WITHOUT_EFFECT: [&str; 24] = [
    "alert_types",
    "alerting",
    "alerting_threshold",
    "allow_requests_on_db_unavailable",
    "background_health_checks",
    "completion_model",
    "custom_auth",
    "database_connection_pool_limit",
    "database_connection_timeout",
    "database_url",
    "disable_spend_logs",
    "enable_jwt_auth",
    "enforce_user_param",
    "global_max_parallel_requests",
    "health_check_interval",
    "infer_model_from_keys",
    "max_parallel_requests",
    "max_request_size_mb",
    "pass_through_endpoints",
    "proxy_batch_write_at",
    "proxy_budget_rescheduler_max_time",
    "proxy_budget_rescheduler_min_time",
    "store_model_in_db",
    "ui_access_mode",
];

/// Input of a read besides the text.
pub struct Surroundings<'a> {
    /// Looks up an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Overrides the master key of the file.
    pub master_key: Option<&'a Secret>,
    /// Default policy of models that name none.
    pub policy: PolicyKind,
}

/// The configuration that a file describes.
#[derive(Debug)]
pub struct FileContents {
    /// The snapshot, in the form in which the control plane would send it.
    pub snapshot: Snapshot,
    /// Tuning of routing decisions.
    pub tuning: Tuning,
}

/// The result of reading a file.
#[derive(Debug)]
pub struct ReadOutcome {
    /// `None` if the file cannot be used at all. Backends, keys and virtual
    /// models with errors of their own are skipped.
    pub contents: Option<FileContents>,
    /// All problems of the file.
    pub problems: Problems,
}

/// Reads a file. Pure except for the environment lookup.
pub fn read(text: &str, surroundings: &Surroundings<'_>) -> ReadOutcome {
    let mut before = Problems::default();
    let Some(root) = yaml::load(text, &mut before) else {
        return ReadOutcome {
            contents: None,
            problems: before,
        };
    };
    let context = Context::new(surroundings.environment, before);
    let root = Value::root(&context, &root);
    let contents = root.fields(|fields| describe(&context, fields, surroundings));
    let (problems, spoilt) = context.into_problems();
    let contents = contents.filter(|_| !spoilt).map(|mut contents| {
        contents.snapshot.version = version(text);
        contents
    });
    ReadOutcome { contents, problems }
}

/// The first eight bytes of the file's SHA-256, in little-endian order.
fn version(text: &str) -> u64 {
    let sum = digest(&SHA256, text.as_bytes());
    u64::from_le_bytes(sum.as_ref().first_chunk().copied().unwrap_or_default())
}

fn describe(
    context: &Context<'_>,
    fields: &mut MappingReader<'_>,
    surroundings: &Surroundings<'_>,
) -> FileContents {
    let list = fields.required("model_list");
    let mut models = Models::read(context, &list.map(|list| list.items()).unwrap_or_default());
    let auth = read_auth(context, fields, surroundings.master_key);
    let own = fields.take("fastllm");
    let names = KnownNames {
        models: &models,
        auth: &auth,
    };
    let own = own.and_then(|own| {
        own.fields(|fields| {
            let tuning = tuning::read(fields, surroundings.policy);
            let list = fields.list("virtual_models");
            let virtual_models = virtual_models::read(context, &list, &names);
            let fallback = fields.take("fallback_model");
            (
                tuning,
                virtual_models,
                fallback.and_then(|value| names.model(&value)),
            )
        })
    });
    fields.without_effect(&WITHOUT_EFFECT);
    let (tuning, virtual_models, fallback_model) = own.unwrap_or_else(|| {
        let tuning = Tuning {
            policy: surroundings.policy,
            ..Tuning::default()
        };
        (tuning, BTreeMap::new(), None)
    });
    if auth.open {
        context.file_warning("no auth.keys and no master key: the gateway is open to everyone");
    }
    for (model, span) in &auth.granted {
        if virtual_models.contains_key(model) {
            let message = "has no effect: grant the models that it routes to";
            context.warning(span.clone(), message);
        } else if !models.by_name.contains_key(model) {
            context.warning(span.clone(), "no model in model_list has this name");
        }
    }
    let mut snapshot = Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 0,
        open: auth.open,
        models: part(models.by_name.values().cloned().collect()),
        principals: part(auth.principals),
        virtual_models: part(virtual_models.into_values().collect()),
        fallback_model,
        key_shards: shards(auth.keys),
    };
    if leave_out(context, &snapshot, &mut models) {
        snapshot.models = part(models.by_name.into_values().collect());
    }
    // Pools are rebuilt when their tuning changes.
    snapshot.models.digest = digest_of(&(&snapshot.models.digest, format!("{tuning:?}")));
    FileContents { snapshot, tuning }
}

fn read_auth(
    context: &Context<'_>,
    fields: &mut MappingReader<'_>,
    given: Option<&Secret>,
) -> Auth {
    let general = fields.take("general_settings");
    let named = general.and_then(|general| {
        general.fields(|fields| {
            let key = fields.take("master_key");
            fields.without_effect(&GENERAL_WITHOUT_EFFECT);
            key
        })?
    });
    let master_key = match (given, &named) {
        (Some(given), Some(named)) => {
            named.warning("has no effect: another one is given outside of the file");
            Some(given.clone())
        }
        (Some(given), None) => Some(given.clone()),
        (None, named) => named.as_ref().and_then(auth::secret),
    };
    // If `keys` is misspelled, the gateway requires a key rather than being
    // open.
    let keys = fields.take("auth").and_then(|auth| {
        let keys = auth.fields(|fields| fields.required("keys"))?;
        Some(keys?.items())
    });
    let mut auth = Auth::read(context, &keys.unwrap_or_default(), master_key.as_ref());
    // An unusable master key still means that the gateway must not be open.
    auth.open &= named.is_none();
    auth
}

/// Removes the backends that would be skipped when tables are built. True if
/// there were any.
fn leave_out(context: &Context<'_>, snapshot: &Snapshot, models: &mut Models) -> bool {
    let smallest = Tuning {
        affinity_slots: 0,
        ..Tuning::default()
    };
    let skipped_backends = match RoutingState::build(snapshot, None, &smallest) {
        Ok(built) => built.skipped_backends,
        Err(error) => {
            context.file_error(error.to_string());
            return false;
        }
    };
    let mut gone = HashSet::new();
    for skipped in &skipped_backends {
        if let Some(span) = models.spots.get(&skipped.backend) {
            context.entry_error(span.clone(), skipped.reason.to_string());
        }
        gone.insert(skipped.backend);
    }
    for model in models.by_name.values_mut() {
        model.backends.retain(|backend| !gone.contains(&backend.id));
    }
    !skipped_backends.is_empty()
}

/// Equal content has an equal digest. Digests are used only within this
/// process.
fn part<T: Serialize>(items: Vec<T>) -> Section<Vec<T>> {
    Section::complete(digest_of(&items), items)
}

fn digest_of<T: Serialize>(content: &T) -> String {
    // Strings and numbers are always serializable.
    let json = serde_json::to_vec(content).unwrap_or_default();
    hex::encode(digest(&SHA256, &json))
}

fn shards(keys: impl IntoIterator<Item = (KeyHash, KeyEntry)>) -> Vec<KeyShard> {
    let mut shards: BTreeMap<String, KeyMap> = BTreeMap::new();
    for (hash, entry) in keys {
        let shard = shards.entry(shard_prefix(&hash)).or_default();
        shard.0.insert(hash, entry);
    }
    shards
        .into_iter()
        .map(|(prefix, keys)| KeyShard {
            prefix,
            keys: Section::complete(digest_of(&keys), keys),
        })
        .collect()
}
