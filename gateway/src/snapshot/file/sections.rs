//! Tables of the settings of LiteLLM that this program does not have, by
//! section, with what to do instead.

use super::unsupported::{Setting, ignored, restriction};

/// Names of sections whose loss could open the gateway.
pub(super) const CLOSING_SECTIONS: [&str; 5] = [
    "auth",
    "environment_variables",
    "fastllm",
    "general_settings",
    "guardrails",
];

const OTHER_SERVICES: &str = "the gateway serves OpenAI's inference endpoints only";
const NO_DATABASE: &str = "a gateway with a configuration file uses no database; keys are listed \
                           in auth.keys, and a control plane stores them in one";
const METRICS: &str = "use the gateway's /metrics and access log";
const MONEY: &str =
    "costs are counted with a control plane only; use auth.keys[].budget.tokens_total";
const KEY_LIMITS: &str = "use the limits of auth.keys";
const NO_SIGN_IN: &str = "keys are checked only against auth.keys and the master key";

/// Top level of the file.
pub(super) const SECTIONS: [Setting; 4] = [
    ignored(
        &[
            "assistant_settings",
            "default_vertex_config",
            "files_settings",
            "finetune_settings",
            "mcp_aliases",
            "mcp_servers",
            "mcp_tools",
            "prompts",
            "search_tools",
            "vector_store_registry",
        ],
        OTHER_SERVICES,
    ),
    ignored(
        &["callback_settings", "worker_config", "litellm_version"],
        METRICS,
    ),
    restriction(
        &[
            "allowed_ips",
            "api_keys",
            "custom_auth",
            "enable_jwt_auth",
            "enable_oauth2_auth",
            "keys",
            "master_key",
            "policies",
            "policy_attachments",
            "team_settings",
            "virtual_keys",
        ],
        "it is read in general_settings.master_key or auth.keys only",
    ),
    restriction(
        &["budgets", "limits", "rate_limits"],
        "use limits and budget of auth.keys",
    ),
];

/// `general_settings`: what restricts.
pub(super) const GENERAL_RESTRICTIONS: [Setting; 7] = [
    restriction(
        &[
            "custom_auth",
            "custom_auth_run_common_checks",
            "custom_auth_settings",
            "enable_jwt_auth",
            "enable_oauth2_auth",
            "enable_oauth2_proxy_auth",
            "litellm_jwtauth",
            "oauth2_config_mappings",
            "role_mappings",
            "role_permissions",
        ],
        NO_SIGN_IN,
    ),
    restriction(
        &["allowed_ips"],
        "restrict the network with a firewall or a NetworkPolicy, and remove it here",
    ),
    restriction(
        &["admin_only_routes", "allowed_routes"],
        "every key may use every endpoint for its models; restrict paths in a proxy before the \
         gateway, and remove it here",
    ),
    restriction(
        &[
            "enforce_user_param",
            "enforced_params",
            "service_account_settings",
        ],
        "parameters of requests are not required; give each application a key of its own in \
         auth.keys, and remove it here",
    ),
    restriction(
        &["global_max_parallel_requests"],
        "use limits.concurrency of auth.keys or litellm_params.max_concurrency",
    ),
    restriction(
        &["max_response_size_mb"],
        "use limits.tokens_per_min of auth.keys, and remove it here",
    ),
    restriction(&["max_budget", "provider_budget_config"], MONEY),
];

