use proptest::prelude::*;

use super::*;

fn scan(body: &str) -> Result<Members, ScanError> {
    super::scan(body.as_bytes(), RequestSchema::Completion)
}

#[test]
fn finds_the_members_in_any_order() {
    let body = r#"{"messages":[{"role":"user","content":"say \"model\":\"x\" {"}],
        "max_tokens": 10,"stream":true,"stream_options":{"include_usage":true},
        "max_output_tokens":30,"max_completion_tokens":20,"model":"m\u0031"}"#;
    let members = scan(body).unwrap();
    assert_eq!(members.model(), "m1");
    assert_eq!(&body[members.model_at()], r#""m\u0031""#);
    assert!(members.is_stream());
    assert!(members.wants_usage());
    assert_eq!(members.ceiling(), Some(30));
}

#[test]
fn the_largest_token_limit_counts_in_any_order() {
    for body in [
        r#"{"model":"m","max_tokens":9,"max_completion_tokens":7}"#,
        r#"{"model":"m","max_completion_tokens":7,"max_tokens":9}"#,
        r#"{"model":"m","max_completion_tokens":null,"max_tokens":9,"max_output_tokens":-1}"#,
    ] {
        assert_eq!(scan(body).unwrap().ceiling(), Some(9), "{body}");
    }
}

