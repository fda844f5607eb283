//! `model_list`: entries of the same name form one pool.

use std::collections::{BTreeMap, HashMap, HashSet};

use fastllm_contract::{Backend, BackendId, Failover, Model, ModelName, PolicyKind, Tokens};
use ring::digest::{Context as Digest, SHA256};

use super::backend::{self, ListedBackend};
use super::credentials::Credentials;
use super::model_info::ModelInfo;
use super::router::{AttemptSettings, RouterSettings};
use super::share::{self, Share};
use super::upstream::WILDCARD;
use super::value::{Context, MappingReader, SourceSpan, Value};

/// The models of the file.
#[derive(Debug, Default)]
pub(super) struct Models {
    pub(super) by_name: BTreeMap<ModelName, Model>,
    /// Where each backend is in the file.
    pub(super) spots: HashMap<BackendId, SourceSpan>,
    /// The models of each access group.
    pub(super) groups: HashMap<String, HashSet<ModelName>>,
    shares: HashMap<BackendId, Share>,
    attempts: HashMap<ModelName, AttemptSettings>,
    /// Number of entries that agree in everything that determines the ID of the
    /// first one.
    twins: HashMap<BackendId, u64>,
}

/// An entry of the list.
struct ListedModel {
    name: ModelName,
    policy: Option<(PolicyKind, SourceSpan)>,
    context_length: Option<(Tokens, SourceSpan)>,
    cache_ttl: Option<(u64, SourceSpan)>,
    backend: ListedBackend,
    enabled: bool,
    access_groups: Vec<String>,
    span: SourceSpan,
}

impl Models {
    pub(super) fn read<'a>(
        context: &Context<'_>,
        list: &[Value<'a>],
        credentials: &Credentials<'a>,
    ) -> Self {
        let mut models = Self::default();
        for value in list {
            if let Some(name) = named(value) {
                // A model without usable backends still exists: its requests
                // fail because of its backends, not as requests for an unknown
                // model.
                models.by_name.entry(name.clone()).or_insert(Model {
                    cache_ttl_seconds: None,
                    name,
                    policy: None,
                    context_length: None,
                    failover: Failover::default(),
                    backends: Vec::new(),
                });
            }
            if let Some(entry) = context.entry(|| ListedModel::read(value, credentials)) {
                models.add(context, entry);
            }
        }
        models.weigh();
        models
    }

    fn add(&mut self, context: &Context<'_>, entry: ListedModel) {
        let ListedModel {
            name,
            policy,
            context_length,
            cache_ttl,
            backend:
                ListedBackend {
                    mut backend,
                    share,
                    attempts,
                },
            enabled,
            access_groups,
            span,
        } = entry;
        for group in access_groups {
            self.groups.entry(group).or_default().insert(name.clone());
        }
        let Some(model) = self.by_name.get_mut(&name) else {
            return;
        };
        settle(context, &mut model.policy, policy);
        settle(context, &mut model.context_length, context_length);
        settle(context, &mut model.cache_ttl_seconds, cache_ttl);
        let held = self.attempts.entry(name.clone()).or_default();
        if attempts.or(*held) != held.or(attempts) {
            let message =
                "has no effect: an earlier entry of this model has other retries or timeouts";
            context.warning(span.clone(), message);
        }
        *held = held.or(attempts);
        if !enabled {
            return;
        }
        let twins = self.twins.entry(id(&name, &backend, 0)).or_default();
        backend.id = id(&name, &backend, *twins);
        *twins += 1;
        self.spots.insert(backend.id, span);
        self.shares.insert(backend.id, share);
        model.backends.push(backend);
    }

