//! `fallbacks` and `model_group_alias`: models that stand in for others.

use std::collections::{BTreeMap, HashMap};

use fastllm_contract::{ModelName, SplitBy, Target, VirtualModel};

use super::models::Models;
use super::router::RouterSettings;
use super::value::{Context, SourceSpan, Value};

/// The key under which LiteLLM lists the fallbacks of all other models.
const ANY: &str = "*";

/// Weight of the target that an alias stands for; its fallbacks have none.
const WEIGHT: u32 = 100;

/// The models that stand in for each name.
type Lists = HashMap<String, Vec<ModelName>>;

/// An alias, and where it is in the file.
pub(super) struct Alias {
    pub(super) model: VirtualModel,
    pub(super) span: SourceSpan,
}

/// Sets the fallbacks of the models, and returns the aliases. A list or an alias
/// with an error is skipped.
pub(super) fn apply(
    context: &Context<'_>,
    settings: &RouterSettings<'_>,
    models: &mut Models,
) -> Vec<Alias> {
    let names = Names {
        models,
        aliases: aliases(context, settings, models),
    };
    let mut fallbacks = Lists::new();
    for list in &settings.fallbacks {
        names.add(list, &mut fallbacks);
    }
    let mut larger = Lists::new();
    for list in &settings.context_fallbacks {
        names.add(list, &mut larger);
        names.check_context_lengths(list);
    }
    let mut usual = fallbacks.remove(ANY).unwrap_or_default();
    for list in &settings.default_fallbacks {
        usual.extend(context.entry(|| names.models(list)).unwrap_or_default());
    }
    let aliases = names.aliases.iter().map(|(alias, (model, span))| {
        let own = fallbacks.get(alias.as_str());
        let following = own.or_else(|| fallbacks.get(model.as_str()));
        Alias {
            model: virtual_model(alias, model, following.unwrap_or(&usual)),
            span: span.clone(),
        }
    });
    let aliases: Vec<Alias> = aliases.collect();
    for (name, model) in &mut models.by_name {
        let own = fallbacks.get(name.as_str()).unwrap_or(&usual);
        model.failover.fallbacks = others(name, own);
        let larger = larger.get(name.as_str());
        model.failover.context_fallbacks = larger.map_or_else(Vec::new, |list| others(name, list));
    }
    aliases
}

/// The other models of a list, each once.
fn others(name: &ModelName, list: &[ModelName]) -> Vec<ModelName> {
    let mut others: Vec<ModelName> = Vec::new();
    for other in list {
        if other != name && !others.contains(other) {
            others.push(other.clone());
        }
    }
    others
}

fn virtual_model(alias: &ModelName, model: &ModelName, fallbacks: &[ModelName]) -> VirtualModel {
    let target = |model: &ModelName, weight| Target {
        model: model.clone(),
        weight,
    };
    let fallbacks = others(model, fallbacks);
    let fallbacks = fallbacks.iter().map(|model| target(model, 0));
    VirtualModel {
        name: alias.clone(),
        rules: Vec::new(),
        default_targets: std::iter::once(target(model, WEIGHT))
            .chain(fallbacks)
            .collect(),
        split_by: SplitBy::default(),
    }
}

/// The aliases, each with the model that it stands for.
type Aliases = BTreeMap<ModelName, (ModelName, SourceSpan)>;

fn aliases(context: &Context<'_>, settings: &RouterSettings<'_>, models: &Models) -> Aliases {
    let mut aliases = Aliases::new();
    let listed = settings.aliases.iter().flat_map(Value::members);
    for (name, value) in listed {
        let read = || {
            let alias = ModelName::new(name).map_err(|error| value.error(error.to_string()));
            let target = target_of_alias(&value)?;
            let model = existing(&target, models)?;
            let alias = alias.ok()?;
            if models.by_name.contains_key(&alias) {
                value.error("a model in model_list has this name: remove one of them");
            }
            Some((alias, model))
        };
        if let Some((alias, model)) = context.entry(read) {
            aliases.insert(alias, (model, value.span()));
        }
    }
    aliases
}

/// The name that an alias stands for: a text, or `model` of a mapping.
fn target_of_alias<'a>(value: &Value<'a>) -> Option<Value<'a>> {
    if value.is_scalar() {
        return Some(value.clone());
    }
    value.fields(|fields| {
        let model = fields.required("model");
        if let Some(hidden) = fields.take("hidden")
            && hidden.flag() == Some(true)
        {
            hidden.warning("has no effect: /v1/models lists aliases, too");
        }
        model
    })?
}

fn existing(value: &Value<'_>, models: &Models) -> Option<ModelName> {
    let name = value.model_name()?;
    if !models.by_name.contains_key(&name) {
        value.error("no model in model_list has this name");
        return None;
    }
    Some(name)
}

/// The names that lists of fallbacks may contain.
struct Names<'m> {
    models: &'m Models,
    aliases: Aliases,
}

impl Names<'_> {
    /// Adds `fallbacks: [{MODEL: [MODEL, ...]}]` to the lists that are known; the
    /// first list of a model is used.
    fn add(&self, value: &Value<'_>, lists: &mut Lists) {
        let mappings = value.items_or_one();
        for (name, list) in mappings.iter().flat_map(Value::members) {
            let context = list.context;
            if name != ANY && !self.is_known(name) {
                context.entry_error(list.span(), "no model in model_list has the name before it");
                continue;
            }
            let Some(models) = context.entry(|| self.models(&list)) else {
                continue;
            };
            if lists.contains_key(name) {
                list.warning("has no effect: an earlier list of this model is used");
            } else {
                lists.insert(name.to_owned(), models);
            }
        }
    }

    /// Warns about models whose fallbacks for long prompts are never used.
    fn check_context_lengths(&self, value: &Value<'_>) {
        let mappings = value.items_or_one();
        for (name, list) in mappings.iter().flat_map(Value::peek_members) {
            let model = self.models.by_name.get(name);
            if model.is_some_and(|model| model.context_length.is_none()) {
                list.warning("has no effect: set context_length of the model before it");
            }
        }
    }

    fn is_known(&self, name: &str) -> bool {
        ModelName::new(name).is_ok_and(|name| {
            self.models.by_name.contains_key(&name) || self.aliases.contains_key(&name)
        })
    }

    /// The models of a list; of an alias, the one that it stands for.
    fn models(&self, list: &Value<'_>) -> Option<Vec<ModelName>> {
        let items = list.items_or_one();
        let model = |value: &Value<'_>| {
            let name = value.model_name()?;
            match self.aliases.get(&name) {
                Some((model, _)) => Some(model.clone()),
                None => existing(value, self.models),
            }
        };
        // Every error is reported.
        let models: Vec<_> = items.iter().map(model).collect();
        models.into_iter().collect()
    }
}
