use std::collections::BTreeMap;

use fastllm_contract::{
    ModelName, PrincipalId, Rule, RuleCaller, RuleShape, SplitBy, Target, VirtualModel,
};

use crate::db::rules::{Conditions, RuleRow};
use crate::db::snapshot::{PublishedVirtualModel, RoutingRows};
use crate::db::targets::TargetRow;

/// Virtual models with their rules and targets, in the order of the rows, and the
/// IDs of rules that are omitted because this release cannot read them.
pub(super) fn virtual_models(rows: RoutingRows) -> (Vec<VirtualModel>, Vec<i64>) {
    let RoutingRows {
        virtual_models,
        rules,
        targets,
        defaults,
    } = rows;
    let (mut targets, mut defaults) = (by_owner(targets), by_owner(defaults));
    let mut unreadable = Vec::new();
    let mut by_model: BTreeMap<i64, Vec<Rule>> = BTreeMap::new();
    for row in rules {
        let (id, owner) = (row.id, row.virtual_model_id);
        match rule(row, targets.remove(&id).unwrap_or_default()) {
            Some(rule) => by_model.entry(owner).or_default().push(rule),
            None => unreadable.push(id),
        }
    }
    let models = virtual_models
        .into_iter()
        .filter_map(|row| {
            let PublishedVirtualModel { id, name, split_by } = row;
            Some(VirtualModel {
                name: ModelName::new(&name).ok()?,
                rules: by_model.remove(&id).unwrap_or_default(),
                default_targets: defaults.remove(&id).unwrap_or_default(),
                split_by: match split_by.as_str() {
                    "caller" => SplitBy::Caller,
                    _ => SplitBy::Prompt,
                },
            })
        })
        .collect();
    (models, unreadable)
}

fn by_owner(rows: Vec<TargetRow>) -> BTreeMap<i64, Vec<Target>> {
    let mut lists: BTreeMap<i64, Vec<Target>> = BTreeMap::new();
    for row in rows {
        if let Ok(model) = ModelName::new(&row.model) {
            let weight = row.weight.unsigned_abs();
            lists
                .entry(row.owner)
                .or_default()
                .push(Target { model, weight });
        }
    }
    lists
}

fn rule(row: RuleRow, targets: Vec<Target>) -> Option<Rule> {
    let RuleRow {
        id: _,
        virtual_model_id: _,
        position: _,
        principals,
        roles,
        conditions,
    } = row;
    let Conditions {
        min_prompt_tokens,
        max_prompt_tokens,
        min_max_tokens,
        max_max_tokens,
        stream,
        headers,
        min_budget_used_percent,
        max_budget_used_percent,
        max_inflight_per_backend,
        after_minute,
        before_minute,
        days,
        utc_offset_minutes,
    } = conditions?;
    let principals = principals.into_iter();
    Some(Rule {
        caller: RuleCaller {
            principals: principals
                .map(|id| PrincipalId(id.unsigned_abs()))
                .collect(),
            roles,
        },
        shape: RuleShape {
            min_prompt_tokens,
            max_prompt_tokens,
            min_max_tokens,
            max_max_tokens,
            stream,
        },
        headers,
        min_budget_used_percent,
        max_budget_used_percent,
        max_inflight_per_backend,
        after_minute,
        before_minute,
        days,
        utc_offset_minutes,
        class: None,
        targets,
    })
}