    /// Applies settings of the file to the models and backends that have none.
    pub(super) fn apply(&mut self, settings: &RouterSettings<'_>, max_concurrency: Option<u32>) {
        for (name, model) in &mut self.by_name {
            let own = self.attempts.get(name).copied().unwrap_or_default();
            let AttemptSettings {
                max_retries,
                timeout_ms,
                stream_timeout_ms,
            } = own.or(settings.defaults);
            model.failover.max_retries = max_retries;
            model.failover.timeout_ms = timeout_ms;
            model.failover.stream_timeout_ms = stream_timeout_ms;
            model.cache_ttl_seconds = model.cache_ttl_seconds.or(settings.cache_ttl);
            for backend in &mut model.backends {
                backend.concurrency.max = backend.concurrency.max.or(max_concurrency);
            }
        }
    }

    /// Sets the weights of all backends, which depend on the others of the pool,
    /// and sorts them.
    fn weigh(&mut self) {
        for model in self.by_name.values_mut() {
            let share = |backend: &Backend| self.shares.get(&backend.id).copied();
            let shares: Vec<Share> = model
                .backends
                .iter()
                .map(|backend| share(backend).unwrap_or_default())
                .collect();
            let weights = share::weights(&shares);
            for (backend, weight) in model.backends.iter_mut().zip(weights) {
                backend.weight = weight;
            }
            model.backends.sort_by_key(|backend| backend.id);
        }
    }
}

/// A setting of the pool: the first entry that has it takes effect.
fn settle<T: PartialEq>(
    context: &Context<'_>,
    held: &mut Option<T>,
    given: Option<(T, SourceSpan)>,
) {
    match given {
        Some((given, span)) if held.as_ref().is_some_and(|held| *held != given) => {
            let message = "has no effect: an earlier entry of this model has another value";
            context.warning(span, message);
        }
        Some((given, _)) => *held = Some(given),
        None => {}
    }
}

/// The name of an entry, if valid; reports no problem otherwise.
fn named(value: &Value<'_>) -> Option<ModelName> {
    let name = value.peek("model_name")?;
    ModelName::new(name).ok().filter(|_| !name.contains('*'))
}

impl ListedModel {
    fn read<'a>(value: &Value<'a>, credentials: &Credentials<'a>) -> Option<Self> {
        value.fields(|fields| Self::of(fields, credentials))?
    }

    fn of<'a>(fields: &mut MappingReader<'a>, credentials: &Credentials<'a>) -> Option<Self> {
        let name = fields.required("model_name");
        let name = name.and_then(|value| {
            let name = value.model_name()?;
            if name.as_str().contains('*') {
                value.error(WILDCARD);
                return None;
            }
            Some(name)
        });
        let policy = fields
            .take("policy")
            .and_then(|value| Some((value.parsed()?, value.span())));
        let context_length = fields.take("context_length").and_then(|value| {
            let tokens = value.number(1..=u64::MAX)?;
            Some((Tokens(tokens), value.span()))
        });
        let cache_ttl = fields
            .take("cache_ttl_seconds")
            .and_then(|value| Some((value.number(0..=u64::MAX)?, value.span())));
        let params = fields.required("litellm_params");
        let info = fields.take("model_info");
        let info = info.and_then(|info| info.fields(ModelInfo::read));
        let info = info.unwrap_or_default();
        let (name, params) = (name?, params?);
        let (backend, enabled) = params
            .fields(|params| {
                credentials.supplement(params);
                let enabled = params.take("enabled").and_then(|value| value.flag());
                Some((backend::read(params, &name)?, enabled))
            })
            .flatten()?;
        Some(Self {
            name,
            policy,
            context_length: context_length.or(info.context_length),
            cache_ttl,
            backend,
            enabled: enabled.unwrap_or(true) && !info.blocked,
            access_groups: info.access_groups,
            span: params.span(),
        })
    }
}

/// Derived from the identity of a backend, so it stays the same when the
/// credential or the position in the file changes. 53 bits, which every JSON
/// parser represents exactly.
fn id(model: &ModelName, backend: &Backend, twin: u64) -> BackendId {
    let mut digest = Digest::new(&SHA256);
    for part in [model.as_str(), &backend.api_base, &backend.upstream_model] {
        digest.update(&part.len().to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest.update(&twin.to_be_bytes());
    let digest = digest.finish();
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    BackendId(u64::from_be_bytes(first) >> 11)
}
