use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::estimate::{TOKENS_PER_FILE, estimated_tokens};
use crate::{RequestSchema, scan};

const SCHEMAS: [RequestSchema; 6] = [
    RequestSchema::Chat,
    RequestSchema::Completion,
    RequestSchema::Response,
    RequestSchema::Media,
    RequestSchema::Speech,
    RequestSchema::ModelOnly,
];

fn tokens_as(fields: RequestSchema, body: &str) -> u64 {
    scan(body.as_bytes(), fields).unwrap().prompt_tokens()
}

fn tokens(body: &str) -> u64 {
    tokens_as(RequestSchema::Chat, body)
}

/// The estimate for a body in which everything is text.
fn as_text(body: &str) -> u64 {
    estimated_tokens(body.len() as u64)
}

/// The estimate for a body of which so many bytes are the data of files.
fn with_files(body: &str, data: usize, files: u64) -> u64 {
    estimated_tokens((body.len() - data) as u64) + files * TOKENS_PER_FILE
}

/// A chat request whose message has this content.
fn chat(content: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#)
}

/// A request to the responses API with this input.
fn input(input: &str) -> String {
    format!(r#"{{"model":"m","input":{input}}}"#)
}

#[test]
fn text_that_looks_like_a_file_is_text() {
    let words = r"word\u0020".repeat(300);
    let lines = r"word\nword".repeat(300);
    let data = "iVBORw0K".repeat(400);
    for text in [
        format!(";base64,{words}"),
        format!(";base64,{lines}"),
        format!(";base64,{data}"),
        format!("data:image/png;base64,{data}"),
        format!(r#"{{\"image_url\":{{\"url\":\"data:image/png;base64,{data}\"}}}}"#),
        format!(r#"\"input_audio\":{{\"data\":\"{data}\"}}"#),
        data.clone(),
    ] {
        let string = format!("\"{text}\"");
        for body in [
            chat(&string),
            chat(&format!(r#"[{{"type":"text","text":{string}}}]"#)),
            input(&string),
            input(&format!("[{string}]")),
            format!(r#"{{"model":"m","prompt":{string}}}"#),
            format!(r#"{{"model":"m","prompt":[{string}]}}"#),
            format!(r#"{{"model":"m","suffix":{string}}}"#),
            format!(r#"{{"model":"m","instructions":{string}}}"#),
        ] {
            for fields in SCHEMAS {
                assert_eq!(tokens_as(fields, &body), as_text(&body), "{body}");
            }
        }
    }
}

#[test]
fn a_file_counts_only_where_the_api_has_one() {
    let data = "iVBORw0K".repeat(100);
    let url = format!("\"data:image/png;base64,{data}\"");
    let image = format!(r#"{{"type":"image_url","image_url":{{"url":{url}}}}}"#);
    for body in [
        // Not in a part of a message.
        format!(r#"{{"model":"m","messages":[],"tools":[{image}]}}"#),
        format!(r#"{{"model":"m","messages":[],"functions":[{image}]}}"#),
        format!(r#"{{"model":"m","messages":[],"response_format":{image}}}"#),
        format!(r#"{{"model":"m","messages":[],"prediction":{{"content":[{image}]}}}}"#),
        format!(r#"{{"model":"m","messages":[],"image_url":{{"url":{url}}}}}"#),
        format!(r#"{{"model":"m","messages":{{"content":[{image}]}}}}"#),
        format!(r#"{{"model":"m","messages":[[{{"content":[{image}]}}]]}}"#),
        format!(r#"{{"model":"m","messages":[{image}]}}"#),
        format!(r#"{{"model":"m","messages":[{{"tool_calls":[{image}]}}]}}"#),
        chat(&image),
        chat(&format!("[[{image}]]")),
        chat(&format!(r#"[{{"content":[{image}]}}]"#)),
        chat(&format!(r#"[{{"type":"text","text":{url}}}]"#)),
        chat(&format!(r#"[{{"text":{image}}}]"#)),
        chat(&format!("[{url}]")),
        // Not by the exact name.
        chat(&format!(r#"[{{"Image_url":{{"url":{url}}}}}]"#)),
        chat(&format!(r#"[{{"image\u005furl":{{"url":{url}}}}}]"#)),
        chat(&format!(r#"[{{"x":"image_url","y":{{"url":{url}}}}}]"#)),
    ] {
        assert_eq!(tokens(&body), as_text(&body), "{body}");
    }
    // The part counts as a file, and its bytes as text.
    for part in [
        format!(r#"{{"image_url":{{"\u0075rl":{url}}}}}"#),
        format!(r#"{{"image_url":{{"detail":{url}}}}}"#),
        format!(r#"{{"image_url":{{"url":[{url}]}}}}"#),
        format!(r#"{{"image_url":{{"url":{{"url":{url}}}}}}}"#),
        format!(r#"{{"image_url":{{"url":"data:image/png;base64,{data} word"}}}}"#),
        format!(r#"{{"file":{{"file_data":"data:text/plain;base64,{data}"}}}}"#),
        format!(r#"{{"file":{{"file_data":"{data}"}}}}"#),
        format!(r#"{{"file":{{"filename":{url}}}}}"#),
        format!(r#"{{"input_audio":{{"format":"{data}"}}}}"#),
        format!(r#"{{"input_audio":{{"data":{url}}}}}"#),
        format!(r#"{{"file_id":{url}}}"#),
    ] {
        let body = chat(&format!("[{part}]"));
        assert_eq!(tokens(&body), with_files(&body, 0, 1), "{part}");
    }
}

#[test]
fn the_data_of_files_is_not_text() {
    let data = "iVBORw0K+/".repeat(100);
    let (png, pdf) = ("data:image/png;base64", "data:application/pdf;base64");
    for part in [
        format!(r#"{{"type":"image_url","image_url":{{"url":"{png},{data}"}}}}"#),
        format!(
            r#"{{ "image_url" : {{ "detail":"low" , "url" :{}"{png},{data}" }} }}"#,
            "\n"
        ),
        format!(r#"{{"type":"input_image","image_url":"{png},{data}"}}"#),
        format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#),
        format!(r#"{{"type":"audio_url","audio_url":{{"url":"data:audio/wav;base64,{data}"}}}}"#),
        format!(r#"{{"type":"video_url","video_url":{{"url":"data:video/mp4;base64,{data}"}}}}"#),
        format!(r#"{{"type":"file","file":{{"filename":"a.pdf","file_data":"{pdf},{data}"}}}}"#),
        format!(r#"{{"type":"input_file","filename":"a.pdf","file_data":"{pdf},{data}"}}"#),
    ] {
        let two = format!(r#"[{{"type":"text","text":"what?"}},{part},{part}]"#);
        let chat = chat(&two);
        assert_eq!(tokens(&chat), with_files(&chat, 2000, 2), "{part}");
        for message in [
            format!(r#"[{{"role":"user","content":{two}}}]"#),
            format!(r#"[{{"type":"function_call_output","output":{two}}}]"#),
            format!(r#"[{part},{{"type":"computer_call_output","output":{part}}}]"#),
            format!("[{part},{part}]"),
        ] {
            let body = input(&message);
            for fields in SCHEMAS {
                assert_eq!(
                    tokens_as(fields, &body),
                    with_files(&body, 2000, 2),
                    "{body}"
                );
            }
        }
    }
    let escaped = data.replace('/', r"\/");
    let body =
        chat(&format!(r#"[{{"image_url":{{"url":"{png},{escaped}"}}}}]"#).replace("e/p", r"e\/p"));
    assert_eq!(tokens(&body), with_files(&body, escaped.len(), 1));
    for (body, files) in [
        (format!(r#"{{"model":"m","image":"{png},{data}"}}"#), 1),
        (
            format!(r#"{{"model":"m","image":["{png},{data}","https://a/b"]}}"#),
            2,
        ),
    ] {
        let media = tokens_as(RequestSchema::Media, &body);
        assert_eq!(media, with_files(&body, 1000, files));
        assert_eq!(tokens(&body), as_text(&body));
    }
}

#[test]
fn a_linked_file_counts_as_one() {
    for part in [
        r#"{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}"#,
        r#"{"type":"input_image","image_url":"https://example.com/a.png"}"#,
        r#"{"type":"input_image","file_id":"file-1"}"#,
        r#"{"type":"input_file","file_url":"https://example.com/a.pdf"}"#,
        r#"{"type":"file","file":{"file_id":"file-1"}}"#,
    ] {
        let body = chat(&format!("[{part},{part},{part}]"));
        assert_eq!(tokens(&body), with_files(&body, 0, 3), "{part}");
    }
}

#[test]
fn each_number_of_a_token_list_is_a_token() {
    let list = vec!["7"; 1000].join(",");
    let long = vec!["12345678"; 1000].join(", ");
    for (name, value, text, tokens) in [
        ("prompt", format!("[{list}]"), 2, 1000),
        ("prompt", format!("[[{list}],[{list}]]"), 7, 2000),
        ("input", format!("[{list}]"), 2, 1000),
        ("input", format!("[[{list}] , [{list}]]"), 9, 2000),
        ("prompt", format!("[{long}]"), 2 + 999, 1000),
        // What is no token counts by its bytes.
        ("prompt", "[123456789,1.5,-1,null]".to_owned(), 23, 0),
        ("prompt", format!("[[[{list}]]]"), 1999 + 6, 0),
        ("documents", format!("[{list}]"), 1999 + 2, 0),
        ("prompt", "1234".to_owned(), 4, 0),
    ] {
        let body = format!(r#"{{"model":"m","{name}":{value}}}"#);
        let around = body.len() - value.len();
        for fields in SCHEMAS {
            let found = tokens_as(fields, &body);
            let expected = estimated_tokens((around + text) as u64) + tokens;
            assert_eq!(found, expected, "{name} {fields:?}");
        }
    }
}

#[test]
fn the_query_is_counted_for_each_document() {
    let query = format!("\"{}\"", "what is the sea? ".repeat(100));
    let documents = |count: usize| format!("[{}]", vec!["\"a\""; count].join(","));
    let part = format!(r#"{{"type":"text","text":{query}}}"#);
    for (one, many, times) in [
        (query.clone(), documents(50), 49),
        (format!("[{query}]"), documents(50), 49),
        (query.clone(), documents(1), 0),
        (query.clone(), "[]".to_owned(), 0),
        (query.clone(), "\"a\"".to_owned(), 0),
        (format!("[{query},{query}]"), documents(2), 0),
        (
            query.clone(),
            r#"[{"text":"a"},{"text":"b"}]"#.to_owned(),
            1,
        ),
        (
            query.clone(),
            format!(r#"{{"content":[{part},{part},{part}]}}"#),
            2,
        ),
    ] {
        for (left, right) in [
            ("query", "documents"),
            ("text_1", "text_2"),
            ("data_1", "data_2"),
            ("queries", "items"),
        ] {
            let body = format!(r#"{{"model":"m","{left}":{one},"{right}":{many}}}"#);
            let bytes = body.len() + one.len() * times;
            let found = tokens_as(RequestSchema::ModelOnly, &body);
            assert_eq!(found, estimated_tokens(bytes as u64), "{body}");
            assert_eq!(tokens(&body), as_text(&body));
        }
    }
    let twice = format!(
        r#"{{"model":"m","query":{query},"query":"a","documents":{}}}"#,
        documents(3)
    );
    let bytes = twice.len() + query.len() * 2;
    assert_eq!(
        tokens_as(RequestSchema::ModelOnly, &twice),
        estimated_tokens(bytes as u64)
    );
}

/// Whether a string, by its decoded value, is the data URL of a file; the length
/// of its data.
fn data_of(text: &str) -> Option<usize> {
    let (head, data) = text.split_once(";base64,")?;
    let kind = head.strip_prefix("data:")?;
    let is_file = kind == "image/png" || kind == "application/pdf";
    (is_file && is_base64(data)).then_some(data.len())
}

fn is_base64(data: &str) -> bool {
    let text = data.trim_end_matches('=');
    data.len() - text.len() <= 2
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
}

/// The places of files, by their paths. Each begins with the path of a part.
const FILES: [&str; 9] = [
    "image_url",
    "audio_url",
    "video_url",
    "file_data",
    "image_url/url",
    "audio_url/url",
    "video_url/url",
    "file/file_data",
    "input_audio/data",
];

/// The amounts in a value, found with a parser.
#[derive(Debug, Default)]
struct Expected {
    /// Bytes of all names and strings, decoded.
    text: usize,
    /// Bytes of files.
    data: usize,
    files: u64,
    /// Bytes of tokens, with commas.
    numbers: usize,
    tokens: u64,
}

impl Expected {
    fn add(&mut self, path: &str, value: &Value) {
        match value {
            Value::String(text) => {
                self.text += text.len();
                let Some(place) = in_part(path) else { return };
                let data = if place == "input_audio/data" {
                    is_base64(text).then_some(text.len())
                } else {
                    data_of(text)
                };
                if FILES.contains(&place) {
                    self.data += data.unwrap_or(0);
                }
                let is_named =
                    ["image_url", "audio_url", "video_url", "file_data"].contains(&place);
                self.files += u64::from(is_named || place == "file_id" || place == "file_url");
            }
            Value::Array(elements) => {
                let has_tokens = ["input", "prompt", "input/*", "prompt/*"].contains(&path);
                for (at, element) in elements.iter().enumerate() {
                    let written = element.to_string();
                    if has_tokens && element.is_u64() && written.len() <= 8 {
                        self.tokens += 1;
                        self.numbers += written.len() + usize::from(at + 1 < elements.len());
                    }
                    self.add(&format!("{path}/*"), element);
                }
            }
            Value::Object(members) => {
                let nested = ["image_url", "audio_url", "video_url", "input_audio", "file"];
                self.files += u64::from(in_part(path).is_some_and(|place| nested.contains(&place)));
                for (name, value) in members {
                    self.text += name.len();
                    let path = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}/{name}")
                    };
                    self.add(&path, value);
                }
            }
            _ => {}
        }
    }
}

/// The path below a part.
fn in_part(path: &str) -> Option<&str> {
    [
        "messages/*/content/*/",
        "input/*/content/*/",
        "input/*/output/*/",
        "input/*/output/",
        "input/*/",
    ]
    .into_iter()
    .find_map(|part| path.strip_prefix(part).filter(|rest| !rest.contains('*')))
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<String>(),
        "[a-zA-Z0-9+/]{0,80}={0,3}",
        "data:image/png;base64,[a-zA-Z0-9+/]{0,80}={0,3}",
        "data:(image/png|application/pdf|text/plain);base64,[a-z+ \n\\\\\"]{0,20}",
        "[\\\\\"{}\\[\\]:, ;a]{0,12}",
    ]
    .prop_map(Value::from)
}

fn name() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "content",
        "output",
        "image_url",
        "audio_url",
        "url",
        "input_audio",
        "data",
        "file",
        "file_data",
        "file_id",
        "text",
        "type",
    ]);
    prop_oneof![8 => known.prop_map(str::to_owned), 1 => any::<String>()]
}

/// Values with names of the API, at right and at wrong places.
fn nested() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![4 => text(), 1 => (0..1_000_000_000_u64).prop_map(Value::from)];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((name(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn part() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(|text| json!({"type": "text", "text": text})),
        text().prop_map(|text| json!({"image_url": {"url": text, "detail": "low"}})),
        text().prop_map(|text| json!({"input_audio": {"data": text}})),
        text().prop_map(|text| json!({"file": {"file_data": text}})),
        text().prop_map(|text| json!({"image_url": text})),
        nested(),
    ]
}

fn messages() -> impl Strategy<Value = Value> {
    let content = prop_oneof![
        text(),
        nested(),
        proptest::collection::vec(part(), 0..4).prop_map(Value::from),
    ];
    let message = (content, nested())
        .prop_map(|(content, other)| json!({"role": "user", "content": content, "output": other}));
    let tokens = (0..1_000_000_000_u64).prop_map(Value::from);
    let element = prop_oneof![4 => message, 1 => part(), 1 => tokens, 1 => nested()];
    proptest::collection::vec(element, 0..5).prop_map(Value::from)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The estimate is exact by the documented rule, and never lower than that
    /// of all text outside files, whatever the body contains.
    #[test]
    fn the_estimate_agrees_with_a_parser(
        messages in messages(), input in messages(), prompt in messages(), other in nested(),
        pretty: bool,
    ) {
        let mut members = Map::new();
        for (name, value) in [
            ("model", json!("m")), ("messages", messages), ("input", input), ("prompt", prompt),
            ("tools", other),
        ] {
            members.insert(name.to_owned(), value);
        }
        let value = Value::Object(members);
        let mut expected = Expected::default();
        expected.add("", &value);
        let body = crate::tests::written(&value, pretty);
        let found = tokens(&body);
        let text = body.len() - expected.data - expected.numbers;
        let others = expected.tokens + expected.files * TOKENS_PER_FILE;
        prop_assert_eq!(found, estimated_tokens(text as u64) + others);
        let decoded = expected.text - expected.data;
        prop_assert!(found >= estimated_tokens(decoded as u64) + expected.tokens);
    }

    /// Escapes never make the estimate smaller.
    #[test]
    fn escaped_text_counts_at_least_as_much(text in "\\PC{0,200}") {
        let plain = chat(&Value::from(text.clone()).to_string());
        let units: Vec<_> = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let escaped = chat(&format!("\"{}\"", units.concat()));
        prop_assert!(tokens(&escaped) >= tokens(&plain));
        prop_assert!(tokens(&escaped) >= as_text(&text));
    }
}
