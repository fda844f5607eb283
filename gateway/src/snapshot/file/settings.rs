//! The sections of LiteLLM beside `model_list`.

use std::collections::HashMap;

use super::sections;
use super::unsupported::{Setting, refuse_restriction};
use super::value::{Context, MappingReader, Member, Value};

/// Callbacks that reject or change requests.
const CLOSING_CALLBACKS: [&str; 15] = [
    "aporia_prompt_injection",
    "azure_content_safety",
    "banned_keywords",
    "blocked_user_check",
    "detect_prompt_injection",
    "dynamic_rate_limiter",
    "dynamic_rate_limiter_v3",
    "google_text_moderation",
    "hide_secrets",
    "lakera_prompt_injection",
    "llamaguard_moderations",
    "llmguard_moderations",
    "max_budget_limiter",
    "openai_moderations",
    "presidio",
];

/// Checks of LiteLLM's router that enforce limits.
const CLOSING_CHECKS: [&str; 2] = ["enforce_model_rate_limits", "router_budget_limiting"];

/// `environment_variables`: they precede those of the process, whose
/// environment is not changed.
pub(super) fn read_environment(context: &Context<'_>, fields: &mut MappingReader<'_>) {
    let Some(section) = fields.take("environment_variables") else {
        return;
    };
    let mut variables = HashMap::new();
    for (name, value) in section.members() {
        match value.peek_text() {
            Some(text) if !value.is_null() => {
                variables.insert(name.to_owned(), text.to_owned());
            }
            Some(_) => {}
            None if value.is_scalar() => {
                value.warning("has no effect: the environment variable that it names is not set");
            }
            None => value.error("expected a text"),
        }
    }
    context.set_variables(variables);
}

/// `guardrails`: they are restrictions, except those that only log.
pub(super) fn read_guardrails(fields: &mut MappingReader<'_>) {
    for guardrails in fields.drain(|name| name == "guardrails") {
        if !guardrails.value.is_list() {
            refuse_restriction(&guardrails, sections::CONTENT);
            continue;
        }
        for guardrail in guardrails.value.items() {
            let params = guardrail.member("litellm_params");
            let mode = params.and_then(|params| params.peek("mode"));
            if mode == Some("logging_only") {
                guardrail.warning("has no effect: prompts are never logged");
            } else {
                let member = Member {
                    name: guardrails.name,
                    span: guardrail.span(),
                    value: guardrail,
                };
                refuse_restriction(&member, sections::CONTENT);
            }
        }
    }
}

/// What `general_settings` contains.
#[derive(Default)]
pub(super) struct GeneralSettings<'a> {
    pub(super) master_key: Option<Value<'a>>,
    /// Maximum number of requests in flight to a backend.
    pub(super) max_concurrency: Option<u32>,
}

/// `general_settings`.
pub(super) fn read_general<'a>(
    fields: &mut MappingReader<'a>,
    max_body_bytes: u64,
) -> GeneralSettings<'a> {
    let master_key = fields.take("master_key");
    let concurrency = fields.take("max_parallel_requests");
    let max_concurrency = concurrency.and_then(|value| value.number(1..=1_000_000));
    if let Some(most) = fields.take("max_request_size_mb") {
        check_body_size(&most, max_body_bytes);
    }
    rest(
        fields,
        &[&sections::GENERAL_RESTRICTIONS, &sections::GENERAL],
    );
    GeneralSettings {
        master_key,
        max_concurrency,
    }
}

/// A limit of request bodies, which a flag has to keep.
fn check_body_size(most: &Value<'_>, max_body_bytes: u64) {
    let Some(mebibytes) = most.number::<u64>(1..=u64::from(u32::MAX)) else {
        return;
    };
    if max_body_bytes > mebibytes << 20 {
        most.refuse(format!(
            "the gateway accepts larger requests: start it with --max-body-mb {mebibytes}"
        ));
    }
}

/// The members of `litellm_settings` that have no equivalent.
pub(super) fn rest_of_litellm(fields: &mut MappingReader<'_>) {
    let lists = |name: &str| ["callbacks", "success_callback", "failure_callback"].contains(&name);
    for callbacks in fields.drain(lists) {
        let closing = named_in(&callbacks.value, &CLOSING_CALLBACKS);
        if closing.is_empty() {
            let context = callbacks.value.context;
            context.warning(callbacks.span, sections::NO_CALLBACKS);
        }
        for closing in closing {
            closing.refuse(format!(
                "a restriction that this gateway cannot enforce: {}",
                sections::CONTENT
            ));
        }
    }
    rest(
        fields,
        &[&sections::LITELLM_RESTRICTIONS, &sections::LITELLM],
    );
}

/// The members of `router_settings` that have no equivalent.
pub(super) fn rest_of_router(fields: &mut MappingReader<'_>) {
    if let Some(checks) = fields.take("optional_pre_call_checks") {
        for check in named_in(&checks, &CLOSING_CHECKS) {
            check.refuse(
                "a restriction that this gateway cannot enforce: use the limits of auth.keys and \
                 litellm_params.max_concurrency, and remove it here",
            );
        }
    }
    rest(fields, &[&sections::ROUTER_RESTRICTIONS, &sections::ROUTER]);
}

/// The items of a list, or the one text in its place, that are among `names`.
pub(super) fn named_in<'a>(list: &Value<'a>, names: &[&str]) -> Vec<Value<'a>> {
    let items = list.items_or_one();
    let is_named = |item: &Value<'_>| {
        item.is_scalar() && item.text().is_some_and(|text| names.contains(&text))
    };
    items.into_iter().filter(is_named).collect()
}

/// The members of a section that no reader has taken.
fn rest(fields: &mut MappingReader<'_>, tables: &[&[Setting]]) {
    for table in tables {
        fields.unsupported(table);
    }
    fields.refuse_misspelled(&["master_key"]);
    fields.refuse_restrictive();
}
