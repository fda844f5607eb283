//! `model_list`: entries of the same name form one pool.

use std::collections::{BTreeMap, HashMap};

use fastllm_contract::{Backend, BackendId, Model, ModelName, PolicyKind, Tokens};
use ring::digest::{Context as Digest, SHA256};

use super::backend;
use super::value::{Context, MappingReader, SourceSpan, Value};

/// Members that LiteLLM supports in an entry and this program does not.
const WITHOUT_EFFECT: [&str; 1] = ["model_info"];

/// The models of the file.
#[derive(Debug, Default)]
pub(super) struct Models {
    pub(super) by_name: BTreeMap<ModelName, Model>,
    /// Where each backend is in the file.
    pub(super) spots: HashMap<BackendId, SourceSpan>,
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
    backend: Backend,
    enabled: bool,
    span: SourceSpan,
}

impl Models {
    pub(super) fn read(context: &Context<'_>, list: &[Value<'_>]) -> Self {
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
                    backends: Vec::new(),
                });
            }
            if let Some(entry) = context.entry(|| value.fields(ListedModel::read).flatten()) {
                models.add(context, entry);
            }
        }
        for model in models.by_name.values_mut() {
            model.backends.sort_by_key(|backend| backend.id);
        }
        models
    }

    fn add(&mut self, context: &Context<'_>, entry: ListedModel) {
        let ListedModel {
            name,
            policy,
            context_length,
            cache_ttl,
            mut backend,
            enabled,
            span,
        } = entry;
        let Some(model) = self.by_name.get_mut(&name) else {
            return;
        };
        settle(context, &mut model.policy, policy);
        settle(context, &mut model.context_length, context_length);
        settle(context, &mut model.cache_ttl_seconds, cache_ttl);
        if !enabled {
            return;
        }
        let twins = self.twins.entry(id(&name, &backend, 0)).or_default();
        backend.id = id(&name, &backend, *twins);
        *twins += 1;
        self.spots.insert(backend.id, span);
        model.backends.push(backend);
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
    ModelName::new(value.peek("model_name")?).ok()
}

impl ListedModel {
    fn read(fields: &mut MappingReader<'_>) -> Option<Self> {
        let name = fields.required("model_name");
        let name = name.and_then(|value| {
            let name = value.model_name()?;
            if name.as_str().contains('*') {
                value.warning("wildcards are not supported: the name is used literally");
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
        fields.without_effect(&WITHOUT_EFFECT);
        let (name, params) = (name?, params?);
        let (backend, enabled) = params
            .fields(|params| {
                let enabled = params.take("enabled").and_then(|value| value.flag());
                Some((backend::read(params, &name)?, enabled))
            })
            .flatten()?;
        Some(Self {
            name,
            policy,
            context_length,
            cache_ttl,
            backend,
            enabled: enabled.unwrap_or(true),
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
