use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const REPORT: &str = r#"{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}"#;

fn tokens(prompt_tokens: u64, completion_tokens: Option<u64>) -> Usage {
    Usage {
        prompt_tokens,
        completion_tokens,
        ..Usage::default()
    }
}

fn report(value: &Value) -> UsageReport {
    UsageReport::of_object(value.to_string().as_bytes())
}

fn of(value: &Value) -> Option<Usage> {
    report(value).counts()
}

fn kept(body: &[u8], read: usize) -> BodyExcerpt {
    let mut ends = BodyExcerpt::new();
    body.chunks(read).for_each(|part| ends.push(part));
    assert_eq!(ends.total(), body.len() as u64);
    ends
}

#[test]
fn both_spellings_are_read() {
    let chat = json!({
        "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 5, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 12, "audio_tokens": 8}, "cost": 0.000_123_4,
    });
    let expected = Usage {
        prompt_tokens: 100,
        completion_tokens: Some(20),
        cached_tokens: Some(64),
        cache_write_tokens: Some(5),
        reasoning_tokens: Some(12),
        audio_prompt_tokens: Some(0),
        audio_completion_tokens: Some(8),
        cost_micros: Some(123),
    };
    assert_eq!(of(&chat), Some(expected));
    let responses = json!({
        "input_tokens": 100, "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens_details": {"reasoning_tokens": 12, "audio_tokens": 8},
    });
    let expected = Usage {
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        cost_micros: None,
        ..expected
    };
    assert_eq!(of(&responses), Some(expected));
}

#[test]
fn absent_is_unknown() {
    assert_eq!(of(&json!({"prompt_tokens": 5})), Some(tokens(5, None)));
    assert_eq!(
        of(&json!({"prompt_tokens": 5, "total_tokens": 5})),
        Some(tokens(5, Some(0)))
    );
    assert_eq!(
        of(&json!({"prompt_tokens": 5, "total_tokens": 4})),
        Some(tokens(5, None))
    );
    assert_eq!(of(&json!({"total_tokens": 5})), Some(tokens(5, Some(0))));
    assert_eq!(of(&json!({"completion_tokens": 5})), None);
    assert_eq!(of(&json!({})), None);
    assert_eq!(of(&json!(null)), None);
    assert_eq!(of(&json!({"type": "duration", "seconds": 3})), None);
}

#[test]
fn a_count_may_be_a_whole_float_or_text() {
    for (prompt, completion) in [
        (json!(12.0), json!(3.0)),
        (json!("12"), json!("3.0")),
        (json!(1.2e1), json!("3")),
    ] {
        let written = json!({"prompt_tokens": prompt, "completion_tokens": completion});
        assert_eq!(of(&written), Some(tokens(12, Some(3))), "{written}");
        let written = json!({"input_tokens": prompt, "total_tokens": 15.0});
        assert_eq!(of(&written), Some(tokens(12, Some(3))), "{written}");
    }
}

#[test]
fn an_implausible_count_makes_the_report_implausible() {
    for odd in [
        json!(-1),
        json!(1.5),
        json!("x"),
        json!(1e30),
        json!([7]),
        json!(true),
        json!(MAX_TOKENS + 1),
        json!(u64::MAX),
        json!("18446744073709551615"),
    ] {
        for written in [
            json!({"prompt_tokens": odd, "completion_tokens": 1}),
            json!({"prompt_tokens": 1, "completion_tokens": odd}),
            json!({"input_tokens": 1, "output_tokens": odd}),
            json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": odd}),
            json!({"total_tokens": odd}),
        ] {
            assert_eq!(report(&written), UsageReport::Implausible, "{written}");
        }
        let meta = json!({"meta": {"billed_units": {"input_tokens": odd}}});
        let found = UsageReport::of_response(meta.to_string().as_bytes());
        assert_eq!(found, UsageReport::Implausible, "{meta}");
        // The parts of a whole are unknown by themselves.
        let parts = json!({
            "prompt_tokens": 2, "completion_tokens": 1, "prompt_cache_hit_tokens": odd,
            "prompt_tokens_details": {"cached_tokens": odd, "audio_tokens": odd},
            "completion_tokens_details": {"reasoning_tokens": odd, "audio_tokens": 1},
        });
        let expected = Usage {
            audio_completion_tokens: Some(1),
            ..tokens(2, Some(1))
        };
        assert_eq!(of(&parts), Some(expected), "{parts}");
    }
    let most = json!({"prompt_tokens": MAX_TOKENS, "completion_tokens": MAX_TOKENS});
    assert_eq!(of(&most), Some(tokens(MAX_TOKENS, Some(MAX_TOKENS))));
    for broken in ["{", "{\"prompt_tokens\":1,}", "{\"prompt_tokens\":1e999}"] {
        let found = UsageReport::of_object(broken.as_bytes());
        assert_eq!(found, UsageReport::Implausible, "{broken}");
    }
    for absent in [
        json!({}),
        json!(null),
        json!([]),
        json!({"prompt_tokens": null}),
    ] {
        assert_eq!(report(&absent), UsageReport::Absent, "{absent}");
    }
    let nulls =
        json!({"prompt_tokens": 1, "completion_tokens": null, "prompt_tokens_details": null});
    assert_eq!(of(&nulls), Some(tokens(1, None)));
}