/// `general_settings`: what else has no effect.
pub(super) const GENERAL: [Setting; 6] = [
    ignored(
        &[
            "alert_to_webhook_url",
            "alert_types",
            "alerting",
            "alerting_args",
            "alerting_threshold",
            "disable_spend_logs",
            "disable_spend_updates",
            "maximum_spend_logs_retention_interval",
            "maximum_spend_logs_retention_period",
            "spend_report_frequency",
            "store_prompts_in_spend_logs",
        ],
        METRICS,
    ),
    ignored(
        &[
            "allow_requests_on_db_unavailable",
            "custom_key_generate",
            "custom_key_update",
            "database_connection_pool_limit",
            "database_connection_timeout",
            "database_extra_connection_params",
            "database_type",
            "database_url",
            "default_team_disabled",
            "disable_adding_master_key_hash_to_db",
            "disable_master_key_return",
            "disable_prisma_schema_update",
            "disable_reset_budget",
            "key_generation_settings",
            "proxy_batch_polling_interval",
            "proxy_batch_write_at",
            "proxy_budget_rescheduler_max_time",
            "proxy_budget_rescheduler_min_time",
            "store_model_in_db",
            "supported_db_objects",
            "use_redis_transaction_buffer",
            "user_api_key_cache_ttl",
        ],
        NO_DATABASE,
    ),
    ignored(
        &[
            "auto_redirect_ui_login_to_sso",
            "custom_sso",
            "custom_ui_sso_sign_in_handler",
            "enable_public_model_hub",
            "litellm_license",
            "proxy_base_url",
            "ui_access_mode",
            "ui_password",
            "ui_username",
        ],
        "the gateway has no user interface; the control plane has one",
    ),
    ignored(
        &[
            "background_health_checks",
            "health_check_concurrency",
            "health_check_details",
            "health_check_interval",
            "use_shared_health_check",
        ],
        "the gateway probes its backends: use --health-interval and litellm_params.health_check",
    ),
    ignored(
        &[
            "always_include_stream_usage",
            "allow_client_side_credentials",
            "block_robots",
            "completion_model",
            "disable_responses_id_security",
            "disable_retry_on_max_parallel_request_limit_error",
            "forward_client_headers_to_llm_api",
            "forward_openai_org_id",
            "image_generation_model",
            "infer_model_from_keys",
            "litellm_key_header_name",
            "public_routes",
            "reject_clientside_metadata_tags",
            "use_x_forwarded_for",
            "user_header_mappings",
            "user_header_name",
        ],
        "requests are forwarded as clients send them, with keys in authorization or x-api-key; \
         see --forward-header",
    ),
    ignored(
        &[
            "key_management_settings",
            "key_management_system",
            "pass_through_endpoints",
            "pass_through_request_timeout",
        ],
        "the gateway serves OpenAI's inference endpoints only, and reads secrets from its \
         environment",
    ),
];

/// `litellm_settings`: what restricts.
pub(super) const LITELLM_RESTRICTIONS: [Setting; 3] = [
    restriction(
        &[
            "budget_duration",
            "max_budget",
            "max_end_user_budget",
            "max_end_user_budget_id",
            "max_user_budget",
        ],
        MONEY,
    ),
    restriction(
        &[
            "banned_keywords_list",
            "blocked_user_id_list",
            "blocked_user_list",
            "guardrails",
            "post_call_rules",
            "pre_call_rules",
        ],
        CONTENT,
    ),
    restriction(&["priority_reservation"], KEY_LIMITS),
];

/// Advice for filters of content.
pub(super) const CONTENT: &str = "the content of requests is not checked; send them through a \
                                  service that does, and remove it here";

const CALLBACKS: &str = "prompts and keys are never logged, and no code of the file runs; use \
                         /metrics, the access log and --otel-endpoint";

/// The problem of a callback.
pub(super) const NO_CALLBACKS: &str = "has no effect: prompts and keys are never logged, and no \
                                       code of the file runs; use /metrics, the access log and \
                                       --otel-endpoint";

/// `litellm_settings`: what else has no effect.
pub(super) const LITELLM: [Setting; 5] = [
    ignored(
        &[
            "audit_log_callbacks",
            "callback_settings",
            "datadog_params",
            "default_redis_batch_cache_expiry",
            "default_team_settings",
            "disable_end_user_cost_tracking",
            "disable_end_user_cost_tracking_prometheus_only",
            "gcs_callback_params",
            "langfuse_default_tags",
            "log_raw_request_response",
            "prometheus_initialize_budget_metrics",
            "prometheus_metrics_config",
            "require_auth_for_metrics_endpoint",
            "s3_callback_params",
            "service_callback",
            "service_callbacks",
            "store_audit_logs",
            "turn_off_message_logging",
            "redact_messages_in_exceptions",
            "redact_user_api_key_info",
        ],
        CALLBACKS,
    ),
    ignored(
        &[
            "debug_level",
            "json_logs",
            "set_verbose",
            "suppress_debug_info",
            "telemetry",
        ],
        "use --log and --log-format",
    ),
    ignored(
        &[
            "add_function_to_prompt",
            "custom_provider_map",
            "disable_add_transform_inline_image_block",
            "disable_copilot_system_to_assistant",
            "disable_hf_tokenizer_download",
            "disable_stop_sequence_limit",
            "drop_params",
            "enable_json_schema_validation",
            "enable_preview_features",
            "forward_traceparent_to_llm_provider",
            "image_generation_model",
            "merge_reasoning_content_in_choices",
            "modify_params",
            "return_response_headers",
        ],
        "requests and responses are forwarded unchanged",
    ),
    ignored(
        &[
            "force_ipv4",
            "ssl_verify",
            "ssl_security_level",
            "ssl_certificate",
        ],
        "certificates are always verified; use --ca-bundle to trust more of them",
    ),
    ignored(
        &[
            "default_internal_user_params",
            "default_key_generate_params",
            "default_team_params",
            "internal_user_budget_duration",
            "key_generation_settings",
            "max_internal_user_budget",
            "public_model_groups",
            "public_model_groups_links",
            "upperbound_key_generate_params",
        ],
        "keys and users are not created here: auth.keys lists them",
    ),
];

