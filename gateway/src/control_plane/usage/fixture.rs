use fastllm_contract::{ModelName, PrincipalId, RefusalKind, Timestamp, Tokens, UsageEvent};

/// A minimal usage event.
pub(super) fn event(refusal: Option<RefusalKind>) -> UsageEvent {
    UsageEvent {
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        audio_completion_tokens: None,
        images: None,
        input_characters: None,
        audio_ms: None,
        audio_bytes: None,
        cached: false,
        metadata: None,
        principal_id: PrincipalId(1),
        key_id: None,
        model: ModelName::new("small").unwrap(),
        requested_model: None,
        endpoint: None,
        request_id: None,
        attempts: None,
        prompt_tokens: Tokens(0),
        completion_tokens: Tokens(0),
        cached_tokens: None,
        reasoning_tokens: None,
        usage_reported: true,
        estimated: false,
        refusal,
        at: Timestamp(0),
        duration_ms: None,
        ttft_ms: None,
        status: None,
        cost_micros: None,
    }
}
