use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::scan::{RequestSchema, scan};

fn spliced(body: &str, model: &str, usage: bool) -> String {
    let members = scan(body.as_bytes(), RequestSchema::Completion).unwrap();
    let mut splice = Splice::new(&members).model(model);
    if usage {
        splice = splice.include_usage();
    }
    let out = splice.to_vec(body.as_bytes());
    assert_eq!(splice.len(body.len()), out.len());
    String::from_utf8(out).unwrap()
}

#[test]
fn without_edits_the_body_is_unchanged() {
    let body = r#"{"model":"m","stream_options":{"include_usage" : true}}"#;
    let members = scan(body.as_bytes(), RequestSchema::Completion).unwrap();
    let splice = Splice::new(&members).model("m").include_usage();
    assert!(splice.is_identity());
    assert_eq!(
        splice.pieces(body.len()).collect::<Vec<_>>(),
        [Segment::Original(0..body.len())]
    );
}

#[test]
fn the_model_is_replaced_and_escaped() {
    assert_eq!(
        spliced(r#"{"a":1, "model" : "m\u0031" }"#, "x\"\n", false),
        r#"{"a":1, "model" : "x\"\n" }"#
    );
}

#[test]
fn usage_is_requested_in_every_form_of_the_options() {
    for (options, wanted) in [
        ("null", r#"{"include_usage":true}"#),
        ("{}", r#"{"include_usage":true}"#),
        ("{ }", r#"{"include_usage":true }"#),
        (r#"{"a":1}"#, r#"{"include_usage":true,"a":1}"#),
        (r#"{"include_usage":false}"#, r#"{"include_usage":true}"#),
        (
            r#"{"a":1,"include_usage" : null }"#,
            r#"{"a":1,"include_usage" : true }"#,
        ),
        (r#"{"include_usage":true}"#, r#"{"include_usage":true}"#),
    ] {
        let body = |options| format!(r#"{{"stream_options": {options} ,"model":"m"}}"#);
        assert_eq!(spliced(&body(options), "m", true), body(wanted));
        let body = |options| format!(r#"{{"model":"m","stream_options":{options}}}"#);
        assert_eq!(spliced(&body(options), "m", true), body(wanted));
    }
}

#[test]
fn usage_is_requested_without_options() {
    assert_eq!(
        spliced("{ \"model\":\"m\"}", "n", true),
        "{\"stream_options\":{\"include_usage\":true}, \"model\":\"n\"}"
    );
}

fn stream_options() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        Just(Some(json!({}))),
        Just(Some(json!({"include_usage": false}))),
        Just(Some(json!({"include_usage": null, "b": 1}))),
        Just(Some(json!({"include_usage": true}))),
        proptest::collection::btree_map("[a-h{}\\\\\"]{0,5}", crate::tests::value(), 0..3)
            .prop_map(|members| Some(Value::Object(members.into_iter().collect()))),
    ]
}

proptest! {
    /// The result parses to the client's request with the change, and every
    /// byte outside the edits is unchanged.
    #[test]
    fn changes_only_the_edited_members(
        others in proptest::collection::btree_map("[a-z\\\\\"{}é]{0,8}", crate::tests::value(), 0..6),
        options in stream_options(),
        model in "[a-z\"\\\\é]{1,10}",
        upstream in "[a-z\"\\\\é]{1,10}",
        pretty: bool,
    ) {
        let mut before = Value::Object(others.into_iter().collect());
        before["model"] = model.into();
        if let Some(options) = options {
            before["stream_options"] = options;
        }
        let body = crate::tests::written(&before, pretty);
        let members = scan(body.as_bytes(), RequestSchema::Completion).unwrap();
        let splice = Splice::new(&members).model(&upstream).include_usage();

        let mut wanted = before.clone();
        wanted["model"] = upstream.clone().into();
        wanted["stream_options"]["include_usage"] = true.into();
        let out = splice.to_vec(body.as_bytes());
        prop_assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), wanted);

        let kept: usize = splice.pieces(body.len()).map(|piece| match piece {
            Segment::Original(range) => range.len(),
            Segment::Inserted(_) => 0,
        }).sum();
        let replaced = body.len() - kept;
        let values = before["model"].to_string().len() + "false".len();
        prop_assert!(replaced <= values, "{} bytes of {} replaced", replaced, body);
    }
}
