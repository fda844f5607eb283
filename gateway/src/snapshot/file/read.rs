//! Converts the text of a file to a snapshot.

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::Path;

use fastllm_contract::{
    FORMAT, KeyEntry, KeyHash, KeyMap, KeyShard, ModelName, PolicyKind, Secret, Section, Snapshot,
    VirtualModel, shard_prefix,
};
use fastllm_engine::{RoutingState, Tuning};
use ring::digest::{SHA256, digest};
use serde::Serialize;

use super::auth::Auth;
use super::credentials::Credentials;
use super::failover::{self, Alias};
use super::grants::Grantable;
use super::include::Sources;
use super::models::Models;
use super::problem::Problems;
use super::router::RouterSettings;
use super::value::{Context, MappingReader, Value};
use super::virtual_models::KnownNames;
use super::{auth, sections, settings, tuning, virtual_models};

/// Input of a read besides the text.
pub struct Surroundings<'a> {
    /// Looks up an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Reads an included file, by its path relative to the folder of the file;
    /// returns its text, or why it cannot be read.
    pub included: &'a dyn Fn(&Path) -> Result<String, String>,
    /// Overrides the master key of the file.
    pub master_key: Option<&'a Secret>,
    /// Default policy of models that name none.
    pub policy: PolicyKind,
    /// Maximum size of a request body, in bytes.
    pub max_body_bytes: u64,
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
    let sources = Sources::new(surroundings.included, &mut before);
    let Some((root, version)) = sources.load(text) else {
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
        contents.snapshot.version = version;
        contents
    });
    ReadOutcome { contents, problems }
}

fn describe(
    context: &Context<'_>,
    fields: &mut MappingReader<'_>,
    surroundings: &Surroundings<'_>,
) -> FileContents {
    settings::read_environment(context, fields);
    settings::read_guardrails(fields);
    let credentials = Credentials::read(fields);
    let list = fields.required("model_list");
    let list = list.map(|list| list.items()).unwrap_or_default();
    let mut models = Models::read(context, &list, &credentials);
    let router = RouterSettings::read(fields);
    let general = fields.take("general_settings").and_then(|section| {
        section.fields(|fields| settings::read_general(fields, surroundings.max_body_bytes))
    });
    let general = general.unwrap_or_default();
    models.apply(&router, router.max_concurrency.or(general.max_concurrency));
    let aliases = failover::apply(context, &router, &mut models);
    let access = Access {
        master_key: general.master_key,
        given: surroundings.master_key,
        grantable: &Grantable::new(&models),
    };
    let auth = access.read(context, fields);
    let names = KnownNames {
        models: &models,
        auth: &auth,
    };
    let OwnSettings {
        tuning,
        mut virtual_models,
        fallback_model,
    } = OwnSettings::read(
        context,
        fields,
        &names,
        router.policy.unwrap_or(surroundings.policy),
    );
    add_aliases(context, aliases, &mut virtual_models);
    fields.unsupported(&sections::SECTIONS);
    fields.refuse_misspelled(&sections::CLOSING_SECTIONS);
    check_names(context, &auth, &models, &virtual_models);
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

/// The section `fastllm`.
struct OwnSettings {
    tuning: Tuning,
    virtual_models: BTreeMap<ModelName, VirtualModel>,
    fallback_model: Option<ModelName>,
}

impl OwnSettings {
    fn read(
        context: &Context<'_>,
        fields: &mut MappingReader<'_>,
        names: &KnownNames<'_>,
        policy: PolicyKind,
    ) -> Self {
        let section = fields.take("fastllm").and_then(|section| {
            section.fields(|fields| {
                let tuning = tuning::read(fields, policy);
                let list = fields.list("virtual_models");
                let fallback = fields.take("fallback_model");
                Self {
                    tuning,
                    virtual_models: virtual_models::read(context, &list, names),
                    fallback_model: fallback.and_then(|value| names.model(&value)),
                }
            })
        });
        section.unwrap_or_else(|| Self {
            tuning: Tuning {
                policy,
                ..Tuning::default()
            },
            virtual_models: BTreeMap::new(),
            fallback_model: None,
        })
    }
}

/// Adds the aliases to the virtual models of the file.
fn add_aliases(
    context: &Context<'_>,
    aliases: Vec<Alias>,
    virtual_models: &mut BTreeMap<ModelName, VirtualModel>,
) {
    for Alias { model, span } in aliases {
        match virtual_models.entry(model.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(model);
            }
            Entry::Occupied(_) => {
                context.entry_error(span, "a virtual model has this name: remove one of them");
            }
        }
    }
}

/// Reports what keys name and the file does not have.
fn check_names(
    context: &Context<'_>,
    auth: &Auth,
    models: &Models,
    virtual_models: &BTreeMap<ModelName, VirtualModel>,
) {
    if auth.open {
        context.file_warning("no auth.keys and no master key: the gateway is open to everyone");
    }
    for (model, span) in &auth.limited {
        if !models.by_name.contains_key(model) {
            context.refuse(span.clone(), "no model in model_list has this name");
        }
    }
    for (model, span) in &auth.granted {
        if virtual_models.contains_key(model) {
            let message = "has no effect: grant the models that it routes to";
            context.warning(span.clone(), message);
        } else if !models.by_name.contains_key(model) {
            context.warning(span.clone(), "no model in model_list has this name");
        }
    }
}

/// The variable that holds the master key of LiteLLM.
const MASTER_KEY_VARIABLE: &str = "LITELLM_MASTER_KEY";

/// What decides who may send requests.
struct Access<'a, 'm> {
    /// The master key of the file.
    master_key: Option<Value<'a>>,
    /// The master key that is given outside of the file.
    given: Option<&'m Secret>,
    grantable: &'m Grantable<'m>,
}

impl Access<'_, '_> {
    fn read(self, context: &Context<'_>, fields: &mut MappingReader<'_>) -> Auth {
        let master_key = match (self.given, &self.master_key) {
            (Some(given), Some(named)) => {
                named.warning("has no effect: another one is given outside of the file");
                Some(given.clone())
            }
            (Some(given), None) => Some(given.clone()),
            (None, Some(named)) => auth::secret(named),
            (None, None) => context.set_variable(MASTER_KEY_VARIABLE).and_then(|key| {
                let key = auth::parse_secret(&key);
                let refuse = |reason| {
                    context.file_error(format!("the variable {MASTER_KEY_VARIABLE}: {reason}"));
                };
                key.map_err(refuse).ok()
            }),
        };
        // If `keys` is misspelled, the gateway requires a key rather than being
        // open.
        let keys = fields.take("auth").and_then(|auth| {
            let keys = auth.fields(|fields| {
                let keys = fields.required("keys");
                fields.refuse_unknown();
                keys
            });
            Some(keys??.items())
        });
        let keys = keys.unwrap_or_default();
        let mut auth = Auth::read(context, &keys, master_key.as_ref(), self.grantable);
        // An unusable master key still means that the gateway must not be open.
        auth.open &=
            self.master_key.is_none() && context.set_variable(MASTER_KEY_VARIABLE).is_none();
        auth
    }
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
