use super::ErrorClass::{self, Backend, Capacity, Client, Configuration, Credential, Unsupported};

/// Responses of vendors: status, body, class.
const RESPONSES: &[(u16, &str, ErrorClass)] = &[
    // OpenAI.
    (
        401,
        r#"{"error":{"message":"Incorrect API key provided: sk-ab**yz.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
        Credential,
    ),
    (
        429,
        r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
        Credential,
    ),
    (
        429,
        r#"{"error":{"message":"Rate limit reached","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        Capacity,
    ),
    (
        400,
        r#"{"error":{"message":"Billing hard limit has been reached","type":"invalid_request_error","param":null,"code":"billing_hard_limit_reached"}}"#,
        Credential,
    ),
    (
        403,
        r#"{"error":{"code":"unsupported_country_region_territory","message":"Country, region, or territory not supported","param":null,"type":"request_forbidden"}}"#,
        Credential,
    ),
    (
        404,
        r#"{"error":{"message":"The model `x` does not exist or you do not have access to it.","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#,
        Configuration,
    ),
    (
        404,
        r#"{"error":{"message":"Invalid URL (POST /v1/chat)","type":"invalid_request_error","param":null,"code":null}}"#,
        Configuration,
    ),
    (
        400,
        r#"{"error":{"message":"The requested model 'x' does not exist.","type":"invalid_request_error","param":"tools[0].model","code":"model_not_found"}}"#,
        Client,
    ),
    (
        400,
        r#"{"error":{"message":"Previous response with id 'resp_1' not found.","type":"invalid_request_error","param":"previous_response_id","code":"previous_response_not_found"}}"#,
        Client,
    ),
    (
        404,
        r#"{"error":{"message":"No such File object: file-1","type":"invalid_request_error","param":"id","code":null}}"#,
        Client,
    ),
    (
        404,
        r#"{"error":{"message":"Conversation with id 'conv_1' not found.","type":"invalid_request_error","param":null,"code":null}}"#,
        Client,
    ),
    (
        400,
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        Client,
    ),
    (
        500,
        r#"{"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}"#,
        Backend,
    ),
    (
        503,
        r#"{"error":{"message":"Slow down","type":"service_unavailable_error","code":"slow_down"}}"#,
        Capacity,
    ),
    // Azure.
    (
        400,
        r#"{"error":{"message":"The response was filtered","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#,
        Client,
    ),
    (
        401,
        r#"{"error":{"code":"401","message":"Access denied due to invalid subscription key."}}"#,
        Credential,
    ),
    (
        404,
        r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}"#,
        Configuration,
    ),
    (
        429,
        r#"{"error":{"code":"429","message":"Requests have exceeded the call rate limit."}}"#,
        Capacity,
    ),
    (
        401,
        r#"{"statusCode":401,"message":"Unauthorized"}"#,
        Credential,
    ),
    // Anthropic.
    (
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
        Credential,
    ),
    (
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: Field required"}}"#,
        Client,
    ),
    (
        404,
        r#"{"type":"error","error":{"type":"not_found_error","message":"model: x"}}"#,
        Configuration,
    ),
    (
        413,
        r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
        Client,
    ),
    (
        529,
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        Capacity,
    ),
    // Google, in the array that its OpenAI endpoints use, and without.
    (
        400,
        r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}]"#,
        Credential,
    ),
    (
        400,
        r#"{"error":{"code":400,"message":"Please renew it.","status":"INVALID_ARGUMENT","details":[{"@type":"a","links":[]},{"@type":"b","reason":"API_KEY_EXPIRED"}]}}"#,
        Credential,
    ),
    (
        400,
        r#"{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}"#,
        Credential,
    ),
    (
        400,
        r#"[{"error":{"code":400,"message":"Invalid value","status":"INVALID_ARGUMENT","details":[{"fieldViolations":[{"field":"API_KEY_INVALID"}]}]}}]"#,
        Client,
    ),
    (
        403,
        r#"{"error":{"code":403,"message":"The caller does not have permission","status":"PERMISSION_DENIED"}}"#,
        Credential,
    ),
    (
        404,
        r#"{"error":{"code":404,"message":"models/x is not found","status":"NOT_FOUND"}}"#,
        Configuration,
    ),
    (
        429,
        r#"[{"error":{"code":429,"message":"Resource exhausted","status":"RESOURCE_EXHAUSTED"}}]"#,
        Capacity,
    ),
    (
        503,
        r#"{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}"#,
        Capacity,
    ),
    (
        504,
        r#"{"error":{"code":504,"message":"Deadline expired","status":"DEADLINE_EXCEEDED"}}"#,
        Backend,
    ),
    // OpenRouter.
    (
        402,
        r#"{"error":{"code":402,"message":"Insufficient credits"}}"#,
        Credential,
    ),
    (
        403,
        r#"{"error":{"code":403,"message":"Your input was flagged","metadata":{"reasons":["violence"],"flagged_input":"..."}}}"#,
        Client,
    ),
    (
        403,
        r#"{"error":{"code":403,"message":"Request blocked: prompt injection patterns detected"}}"#,
        Client,
    ),
    (
        403,
        r#"{"error":{"code":403,"message":"Key limit exceeded","metadata":{"provider_name":"x"}}}"#,
        Credential,
    ),
    (
        408,
        r#"{"error":{"code":408,"message":"Timed out"}}"#,
        Backend,
    ),
    (
        502,
        r#"{"error":{"code":502,"message":"Provider returned error","metadata":{"raw":"..."}}}"#,
        Backend,
    ),
    // DeepSeek, Groq, Mistral, LiteLLM.
    (
        402,
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
        Credential,
    ),
    (
        400,
        r#"{"error":{"message":"Model Not Exist","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
        Configuration,
    ),
    (
        400,
        r#"{"error":{"message":"The model has been decommissioned","type":"invalid_request_error","code":"model_decommissioned"}}"#,
        Configuration,
    ),
    (
        400,
        r#"{"object":"error","message":"Invalid model: x","type":"invalid_model","param":null,"code":"1500"}"#,
        Configuration,
    ),
    (
        400,
        r#"{"error":{"message":"Budget has been exceeded!","type":"budget_exceeded","param":null,"code":"400"}}"#,
        Credential,
    ),
    // vLLM and SGLang.
    (
        400,
        r#"{"object":"error","message":"This model's maximum context length is 32 tokens","type":"BadRequestError","param":null,"code":400}"#,
        Client,
    ),
    (
        404,
        r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}"#,
        Configuration,
    ),
    (
        404,
        r#"{"error":{"message":"Response with id 'resp_1' not found.","type":"invalid_request_error","param":null,"code":404}}"#,
        Client,
    ),
    (404, r#"{"detail":"Not Found"}"#, Configuration),
    (405, r#"{"detail":"Method Not Allowed"}"#, Configuration),
    (401, r#"{"error":"Unauthorized"}"#, Credential),
    (
        501,
        r#"{"object":"error","message":"no tools","type":"NotImplementedError","param":null,"code":501}"#,
        Unsupported,
    ),
    (
        500,
        r#"{"object":"error","message":"x","type":"InternalServerError","param":null,"code":500}"#,
        Backend,
    ),
    // llama.cpp.
    (
        400,
        r#"{"error":{"code":400,"message":"request (9 tokens) exceeds the available context size (8 tokens)","type":"exceed_context_size_error"}}"#,
        Client,
    ),
    (
        501,
        r#"{"error":{"code":501,"message":"This server does not support embeddings.","type":"not_supported_error"}}"#,
        Unsupported,
    ),
    (
        503,
        r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
        Capacity,
    ),
    // TGI.
    (
        422,
        r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096","error_type":"validation"}"#,
        Client,
    ),
    (
        424,
        r#"{"error":"Request failed during generation: Server error","error_type":"generation"}"#,
        Backend,
    ),
    (
        429,
        r#"{"error":"Model is overloaded","error_type":"overloaded"}"#,
        Capacity,
    ),
];

/// Events of streams: name, data, class.
const EVENTS: &[(Option<&str>, &str, Option<ErrorClass>)] = &[
    (
        None,
        r#"{"choices":[{"delta":{"content":"\"error\":1"}}]}"#,
        None,
    ),
    (None, r#"{"choices":[],"error":null}"#, None),
    (None, r#"{"choices":[],"error":""}"#, None),
    (None, r#"{"choices":[],"error":false}"#, None),
    (
        None,
        r#"{"type":"response.created","response":{"error":null}}"#,
        None,
    ),
    (None, r#"{"type":"message_start"}"#, None),
    (
        None,
        r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded"}}"#,
        Some(Client),
    ),
    (
        None,
        r#"{"error":{"type":"invalid_request_error"}}"#,
        Some(Client),
    ),
    (
        None,
        r#"{"error":{"message":"x","type":"BadRequestError","param":null,"code":400}}"#,
        Some(Client),
    ),
    (
        None,
        r#"{"error":{"message":"EngineCore encountered an issue. See stack trace.","type":"BadRequestError","param":null,"code":400}}"#,
        Some(Backend),
    ),
    (
        None,
        r#"{"error":{"object":"error","message":"x","type":"SERVICE_UNAVAILABLE","param":null,"code":503}}"#,
        Some(Capacity),
    ),
    (
        None,
        r#"{"object":"error","message":"x","type":"InternalServerError","code":500}"#,
        Some(Backend),
    ),
    (
        None,
        r#"{"id":"gen-1","error":{"code":502,"message":"x"},"choices":[{"finish_reason":"error"}]}"#,
        Some(Backend),
    ),
    (
        None,
        r#"{"error":{"code":"429","message":"x"}}"#,
        Some(Capacity),
    ),
    (None, r#"{"error":{"code":"rate_limit"}}"#, Some(Capacity)),
    (None, r#"{"error":{"code":-1}}"#, Some(Backend)),
    (None, r#"{"error":{"code":401}}"#, Some(Credential)),
    (None, r#"{"error":{"code":404}}"#, Some(Configuration)),
    (None, r#"{"error":"busy","code":500}"#, Some(Backend)),
    (None, r#"{"error":{}}"#, Some(Backend)),
    (
        None,
        r#"{"error":"Model is overloaded","error_type":"overloaded"}"#,
        Some(Capacity),
    ),
    (
        None,
        r#"{"error":{"message":"Request failed during generation: x","http_status_code":422}}"#,
        Some(Backend),
    ),
    (
        None,
        r#"{"error":{"message":"Input validation error: x","http_status_code":422}}"#,
        Some(Client),
    ),
    (
        Some("error"),
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        Some(Capacity),
    ),
    (
        Some("error"),
        r#"{"type":"error","error":{"type":"authentication_error"}}"#,
        Some(Credential),
    ),
    (
        Some("error"),
        r#"{"type":"error","error":{"type":"not_found_error","message":"model: x"}}"#,
        Some(Configuration),
    ),
    (Some("error"), "busy", Some(Backend)),
    (
        Some("error"),
        r#"{"type":"error","code":"rate_limit_exceeded","message":"x","param":null}"#,
        Some(Capacity),
    ),
    (
        None,
        r#"{"type":"error","code":"server_error","message":"x"}"#,
        Some(Backend),
    ),
    (
        Some("response.failed"),
        r#"{"type":"response.failed","response":{"id":"resp_1","status":"failed","error":{"code":"invalid_prompt","message":"x"}}}"#,
        Some(Client),
    ),
    (
        None,
        r#"{"type":"response.failed","response":{"error":{"code":"server_error"}}}"#,
        Some(Backend),
    ),
    (
        None,
        r#"{"type":"response.failed","response":{"error":null}}"#,
        Some(Backend),
    ),
    // A complete body with a success status.
    (
        None,
        r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error"}}"#,
        Some(Backend),
    ),
];

#[test]
fn responses_of_vendors_have_their_class() {
    for (status, body, class) in RESPONSES {
        assert_eq!(
            ErrorClass::of_response(*status, body.as_bytes()),
            *class,
            "{status} {body}"
        );
    }
}

#[test]
fn events_of_vendors_have_their_class() {
    for (event, data, class) in EVENTS {
        let event = event.map(str::as_bytes);
        assert_eq!(
            ErrorClass::within_success(event, data.as_bytes()),
            *class,
            "{event:?} {data}"
        );
    }
}

#[test]
fn only_bodies_that_begin_as_errors_are_errors_of_successful_responses() {
    let overloaded = r#"{"message":"x","type":"overloaded_error"}"#;
    for (body, class) in [
        (format!(r#"{{"error":{overloaded}}}"#), Some(Capacity)),
        (format!(" \n{{ \"error\" : {overloaded} }}"), Some(Capacity)),
        (
            format!(r#"{{"type":"error","error":{overloaded}}}"#),
            Some(Capacity),
        ),
        (
            r#"{"object": "error", "message": "x", "code": 503}"#.to_owned(),
            Some(Capacity),
        ),
        (
            r#"{"error":{"code":"invalid_api_key"}}"#.to_owned(),
            Some(Credential),
        ),
        (r#"{"error":null,"id":"x"}"#.to_owned(), None),
        (r#"{"id":"x","error":null,"choices":[]}"#.to_owned(), None),
        (r#"{"errors":[]}"#.to_owned(), None),
        (r#"{"object":"list","data":[]}"#.to_owned(), None),
        ("[]".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(
            ErrorClass::of_successful_body(body.as_bytes()),
            class,
            "{body}"
        );
    }
}

#[test]
fn a_status_without_a_known_body_decides_alone() {
    let table = [
        (&[301, 302, 307, 308, 404, 405, 410][..], Configuration),
        (&[401, 402, 403, 407], Credential),
        (&[400, 406, 412, 413, 415, 418, 422, 431, 451], Client),
        (&[409, 423, 425, 429, 503, 529], Capacity),
        (&[408, 424, 499, 500, 502, 504, 520, 599], Backend),
        (&[501], Unsupported),
    ];
    for (statuses, class) in table {
        for status in statuses {
            for body in ["", "<html>", "[", "{", "{\"error\":{\"co", "null", "\"x\""] {
                let found = ErrorClass::of_response(*status, body.as_bytes());
                assert_eq!(found, class, "{status} {body}");
            }
        }
    }
}

#[test]
fn what_an_upstream_repeats_of_the_request_does_not_change_the_class() {
    for echo in [
        r#"{"error":{"message":"Unknown value 'insufficient_quota': Your credit balance is too low","type":"invalid_request_error","param":"x","code":"invalid_value"}}"#,
        r#"{"error":{"message":"\"code\":\"invalid_api_key\"","type":"invalid_request_error","param":"model_not_found","code":null}}"#,
        r#"{"error":{"code":400,"message":"Unknown name \"API_KEY_INVALID\"","status":"INVALID_ARGUMENT","details":[{"description":"\"reason\":\"API_KEY_INVALID\""}]}}"#,
    ] {
        assert_eq!(
            ErrorClass::of_response(400, echo.as_bytes()),
            Client,
            "{echo}"
        );
    }
}

#[test]
fn an_incomplete_body_is_read_as_far_as_it_goes() {
    let body = br#"{"error":{"code":"insufficient_quota","message":"x"},"padding":"#;
    assert_eq!(ErrorClass::of_response(429, body), Credential);
}

proptest::proptest! {
    #[test]
    fn any_body_has_a_class(status in 300_u16..600, body: Vec<u8>) {
        let _class = ErrorClass::of_response(status, &body);
        let _error = ErrorClass::within_success(None, &body);
    }
}
