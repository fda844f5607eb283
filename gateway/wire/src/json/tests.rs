use proptest::prelude::*;

use super::*;

fn walk(text: &str) -> Result<Vec<(String, String)>, ScanError> {
    Object::open(text.as_bytes())?
        .map(|member| {
            let member = member?;
            assert_eq!(&text.as_bytes()[member.at.clone()], member.value);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok((text(&member.name), text(member.value)))
        })
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

#[test]
fn members_have_their_values_as_written() {
    let text =
        " {\t\"a\" :\n [1, {\"x\":\"]}\"}] ,\"b\":\"q\\\"\\\\\",\"\":-1.5e+3 , \"n\":null}\r\n";
    let expected = [
        ("a", "[1, {\"x\":\"]}\"}]"),
        ("b", "\"q\\\"\\\\\""),
        ("", "-1.5e+3"),
        ("n", "null"),
    ];
    assert_eq!(walk(text), Ok(pairs(&expected)));
    assert_eq!(walk("{}"), Ok(pairs(&[])));
    assert_eq!(walk("{ \n}"), Ok(pairs(&[])));
}

#[test]
fn names_are_decoded() {
    assert_eq!(walk(r#"{"mod\u0065l":1}"#), Ok(pairs(&[("model", "1")])));
    assert_eq!(walk(r#"{"\ud83d\ude00\/":1}"#), Ok(pairs(&[("😀/", "1")])));
}

#[test]
fn a_non_object_is_rejected() {
    for text in ["", " ", "[]", "\"{}\"", "null", "\u{FEFF}{}", "\0{"] {
        assert_eq!(walk(text), Err(ScanError::NotAnObject), "{text:?}");
    }
}

#[test]
fn a_malformed_object_is_rejected() {
    for text in [
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,\"a\":1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":[1,2}",
        "{\"a\":\"x}",
        "{\"a\":\"x\\\"}",
        "{\"a\":/* \" */1}",
        "{\"a\\q\":1}",
        "{\"\\ud800\":1}",
        "{\0\"a\":1}",
    ] {
        assert!(
            matches!(walk(text), Err(ScanError::Malformed { .. })),
            "{text:?}"
        );
    }
}

#[test]
fn trailing_data_is_rejected() {
    assert_eq!(walk("{} x"), Err(ScanError::Trailing { at: 3 }));
    assert_eq!(
        walk("{\"a\":1}{\"a\":2}"),
        Err(ScanError::Trailing { at: 7 })
    );
}

#[test]
fn deep_nesting_costs_no_stack() {
    let deep = 1 << 20;
    let text = format!("{{\"a\":{}{},\"b\":1}}", "[".repeat(deep), "]".repeat(deep));
    let names: Vec<_> = walk(&text)
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["a", "b"]);
}

proptest! {
    #[test]
    fn agrees_with_a_parser_on_valid_objects(
        members in proptest::collection::btree_map(any::<String>(), crate::tests::value(), 0..6),
        pretty: bool,
    ) {
        let value = serde_json::Value::Object(members.into_iter().collect());
        let text = crate::tests::written(&value, pretty);
        let mut found = serde_json::Map::new();
        for member in Object::open(text.as_bytes()).unwrap() {
            let member = member.unwrap();
            let name = String::from_utf8(member.name.into_owned()).unwrap();
            found.insert(name, serde_json::from_slice(member.value).unwrap());
        }
        prop_assert_eq!(serde_json::Value::Object(found), value);
    }

    #[test]
    fn accepts_arbitrary_input(text in proptest::collection::vec(
        prop_oneof![prop::sample::select(b"{}[]\":,\\ 1ax".to_vec()), any::<u8>()], 0..80,
    )) {
        if let Ok(object) = Object::open(&text) {
            for member in object.flatten() {
                prop_assert!(!member.at.is_empty() && member.at.end <= text.len());
            }
        }
    }
}

#[test]
fn an_array_yields_its_elements() {
    let walk = |text: &'static str| -> Vec<&'static str> {
        Array::open(text.as_bytes())
            .into_iter()
            .flatten()
            .map(|element| std::str::from_utf8(element).unwrap())
            .collect()
    };
    assert_eq!(
        walk(r#" [ {"a":[1,"]"]} , "x,\"y" ,2,[]] "#),
        [r#"{"a":[1,"]"]}"#, r#""x,\"y""#, "2", "[]"]
    );
    assert_eq!(walk("[]"), [""; 0]);
    assert_eq!(walk("{}"), [""; 0]);
    assert_eq!(walk("[1"), ["1"]);
    assert_eq!(walk("[1 2]"), ["1"]);
    assert_eq!(walk("[1,"), ["1"]);
    assert_eq!(walk("[{\"a\":1"), [""; 0]);
}
