//! `model_info` of an entry, of which most members only describe the model.

use fastllm_contract::Tokens;

use super::unsupported::{Setting, ignored, restriction};
use super::value::{MappingReader, SourceSpan, Value};

/// Members that restrict who may use the model.
const RESTRICTIONS: [Setting; 1] = [restriction(
    &["team_id", "team_public_model_name"],
    "models are granted in auth.keys; remove it here",
)];

/// Members that LiteLLM acts on and this program does not.
const WITHOUT_EFFECT: [Setting; 1] = [ignored(
    &[
        "disable_background_health_check",
        "health_check_max_tokens",
        "health_check_model",
        "health_check_timeout",
        "health_check_voice",
    ],
    "use litellm_params.health_check, health_path and health_expect",
)];

/// What `model_info` changes.
#[derive(Debug, Default)]
pub(super) struct ModelInfo {
    pub(super) context_length: Option<(Tokens, SourceSpan)>,
    /// Names by which keys may be granted the model.
    pub(super) access_groups: Vec<String>,
    pub(super) blocked: bool,
}

impl ModelInfo {
    pub(super) fn read(fields: &mut MappingReader<'_>) -> Self {
        let context_length = fields.take("max_input_tokens").and_then(|value| {
            let tokens = value.number(1..=u64::MAX)?;
            Some((Tokens(tokens), value.span()))
        });
        let groups = fields.list("access_groups");
        let groups = groups.iter().filter_map(Value::text);
        let access_groups = groups.map(str::to_owned).collect();
        let blocked = fields.take("blocked").and_then(|value| value.flag());
        fields.unsupported(&RESTRICTIONS);
        fields.unsupported(&WITHOUT_EFFECT);
        fields.ignore_prices();
        // Any other member is a description.
        let _descriptions = fields.drain(|_| true);
        Self {
            context_length,
            access_groups,
            blocked: blocked.unwrap_or(false),
        }
    }
}