#[test]
fn members_of_other_endpoints_are_ignored() {
    let body =
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5}"#;
    let read = |fields| {
        let members = super::scan(body.as_bytes(), fields).unwrap();
        (
            members.is_stream(),
            members.wants_usage(),
            members.ceiling(),
        )
    };
    assert_eq!(read(RequestSchema::Completion), (true, true, Some(5)));
    assert_eq!(read(RequestSchema::Response), (true, false, Some(5)));
    assert_eq!(read(RequestSchema::Media), (true, false, None));
    assert_eq!(read(RequestSchema::ModelOnly), (false, false, None));

    // Members that the gateway does not use are left to the upstream.
    let odd = br#"{"model":"m","stream":"x","STREAM":1,"stream_options":7,"max_tokens":"x"}"#;
    assert!(super::scan(odd, RequestSchema::ModelOnly).is_ok());
    assert!(super::scan(odd, RequestSchema::Completion).is_err());
    for fields in [
        RequestSchema::Response,
        RequestSchema::Media,
        RequestSchema::Speech,
        RequestSchema::ModelOnly,
    ] {
        assert!(super::scan(br#"{"model":"m","Model":"n"}"#, fields).is_err());
    }
}

#[test]
fn metadata_is_found_at_every_endpoint_and_must_be_unambiguous() {
    let all = [
        RequestSchema::Completion,
        RequestSchema::Response,
        RequestSchema::Media,
        RequestSchema::Speech,
        RequestSchema::ModelOnly,
    ];
    for fields in all {
        let scan = |body: &str| super::scan(body.as_bytes(), fields);
        let body = r#"{"metadata": {"a":1} ,"model":"m"}"#;
        let at = scan(body).unwrap().metadata_at().unwrap();
        assert_eq!(&body[at], r#"{"a":1}"#);
        for absent in [r#"{"model":"m"}"#, r#"{"model":"m","metadata":null}"#] {
            assert_eq!(scan(absent).unwrap().metadata_at(), None);
        }
        let twice = scan(r#"{"model":"m","metadata":{},"metad\u0061ta":{}}"#);
        assert_eq!(twice, Err(ScanError::Duplicate { member: "metadata" }));
        let other = scan(r#"{"model":"m","Metadata":{}}"#);
        assert_eq!(other, Err(ScanError::CaseVariant { member: "metadata" }));
    }
}

#[test]
fn the_characters_of_speech_are_counted_after_decoding() {
    let count = |input: &str| {
        let body = format!(r#"{{"model":"m","input":{input}}}"#);
        let members = super::scan(body.as_bytes(), RequestSchema::Speech).unwrap();
        members.input_characters()
    };
    for input in ["", "hello", "grüß dich", "a\"b\\\n", "😀", "日本語"] {
        let characters = Some(input.chars().count() as u64);
        assert_eq!(count(&serde_json::to_string(input).unwrap()), characters);
        let units = input.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
        let escaped = units.collect::<Vec<_>>().concat();
        assert_eq!(count(&format!("\"{escaped}\"")), characters);
    }
    assert_eq!(count("[1]"), None);
    let twice = br#"{"model":"m","input":"a","input":"b"}"#;
    assert!(super::scan(twice, RequestSchema::Speech).is_err());
    let elsewhere = super::scan(twice, RequestSchema::ModelOnly).unwrap();
    assert_eq!(elsewhere.input_characters(), None);
}

fn choices(members: &str, fields: RequestSchema) -> u64 {
    let body = format!(r#"{{"model":"m",{members}}}"#);
    super::scan(body.as_bytes(), fields).unwrap().choices()
}

#[test]
fn the_number_of_choices_is_the_larger_of_n_and_best_of() {
    for (members, expected) in [
        (r#""x":1"#, 1),
        (r#""n":1"#, 1),
        (r#""n":4"#, 4),
        (r#""n":4,"best_of":9"#, 9),
        (r#""best_of":2,"n":128"#, 128),
        (r#""n":null,"best_of":null"#, 1),
    ] {
        assert_eq!(
            choices(members, RequestSchema::Completion),
            expected,
            "{members}"
        );
    }
    let n = r#""n":3,"best_of":7,"prompt":["a","b"]"#;
    for fields in [RequestSchema::Chat, RequestSchema::Media] {
        assert_eq!(choices(n, fields), 3, "{fields:?}");
    }
    for fields in [
        RequestSchema::Response,
        RequestSchema::Speech,
        RequestSchema::ModelOnly,
    ] {
        assert_eq!(choices(n, fields), 1, "{fields:?}");
    }
}

#[test]
fn an_invalid_number_of_choices_is_one_and_a_large_one_is_capped() {
    let most = u64::from(values::MAX_CHOICES);
    for (value, expected) in [
        ("0", 1),
        ("-3", 1),
        ("-1e300", 1),
        ("true", 1),
        ("[5]", 1),
        (r#"{"n":5}"#, 1),
        (r#""""#, 1),
        (r#""many""#, 1),
        ("1e999", 1),
        // Some engines parse these as integers.
        ("2.0", 2),
        ("2.5", 3),
        (r#""12""#, 12),
        (r#"" 1\u0032 ""#, 12),
        ("16384", most),
        ("16385", most),
        ("18446744073709551616", most),
        ("1e300", most),
    ] {
        let found = choices(&format!("\"n\":{value}"), RequestSchema::Completion);
        assert_eq!(found, expected, "{value}");
    }
}

#[test]
fn choices_are_counted_per_prompt() {
    for (prompt, expected) in [
        (r#""a""#, 2),
        ("null", 2),
        ("[]", 2),
        ("[1,2,3]", 2),
        (r#"["a"]"#, 2),
        (r#"["a","]",  "c,\"d\","]"#, 6),
        ("[[1,2],[3]]", 4),
    ] {
        let members = format!(r#""n":2,"prompt":{prompt}"#);
        assert_eq!(
            choices(&members, RequestSchema::Completion),
            expected,
            "{prompt}"
        );
    }
    let many = format!(r#""n":1e9,"prompt":[{}""]"#, r#""","#.repeat(9_999));
    assert_eq!(choices(&many, RequestSchema::Completion), 10_000 << 14);
}

#[test]
fn every_name_is_found_by_its_first_byte() {
    for acted in RequestMember::ALL {
        let first = acted.name().as_bytes()[0];
        for first in [first, first.to_ascii_uppercase()] {
            assert!(
                RequestMember::beginning(first).contains(&acted),
                "{acted:?}"
            );
        }
        // The names that fold to it and begin with another byte.
        for other in ["\u{17F}", "\u{212A}"] {
            let name = format!("{other}{}", &acted.name()[1..]);
            let found = RequestMember::beginning(other.as_bytes()[0]).contains(&acted);
            assert_eq!(found, folds_to(name.as_bytes(), acted.name()), "{name}");
        }
    }
    let listed = (0..=u8::MAX)
        .filter(|first| !first.is_ascii_uppercase() && *first != 0xC5)
        .flat_map(RequestMember::beginning);
    assert_eq!(listed.count(), RequestMember::ALL.len());
}

#[test]
fn usage_is_requested_only_where_supported() {
    let may = |body: &str, fields| {
        super::scan(body.as_bytes(), fields)
            .unwrap()
            .can_request_usage()
    };
    let stream = r#"{"model":"m","stream":true}"#;
    assert!(may(stream, RequestSchema::Completion));
    assert!(!may(r#"{"model":"m"}"#, RequestSchema::Completion));
    let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    assert!(!may(asked, RequestSchema::Completion));
    for fields in [
        RequestSchema::Response,
        RequestSchema::Media,
        RequestSchema::Speech,
        RequestSchema::ModelOnly,
    ] {
        assert!(!may(stream, fields));
        let members = super::scan(stream.as_bytes(), fields).unwrap();
        let splice = crate::Splice::new(&members).include_usage();
        assert!(splice.is_identity());
    }
}

#[test]
fn absent_members_have_their_defaults() {
    let members = scan(r#"{"model":"m"}"#).unwrap();
    assert!(!members.is_stream() && !members.wants_usage());
    assert_eq!(members.ceiling(), None);
    let nulls = r#"{"model":"m","stream":null,"stream_options":null,"max_tokens":null}"#;
    let members = scan(nulls).unwrap();
    assert!(!members.is_stream() && !members.wants_usage());
    assert_eq!(members.ceiling(), None);
}

#[test]
fn a_negative_token_limit_is_none_and_an_invalid_one_is_rejected() {
    assert_eq!(
        scan(r#"{"model":"m","max_tokens":-1}"#).unwrap().ceiling(),
        None
    );
    for value in [
        "\"10\"",
        "1.5",
        "1e3",
        "[1]",
        "true",
        "18446744073709551616",
        "1x",
    ] {
        let error = scan(&format!(r#"{{"model":"m","max_tokens":{value}}}"#)).unwrap_err();
        assert_eq!(error.member(), Some("max_tokens"), "{value}");
        assert_eq!((error.code(), error.status()), ("invalid_type", 400));
    }
}

#[test]
fn the_model_must_be_a_valid_name() {
    let missing = Err(ScanError::Missing { member: "model" });
    assert_eq!(scan("{}"), missing);
    assert_eq!(scan(r#"{"messages":[{"model":"x"}]}"#), missing);
    for value in [
        "null",
        "1",
        "[\"m\"]",
        "{}",
        r#""\ud800""#,
        "\"a\nb\"",
        r#""\x""#,
    ] {
        let error = scan(&format!(r#"{{"model":{value}}}"#)).unwrap_err();
        assert!(
            matches!(
                error,
                ScanError::WrongType {
                    member: "model",
                    ..
                }
            ),
            "{value}"
        );
    }
    assert_eq!(
        scan(r#"{"model":""}"#),
        Err(ScanError::Empty { member: "model" })
    );
    let invalid = super::scan(b"{\"model\":\"\xC1\xAD\"}", RequestSchema::Completion).unwrap_err();
    assert!(matches!(
        invalid,
        ScanError::WrongType {
            member: "model",
            ..
        }
    ));
}

#[test]
fn the_model_is_bounded() {
    let named = |name: String| scan(&format!(r#"{{"model":"{name}"}}"#));
    assert_eq!(
        named("m".repeat(MODEL_LIMIT)).unwrap().model().len(),
        MODEL_LIMIT
    );
    assert_eq!(
        named("\\u006d".repeat(MODEL_LIMIT)).unwrap().model().len(),
        MODEL_LIMIT
    );
    let too_long = Err(ScanError::TooLong {
        member: "model",
        limit: MODEL_LIMIT,
    });
    assert_eq!(named("m".repeat(MODEL_LIMIT + 1)), too_long);
    assert_eq!(named("m".repeat(MODEL_LIMIT * 100)), too_long);
}

#[test]
fn a_duplicate_is_rejected_in_any_spelling() {
    for (body, member) in [
        (r#"{"model":"a","model":"a"}"#, "model"),
        (r#"{"model":"a","x":1,"mod\u0065l":"b"}"#, "model"),
        (r#"{"model":"a","stream":true,"stream":true}"#, "stream"),
        (
            r#"{"max_tokens":1,"model":"a","max_tokens":2}"#,
            "max_tokens",
        ),
        (
            r#"{"model":"a","stream_options":null,"stream_options":null}"#,
            "stream_options",
        ),
        (
            r#"{"model":"a","stream_options":{"include_usage":true,"include_us\u0061ge":false}}"#,
            "stream_options.include_usage",
        ),
        (r#"{"n":1,"model":"a","\u006e":9}"#, "n"),
        (r#"{"best_of":1,"model":"a","best_of":9}"#, "best_of"),
        (r#"{"prompt":"a","model":"a","prompt":["b"]}"#, "prompt"),
    ] {
        assert_eq!(scan(body), Err(ScanError::Duplicate { member }), "{body}");
    }
    assert!(scan(r#"{"model":"a","other":1,"other":2}"#).is_ok());
}

#[test]
fn a_variant_in_case_is_rejected() {
    for (name, member) in [
        ("Model", "model"),
        ("MODEL", "model"),
        (r"\u004dodel", "model"),
        ("Stream", "stream"),
        ("\u{17F}tream", "stream"),
        (r"\u017ftream_option\u017f", "stream_options"),
        ("max_to\u{212A}ens", "max_tokens"),
        ("MAX_TO\u{212A}EN\u{17F}", "max_tokens"),
        ("max_completion_Tokens", "max_completion_tokens"),
        ("max_Output_tokens", "max_output_tokens"),
        ("N", "n"),
        ("be\u{17F}t_of", "best_of"),
        ("Prompt", "prompt"),
    ] {
        for body in [
            format!(r#"{{"model":"a","{name}":"b"}}"#),
            format!(r#"{{"{name}":"b","model":"a"}}"#),
        ] {
            assert_eq!(
                scan(&body),
                Err(ScanError::CaseVariant { member }),
                "{body}"
            );
        }
    }
    let body = r#"{"model":"a","stream_options":{"Include_Usage":true}}"#;
    let member = "stream_options.include_usage";
    assert_eq!(scan(body), Err(ScanError::CaseVariant { member }));
    for name in [
        "models",
        "mode",
        "model ",
        "\u{FF4D}odel",
        "mödel",
        "k",
        "\u{212A}",
    ] {
        assert!(
            scan(&format!(r#"{{"model":"a","{name}":1}}"#)).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn flags_must_be_true_or_false() {
    for value in ["1", "\"true\"", "[]", "True", "tru"] {
        let error = scan(&format!(r#"{{"model":"a","stream":{value}}}"#)).unwrap_err();
        assert_eq!(error.member(), Some("stream"), "{value}");
        let options = format!(r#"{{"model":"a","stream_options":{{"include_usage":{value}}}}}"#);
        assert_eq!(
            scan(&options).unwrap_err().member(),
            Some("stream_options.include_usage")
        );
    }
    let error = scan(r#"{"model":"a","stream_options":[]}"#).unwrap_err();
    assert_eq!(error.member(), Some("stream_options"));
}

#[test]
fn errors_do_not_contain_client_input() {
    let error = scan(r#"{"sk-secret":1}"#).unwrap_err();
    assert_eq!(error.to_string(), "`model` is required");
    assert_eq!(error.code(), "missing_required_parameter");
    let body = r#"{"model":"a","stream_options":{"a":1 "b":2}}"#;
    let ScanError::Malformed { at } = scan(body).unwrap_err() else {
        unreachable!("the options are broken");
    };
    assert_eq!(&body[at..=at], "\"");
    assert_eq!(scan("[]").unwrap_err().code(), "invalid_json");
}

proptest! {
    /// An accepted body has the same values as with a parser.
    #[test]
    fn agrees_with_a_parser(
        others in proptest::collection::btree_map("[a-z\\\\\"{}é]{0,8}", crate::tests::value(), 0..6),
        model in "[a-zA-Z0-9/._\"\\\\é😀-]{1,40}",
        stream in any::<Option<bool>>(),
        max_tokens in any::<Option<u64>>(),
        n in 0_u64..20_000,
        best_of in 0_u64..200,
        prompts in 0_usize..5,
        pretty: bool,
    ) {
        let mut value = serde_json::Value::Object(others.into_iter().collect());
        value["model"] = model.clone().into();
        value["stream"] = stream.into();
        value["max_tokens"] = max_tokens.into();
        value["n"] = n.into();
        value["best_of"] = best_of.into();
        value["prompt"] = vec![model.clone(); prompts].into();
        let members = scan(&crate::tests::written(&value, pretty)).unwrap();
        prop_assert_eq!(members.model(), model);
        prop_assert_eq!(members.is_stream(), stream == Some(true));
        prop_assert_eq!(members.ceiling(), max_tokens);
        let each = n.max(best_of).clamp(1, values::MAX_CHOICES.into());
        prop_assert_eq!(members.choices(), each * prompts.max(1) as u64);
    }

    #[test]
    fn folding_matches_unicode(name in "[a-zſK_]{1,8}") {
        let folded: String = name.chars().flat_map(|c| match c {
            'ſ' => 's'.to_lowercase(),
            c => c.to_lowercase(),
        }).collect();
        prop_assert!(folds_to(name.as_bytes(), &folded));
        prop_assert!(folds_to(name.to_uppercase().as_bytes(), &folded));
    }
}

#[test]
fn the_objects_that_a_request_continues_are_found() {
    let ids = |body: &str| {
        let members = super::scan(body.as_bytes(), RequestSchema::Response).unwrap();
        members.stored_ids().to_vec()
    };
    for (body, expected) in [
        (r#"{"model":"m"}"#, &[][..]),
        (
            r#"{"model":"m","previous_response_id":"resp_1"}"#,
            &["resp_1"],
        ),
        (r#"{"conversation":"conv_1","model":"m"}"#, &["conv_1"]),
        (
            r#"{"conversation":{"id":"conv_1"},"model":"m"}"#,
            &["conv_1"],
        ),
        (
            r#"{"conversation":"conv_1","model":"m","previous_response_id":"resp_1"}"#,
            &["conv_1", "resp_1"],
        ),
        // Left to the upstream.
        (
            r#"{"model":"m","previous_response_id":null,"conversation":7}"#,
            &[],
        ),
        (
            r#"{"model":"m","input":[{"previous_response_id":"resp_1"}]}"#,
            &[],
        ),
    ] {
        assert_eq!(ids(body), expected, "{body}");
    }
    let other = super::scan(
        br#"{"model":"m","previous_response_id":"resp_1"}"#,
        RequestSchema::Chat,
    );
    assert!(other.unwrap().stored_ids().is_empty());
    for name in ["previous_response_id", "conversation"] {
        let member = format!(r#""{name}":"a""#);
        let twice = format!(r#"{{"model":"m",{member},{member}}}"#);
        let shouted = format!(r#"{{"model":"m",{}}}"#, member.to_uppercase());
        for body in [twice, shouted] {
            assert!(
                super::scan(body.as_bytes(), RequestSchema::Response).is_err(),
                "{body}"
            );
        }
    }
}
