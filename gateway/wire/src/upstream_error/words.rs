//! The words of upstream errors.

use super::ErrorClass;
use super::ErrorClass::{Backend, Capacity, Client, Configuration, Credential, Unsupported};

/// Codes and types that determine the class whatever the status: vendors send
/// some of them with several statuses, or with one that misleads.
pub(super) const SPECIFIC: &[(&str, ErrorClass)] = &[
    // The size or the content of the prompt.
    ("context_length_exceeded", Client),
    ("exceed_context_size_error", Client),
    ("max_tokens_exceeded", Client),
    ("token_limit_exceeded", Client),
    ("string_above_max_length", Client),
    ("string_too_long", Client),
    ("request_too_large", Client),
    ("content_filter", Client),
    ("content_policy_violation", Client),
    ("ResponsibleAIPolicyViolation", Client),
    ("moderation_blocked", Client),
    ("data_inspection_failed", Client),
    ("image_content_policy_violation", Client),
    ("invalid_prompt", Client),
    ("invalid_encrypted_content", Client),
    ("invalid_image", Client),
    ("invalid_image_format", Client),
    ("invalid_image_mode", Client),
    ("invalid_image_url", Client),
    ("invalid_base64_image", Client),
    ("image_too_large", Client),
    ("image_too_small", Client),
    ("image_parse_error", Client),
    ("image_file_too_large", Client),
    ("image_file_not_found", Client),
    ("empty_image_file", Client),
    ("unsupported_image_media_type", Client),
    ("failed_to_download_image", Client),
    // Objects that the client's body names.
    ("previous_response_not_found", Client),
    ("response_not_found", Client),
    ("conversation_not_found", Client),
    ("file_not_found", Client),
    ("container_not_found", Client),
    ("vector_store_not_found", Client),
    ("prompt_not_found", Client),
    // The key, and the account behind it.
    ("invalid_api_key", Credential),
    ("incorrect_api_key", Credential),
    ("api_key_invalid", Credential),
    ("api_key_expired", Credential),
    ("api_key_service_blocked", Credential),
    ("api_key_ip_address_blocked", Credential),
    ("access_token_expired", Credential),
    ("access_token_scope_insufficient", Credential),
    ("missing_scope", Credential),
    ("insufficient_permissions", Credential),
    ("authentication_error", Credential),
    ("permission_error", Credential),
    ("account_deactivated", Credential),
    ("organization_deactivated", Credential),
    ("invalid_organization", Credential),
    ("ip_not_authorized", Credential),
    ("unsupported_country_region_territory", Credential),
    ("insufficient_quota", Credential),
    ("insufficient_balance", Credential),
    ("insufficient_credits", Credential),
    ("billing_error", Credential),
    ("billing_disabled", Credential),
    ("billing_hard_limit_reached", Credential),
    ("billing_not_active", Credential),
    ("consumer_suspended", Credential),
    ("consumer_invalid", Credential),
    ("service_disabled", Credential),
    ("budget_exceeded", Credential),
    // The model or the address.
    ("model_not_found", Configuration),
    ("model_not_available", Configuration),
    ("model_decommissioned", Configuration),
    ("model_deprecated", Configuration),
    ("invalid_model", Configuration),
    ("DeploymentNotFound", Configuration),
    ("unknown_url", Configuration),
    ("not_supported_error", Unsupported),
    ("unimplemented", Unsupported),
    // Rate limits and overload.
    ("rate_limit_exceeded", Capacity),
    ("rate_limit_error", Capacity),
    ("resource_exhausted", Capacity),
    ("slow_down", Capacity),
    ("overloaded", Capacity),
    ("overloaded_error", Capacity),
    ("engine_overloaded", Capacity),
    ("unavailable_error", Capacity),
    ("capacity_exceeded", Capacity),
];

/// Words that determine the class of an error without a status. With a status
/// they are not reliable: vendors send `invalid_request_error` with a 401 and
/// with a 404, too.
pub(super) const GENERIC: &[(&str, ErrorClass)] = &[
    ("invalid_request_error", Client),
    ("BadRequestError", Client),
    ("bad_request", Client),
    ("UnprocessableEntityError", Client),
    ("unprocessable_entity", Client),
    ("validation", Client),
    ("validation_error", Client),
    ("template_error", Client),
    ("tool_error", Client),
    ("invalid_argument", Client),
    ("out_of_range", Client),
    ("AuthenticationError", Credential),
    ("unauthorized", Credential),
    ("unauthenticated", Credential),
    ("PermissionDeniedError", Credential),
    ("permission_denied", Credential),
    ("forbidden", Credential),
    ("payment_required", Credential),
    ("not_found_error", Configuration),
    ("NotFoundError", Configuration),
    ("not_found", Configuration),
    ("NotImplementedError", Unsupported),
    ("not_implemented", Unsupported),
    ("RateLimitError", Capacity),
    ("rate_limit", Capacity),
    ("too_many_requests", Capacity),
    ("tokens", Capacity),
    ("requests", Capacity),
    ("unavailable", Capacity),
    ("service_unavailable", Capacity),
    ("ServiceUnavailableError", Capacity),
    ("aborted", Capacity),
    ("server_error", Backend),
    ("api_error", Backend),
    ("internal_error", Backend),
    ("generation", Backend),
];

/// How messages begin whose other members mislead. Only the beginning counts: a
/// client can choose what an upstream repeats later in the text.
pub(super) const MESSAGES: &[(&str, ErrorClass)] = &[
    // Anthropic and Google send these as a 400 for a wrong request.
    ("Your credit balance is too low", Credential),
    ("API key not valid", Credential),
    ("API key expired", Credential),
    ("User location is not supported", Credential),
    ("Model Not Exist", Configuration),
    // vLLM reports a dead engine as a wrong request in streams.
    ("EngineCore encountered an issue", Backend),
    ("Background loop has errored already", Backend),
    // TGI sends one status for all errors in streams.
    ("Model is overloaded", Capacity),
    ("Request failed during generation", Backend),
    ("Incomplete generation", Backend),
    // Objects that the client's body names, as a 404 without another sign of it.
    ("Response with id ", Client),
    ("Previous response with id ", Client),
    ("Conversation with id ", Client),
    ("Item with id ", Client),
    ("No such File", Client),
    ("Request blocked", Client),
];

/// Whether two words are equal, in any spelling: `rate_limit_error`,
/// `RateLimitError` and `RATE-LIMIT-ERROR` are.
pub(super) fn same_word(listed: &str, word: &[u8]) -> bool {
    letters(listed.as_bytes()).eq(letters(word))
}

fn letters(word: &[u8]) -> impl Iterator<Item = u8> {
    let letters = word.iter().filter(|byte| byte.is_ascii_alphanumeric());
    letters.map(u8::to_ascii_lowercase)
}
