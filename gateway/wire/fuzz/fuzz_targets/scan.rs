//! The scanner agrees with a strict parser on every body that the parser
//! accepts, and the spliced body parses to the request with the change.

#![no_main]

use fastllm_wire::{RequestSchema, Splice, estimated_tokens, scan};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const FIELDS: [RequestSchema; 6] = [
    RequestSchema::Completion,
    RequestSchema::Response,
    RequestSchema::Media,
    RequestSchema::Speech,
    RequestSchema::ModelOnly,
    RequestSchema::Chat,
];

/// The number of choices that a body requests, according to a parser.
fn choices(body: &Value, fields: RequestSchema) -> u64 {
    let count = |name| {
        let number = match body.get(name) {
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            Some(value) => value.as_f64(),
            None => None,
        };
        number.map_or(1, |number| number.ceil().clamp(1.0, 16_384.0) as u64)
    };
    let completion = fields == RequestSchema::Completion;
    let prompts = match body.get("prompt") {
        Some(Value::Array(each)) if completion => {
            let is_nested = |one: &&Value| one.is_string() || one.is_array() || one.is_object();
            each.iter().take_while(is_nested).count().max(1)
        }
        _ => 1,
    };
    let each = match fields {
        RequestSchema::Completion => count("n").max(count("best_of")),
        RequestSchema::Chat | RequestSchema::Media => count("n"),
        _ => 1,
    };
    each * prompts as u64
}

/// The length of all strings that cannot be files.
fn text_bytes(value: &Value) -> u64 {
    let is_file_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=:;,._-".contains(&byte);
    match value {
        Value::String(text) if text.bytes().all(is_file_byte) => 0,
        Value::String(text) => text.len() as u64,
        Value::Array(elements) => elements.iter().map(text_bytes).sum(),
        Value::Object(members) => members.values().map(text_bytes).sum(),
        _ => 0,
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (fields, body) = input;
    let fields = FIELDS[usize::from(fields) % FIELDS.len()];
    let Ok(members) = scan(body, fields) else {
        return;
    };
    let splice = Splice::new(&members).model("engine").include_usage();
    let out = splice.to_vec(body);
    assert_eq!(splice.len(body.len()), out.len());
    let Ok(mut wanted) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    assert_eq!(wanted["model"], members.model());
    let streams = wanted.get("stream").is_some_and(|stream| stream == true);
    assert_eq!(streams && fields != RequestSchema::ModelOnly, members.is_stream());
    let metadata = members.metadata_at();
    let written = wanted.get("metadata").is_some_and(|value| !value.is_null());
    assert_eq!(metadata.is_some(), written);
    if let Some(at) = metadata {
        let value: Value = serde_json::from_slice(&body[at]).expect("a value");
        assert_eq!(value, wanted["metadata"]);
    }
    if fields == RequestSchema::Speech {
        let characters = wanted.get("input").and_then(Value::as_str);
        let characters = characters.map(|text| text.chars().count() as u64);
        assert_eq!(members.input_characters(), characters);
    }
    assert_eq!(members.choices(), choices(&wanted, fields));
    assert!(members.prompt_tokens() >= estimated_tokens(text_bytes(&wanted)));
    wanted["model"] = "engine".into();
    if matches!(fields, RequestSchema::Chat | RequestSchema::Completion) {
        wanted["stream_options"]["include_usage"] = true.into();
    }
    let got: Value = serde_json::from_slice(&out).expect("still JSON");
    assert_eq!(got, wanted);
});