#[test]
fn implausible_usage_is_found_in_responses_of_any_size() {
    let usage = r#""usage":{"prompt_tokens":18446744073709551615,"completion_tokens":1}"#;
    for text in [10, 20_000] {
        let text = "a".repeat(text);
        for body in [
            format!("{{{usage},\"text\":\"{text}\"}}"),
            format!("{{\"text\":\"{text}\",{usage}}}"),
        ] {
            let mut inspector = BodyInspector::new(Measure::Tokens);
            body.as_bytes()
                .chunks(997)
                .for_each(|part| inspector.push(part));
            assert!(inspector.has_implausible_usage() && inspector.usage().is_none());
        }
    }
    let mut inspector = BodyInspector::new(Measure::Tokens);
    inspector.push(format!("{{\"usage\":{REPORT}}}").as_bytes());
    assert!(!inspector.has_implausible_usage());
}

#[test]
fn the_response_of_each_endpoint_is_read() {
    let response = |value: Value| Usage::from_response(value.to_string().as_bytes());
    let embeddings =
        json!({"object": "list", "data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}});
    assert_eq!(response(embeddings), Some(tokens(8, Some(0))));
    let rerank = json!({"id": "r", "results": [], "usage": {"total_tokens": 56}});
    assert_eq!(response(rerank), Some(tokens(56, Some(0))));
    let transcription = json!({"text": "a", "usage": {
        "type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59,
        "input_token_details": {"text_tokens": 0, "audio_tokens": 14},
    }});
    let expected = Usage {
        audio_prompt_tokens: Some(14),
        ..tokens(14, Some(45))
    };
    assert_eq!(response(transcription), Some(expected));
    let by_duration = json!({"text": "a", "usage": {"type": "duration", "seconds": 3}});
    assert_eq!(response(by_duration), None);
    let image = json!({"created": 1, "data": [{"b64_json": "AA=="}], "usage": {
        "total_tokens": 100, "input_tokens": 50, "output_tokens": 50,
        "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
    }});
    assert_eq!(response(image), Some(tokens(50, Some(50))));
}

#[test]
fn coheres_meta_is_read_without_usage() {
    let meta = |meta: Value| {
        Usage::from_response(json!({"results": [], "meta": meta}).to_string().as_bytes())
    };
    assert_eq!(
        meta(json!({"billed_units": {"input_tokens": 4}, "tokens": {"input_tokens": 6}})),
        Some(tokens(4, Some(0)))
    );
    assert_eq!(
        meta(
            json!({"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 6, "output_tokens": 2}})
        ),
        Some(tokens(6, Some(2)))
    );
    for other in [
        json!({"billed_units": {"search_units": 1}}),
        json!({"billed_units": [], "tokens": {"input_tokens": -1}}),
        json!({"api_version": {"version": "2"}}),
        json!("x"),
    ] {
        assert_eq!(meta(other.clone()), None, "{other}");
    }
    let both = json!({"usage": {"total_tokens": 5}, "meta": {"tokens": {"input_tokens": 6}}});
    assert_eq!(
        Usage::from_response(both.to_string().as_bytes()),
        Some(tokens(5, Some(0)))
    );
    // At the end of a long response, but not if it is only nested in one.
    let text = "a".repeat(20_000);
    let long = format!(r#"{{"results":"{text}","meta":{{"tokens":{{"input_tokens":6}}}}}}"#);
    assert_eq!(kept(long.as_bytes(), 997).usage(), Some(tokens(6, Some(0))));
    let nested =
        format!(r#"{{"results":"{text}","x":{{"meta":{{"tokens":{{"input_tokens":6}}}}}}}}"#);
    assert_eq!(kept(nested.as_bytes(), 997).usage(), None);
}

#[test]
fn cached_tokens_are_read_in_every_spelling() {
    let cache = |report: Value| {
        let usage = of(&report).unwrap();
        (usage.cached_tokens, usage.cache_write_tokens)
    };
    let top = json!({
        "prompt_tokens": 90, "completion_tokens": 1,
        "cache_creation_input_tokens": 20, "cache_read_input_tokens": 60,
    });
    assert_eq!(cache(top), (Some(60), Some(20)));
    let nested = json!({
        "prompt_tokens": 90, "completion_tokens": 1, "cache_creation_input_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_creation_tokens": 20},
    });
    assert_eq!(cache(nested), (Some(3), Some(20)));
    let odd = json!({"prompt_tokens": 9, "cache_creation_input_tokens": -1});
    assert_eq!(cache(odd), (None, None));
}

#[test]
fn invalid_details_do_not_affect_the_counts() {
    for odd in [
        json!([]),
        json!("none"),
        json!({"cached_tokens": -1}),
        json!(1),
    ] {
        let report = json!({
            "prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": odd, "cost": "x",
        });
        assert_eq!(of(&report), Some(tokens(1, Some(2))), "{odd}");
    }
    let hits = json!({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8});
    assert_eq!(of(&hits).unwrap().cached_tokens, Some(8));
}

#[test]
fn cost_is_rounded_to_millionths() {
    let cost = |cost: Value| {
        of(&json!({"prompt_tokens": 1, "cost": cost}))
            .unwrap()
            .cost_micros
    };
    assert_eq!(cost(json!(0)), Some(0));
    assert_eq!(cost(json!(1)), Some(1_000_000));
    assert_eq!(cost(json!(0.000_001_4)), Some(1));
    assert_eq!(cost(json!(0.000_001_6)), Some(2));
    assert_eq!(cost(json!(12.345_678_9)), Some(12_345_679));
    assert_eq!(cost(json!("0.25")), Some(250_000));
    assert_eq!(cost(json!(1e6)), Some(1_000_000_000_000));
    for odd in [
        json!(-0.5),
        json!(1_000_001),
        json!(1e300),
        json!("inf"),
        json!([1]),
    ] {
        assert_eq!(cost(odd), None);
    }
}

#[test]
fn an_event_is_parsed_only_if_it_has_usage() {
    let read = |data: &str| EventUsage::from_data(data.as_bytes());
    let usage = UsageReport::Counts(tokens(7, Some(3)));
    let only = read(&format!(r#"{{"choices": [ ],"usage": {REPORT}}}"#));
    assert_eq!(
        only,
        Some(EventUsage {
            usage,
            audio_ms: None,
            only: true
        })
    );
    let with_text = read(&format!(
        r#"{{"usage":{REPORT},"choices":[{{"delta":{{}}}}]}}"#
    ));
    assert_eq!(
        with_text,
        Some(EventUsage {
            usage,
            audio_ms: None,
            only: false
        })
    );
    let wrapped = read(&format!(
        r#"{{"type":"response.completed","response":{{"usage":{REPORT}}}}}"#
    ));
    assert_eq!(
        wrapped,
        Some(EventUsage {
            usage,
            audio_ms: None,
            only: false
        })
    );
    let broken = read(r#"{"choices":[],"usage":{"prompt_tokens":-1}}"#);
    assert_eq!(
        broken,
        Some(EventUsage {
            usage: UsageReport::Implausible,
            audio_ms: None,
            only: true
        })
    );
    let billed = read(r#"{"text":"a","usage":{"type":"duration","seconds":3}}"#);
    let expected = EventUsage {
        usage: UsageReport::Absent,
        audio_ms: Some(3000),
        only: false,
    };
    assert_eq!(billed, Some(expected));
    for data in [
        r#"{"choices":[],"usage":null}"#,
        r#"{"choices":[{"delta":{"content":"usage"}}]}"#,
        r#"{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"usage":null}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"choices":[]}"#,
        "[DONE]",
        "",
    ] {
        assert_eq!(read(data), None, "{data}");
    }
}

#[test]
fn a_small_response_is_read_completely() {
    let body =
        format!(r#"{{"choices":[{{"usage":{{"prompt_tokens":1}}}}],"usage":{REPORT},"x":[]}}"#);
    assert_eq!(kept(body.as_bytes(), 10).usage(), Some(tokens(7, Some(3))));
    assert_eq!(kept(b"", 1).usage(), None);
    assert_eq!(kept(b"not json", 3).usage(), None);
}

fn response(text: &str, order: [&str; 3]) -> String {
    let text = Value::from(text).to_string();
    let members = order.map(|name| match name {
        "usage" => format!(r#""usage": {REPORT}"#),
        "choices" => format!(r#""choices":[{{"message":{{"content":{text}}}}}]"#),
        other => format!(r#""{other}":{{"a":["x",{{"usage":{{"prompt_tokens":99}}}}]}}"#),
    });
    format!("{{{}}}\n", members.join(","))
}

#[test]
fn usage_is_found_at_either_end_of_a_long_response() {
    for text in [
        "a".repeat(100_000),
        "\\\"".repeat(30_000),
        "\"usage\":{".repeat(10_000),
    ] {
        for order in [
            ["id", "choices", "usage"],
            ["choices", "usage", "id"],
            ["usage", "choices", "id"],
        ] {
            let body = response(&text, order);
            for read in [997, 8192, 65_536, body.len()] {
                let usage = kept(body.as_bytes(), read).usage();
                assert_eq!(usage, Some(tokens(7, Some(3))), "{order:?} {read}");
            }
        }
    }
}

#[test]
fn text_is_not_mistaken_for_usage() {
    let lie = r#"","usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    for text in [lie.repeat(1000), format!("{}{lie}\\", "b".repeat(20_000))] {
        let long = Value::from(text).to_string();
        let body = format!(r#"{{"choices":[{{"message":{long}}}]}}"#);
        assert_eq!(kept(body.as_bytes(), 4096).usage(), None);
        // Nor if the response ends within it.
        let cut = body.get(..body.rfind("}}").unwrap() + 2).unwrap();
        assert_eq!(kept(cut.as_bytes(), 4096).usage(), None);
    }
}

#[test]
fn a_truncated_name_in_the_tail_is_ignored() {
    let named = |name: &str| {
        let end = format!(r#""usage":{REPORT},"z":"#);
        let fill = "z".repeat(8192 - end.len() - 3);
        format!(r#"{{"b":"{}",{name}{end}"{fill}"}}"#, "b".repeat(9000))
    };
    // The tail begins with the quote, which belongs to the name `"usage`.
    let body = named(r#""\"#);
    assert_eq!(&body[body.len() - 8192..][..8], r#""usage":"#);
    assert_eq!(kept(body.as_bytes(), 4096).usage(), None);
    // An unknown value is not guessed, even if the guess would be right.
    assert_eq!(kept(named("").as_bytes(), 4096).usage(), None);
}

#[test]
fn the_usage_of_a_response_that_ends_in_a_string_is_unknown() {
    let long = "b".repeat(20_000);
    let body = format!(r#"{{"b":"{long}","x":{{"usage":{REPORT},"content":"f(\"a\"){{}}"#);
    assert_eq!(kept(body.as_bytes(), 4096).usage(), None);
    let body = format!(r#"{{"b":"{long}","x":{{"usage":{REPORT},"content":"\"}}"#);
    assert_eq!(kept(body.as_bytes(), 4096).usage(), None);
}

#[test]
fn usage_in_the_middle_of_a_long_response_is_unknown() {
    let long = "a".repeat(20_000);
    let body = format!(r#"{{"a":"{long}","usage":{REPORT},"b":"{long}"}}"#);
    assert_eq!(kept(body.as_bytes(), 4096).usage(), None);
}

proptest! {
    /// Whatever the response contains, and with any read boundaries, usage is
    /// that of the top level, or unknown if it was in the part that was not
    /// kept.
    #[test]
    fn only_the_top_level_counts(
        before in crate::tests::value(), after in crate::tests::value(),
        filler in 0_usize..20_000, pretty: bool, read in 1_usize..5000,
    ) {
        let value = json!({
            "a": before, "b": "\"\\".repeat(filler), "usage": {"prompt_tokens": 4}, "z": after,
        });
        let body = crate::tests::written(&value, pretty);
        let expected = Some(tokens(4, None));
        prop_assert_eq!(kept(body.as_bytes(), read).usage(), expected);
    }

    #[test]
    fn accepts_arbitrary_input(
        body in proptest::collection::vec(
            prop::sample::select(b"{}[]\":,\\ 1usage".to_vec()), 0..20_000,
        ),
        read in 1_usize..20_000,
    ) {
        let mut ends = kept(&body, read);
        let first = ends.usage();
        prop_assert_eq!(ends.usage(), first);
        let _ = ends.event_report();
    }
}