/// Members of `router_settings` and `litellm_settings` about failures.
pub(super) const FALLBACKS: [Setting; 2] = [
    ignored(
        &["content_policy_fallbacks"],
        "the client receives what a filter of the upstream rejects; use fallbacks for failures",
    ),
    ignored(
        &[
            "max_fallbacks",
            "model_group_retry_policy",
            "retry_after",
            "retry_policy",
        ],
        "use num_retries; retry-after of upstreams is respected",
    ),
];

/// The problem of the parameters of a cache.
pub(super) const CACHE: &str = "has no effect: responses are cached in the memory of each gateway; \
                                see --cache-max-bytes and --cache-scope";

/// `router_settings`: what restricts.
pub(super) const ROUTER_RESTRICTIONS: [Setting; 2] = [
    restriction(&["provider_budget_config"], MONEY),
    restriction(
        &["enable_tag_filtering"],
        "backends are not chosen by tags; use grants of auth.keys and fastllm.virtual_models, \
         and remove it here",
    ),
];

/// `router_settings`: what else has no effect.
pub(super) const ROUTER: [Setting; 4] = [
    ignored(
        &[
            "cache_kwargs",
            "cache_responses",
            "client_ttl",
            "redis_db",
            "redis_host",
            "redis_password",
            "redis_port",
            "redis_url",
        ],
        "each gateway routes by what it observes; gateways of a control plane share limits, not \
         a Redis",
    ),
    ignored(
        &[
            "allowed_fails",
            "allowed_fails_policy",
            "cooldown_time",
            "disable_cooldowns",
            "enable_health_check_routing",
        ],
        "failing backends are ejected and return by themselves; see fastllm.unhealthy_after",
    ),
    ignored(
        &[
            "debug_level",
            "set_verbose",
            "routing_strategy_args",
            "alerting_config",
            "enable_pre_call_checks",
            "ignore_invalid_deployments",
            "optional_pre_call_checks",
            "tag_filtering_match_any",
        ],
        "routing follows the policy of the model and its context_length",
    ),
    ignored(
        &["assistants_config", "default_litellm_params"],
        "write the parameters into each litellm_params; a YAML anchor can share them",
    ),
];

/// `litellm_params`: what restricts.
pub(super) const PARAMS_RESTRICTIONS: [Setting; 3] = [
    restriction(&["budget_duration", "max_budget"], MONEY),
    restriction(&["guardrails"], CONTENT),
    restriction(
        &["max_file_size_mb"],
        "start the gateway with --max-body-mb, and remove it here",
    ),
];

/// `litellm_params`: what else has no effect.
pub(super) const PARAMS: [Setting; 6] = [
    ignored(
        &[
            "additional_drop_params",
            "allowed_openai_params",
            "cache_control_injection_points",
            "dimensions",
            "drop_params",
            "encoding_format",
            "extra_body",
            "frequency_penalty",
            "input_type",
            "keep_alive",
            "logit_bias",
            "max_completion_tokens",
            "max_tokens",
            "merge_reasoning_content_in_choices",
            "modify_params",
            "n",
            "num_ctx",
            "presence_penalty",
            "reasoning_effort",
            "response_format",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "temperature",
            "thinking",
            "tool_choice",
            "tools",
            "top_k",
            "top_p",
            "user",
        ],
        "requests are forwarded with the parameters that clients set",
    ),
    ignored(
        &["allowed_fails", "cooldown_time"],
        "failing backends are ejected and return by themselves; see fastllm.unhealthy_after",
    ),
    ignored(
        &["tags"],
        "backends are not chosen by tags; use rules of fastllm.virtual_models",
    ),
    ignored(
        &[
            "aws_access_key_id",
            "aws_bedrock_runtime_endpoint",
            "aws_profile_name",
            "aws_region_name",
            "aws_role_name",
            "aws_secret_access_key",
            "aws_session_name",
            "aws_session_token",
            "model_region",
            "region_name",
            "vertex_credentials",
            "vertex_location",
            "vertex_project",
            "watsonx_region_name",
        ],
        "the region is part of api_base, and requests are not signed",
    ),
    ignored(
        &[
            "configurable_clientside_auth_params",
            "litellm_trace_id",
            "use_chat_completions_api",
            "use_in_pass_through",
            "use_litellm_proxy",
        ],
        "clients choose neither credentials nor addresses of upstreams",
    ),
    ignored(
        &["ssl_verify", "client_certificate", "client_key"],
        "certificates are always verified; use --ca-bundle to trust more of them",
    ),
];
