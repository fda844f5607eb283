use proptest::prelude::*;

use super::{InvalidMetadata, Metadata, MetadataValue};

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![".{0,8}", "[a-z \u{1}\"\\\\]{0,8}", ".{125,130}"]
        .prop_map(|text| text.replace('\0', ""))
}

proptest! {
    /// What is added is read back, in memory and as JSON.
    #[test]
    fn members_come_out_as_they_went_in(
        names in prop::collection::hash_set("[a-zé -]{1,20}", 0..15),
        texts in prop::collection::vec(texts(), 16),
        integers in prop::collection::vec(any::<i64>(), 16),
        floats in prop::collection::vec(any::<i32>().prop_map(|part| f64::from(part) / 4.0), 16),
        list in prop::collection::vec(texts(), 0..4),
    ) {
        let members: Vec<_> = names.iter().enumerate().map(|(at, name)| {
            let value = match at % 4 {
                0 => MetadataValue::Text(&texts[at]),
                1 => MetadataValue::Integer(integers[at]),
                2 => MetadataValue::Float(floats[at]),
                _ => MetadataValue::Flag(at % 8 == 3),
            };
            (name.as_str(), value)
        }).collect();
        let mut metadata = Metadata::default();
        for (name, value) in &members {
            metadata.push(name, *value).unwrap();
        }
        prop_assert_eq!(metadata.iter().collect::<Vec<_>>(), members.clone());
        if metadata.push_list("LIST", &list).is_ok() {
            let Some(MetadataValue::List(read)) = metadata.get("LIST") else {
                panic!("the list is missing");
            };
            prop_assert!(read.iter().eq(&list));
            let mut again = Metadata::default();
            again.push("LIST", MetadataValue::List(read)).unwrap();
            again.push("more", MetadataValue::Flag(true)).unwrap();
            prop_assert_eq!(again.get("LIST"), metadata.get("LIST"));
            prop_assert_eq!(again.get("more"), Some(MetadataValue::Flag(true)));
        }
        for (name, value) in members {
            prop_assert_eq!(metadata.get(name), Some(value));
        }
        let written = serde_json::to_string(&metadata).unwrap();
        prop_assert_eq!(serde_json::from_str::<Metadata>(&written).unwrap(), metadata);
    }
}

#[test]
fn metadata_bounds_are_enforced() {
    let with_null = Metadata::default().push_list("a", &["b", "\0"]);
    assert_eq!(with_null, Err(InvalidMetadata::NullCharacter));
    let mut metadata = Metadata::default();
    let wrong = [
        ("", MetadataValue::Flag(true), InvalidMetadata::Name),
        ("a\n", MetadataValue::Flag(true), InvalidMetadata::Name),
        (
            &*"n".repeat(65),
            MetadataValue::Flag(true),
            InvalidMetadata::Name,
        ),
        (
            "a",
            MetadataValue::Text(&"t".repeat(513)),
            InvalidMetadata::Text,
        ),
        (
            &*"漢".repeat(65),
            MetadataValue::Flag(true),
            InvalidMetadata::Name,
        ),
        (
            "a",
            MetadataValue::Text(&"漢".repeat(513)),
            InvalidMetadata::Text,
        ),
        (
            "a",
            MetadataValue::Text("b\0"),
            InvalidMetadata::NullCharacter,
        ),
        ("a", MetadataValue::Float(f64::NAN), InvalidMetadata::Number),
    ];
    for (name, value, why) in wrong {
        assert_eq!(metadata.push(name, value), Err(why));
    }
    let many = vec!["t"; 65];
    let long = ["漢".repeat(256), "t".repeat(257)];
    assert_eq!(metadata.push_list("a", &many), Err(InvalidMetadata::List));
    assert_eq!(metadata.push_list("a", &long), Err(InvalidMetadata::List));
    assert_eq!(metadata, Metadata::default());
    for at in 0..16 {
        let name = format!("{}{}", "漢".repeat(63), char::from(b'a' + at));
        let text = "😀".repeat(512);
        metadata.push(&name, MetadataValue::Text(&text)).unwrap();
        let again = metadata.push(&name, MetadataValue::Flag(true));
        assert_eq!(again, Err(InvalidMetadata::Twice));
    }
    let more = metadata.push("more", MetadataValue::Flag(true));
    assert_eq!(more, Err(InvalidMetadata::Members));
    assert_eq!(metadata.iter().count(), 16);
    let bytes = metadata.iter().map(|(name, value)| match value {
        MetadataValue::Text(text) => name.len() + text.len(),
        _ => 0,
    });
    let bytes: usize = bytes.sum();
    assert_eq!(bytes, Metadata::MAX_BYTES - 16 * (64 * 4 - 63 * 3 - 1));
}

#[test]
fn lists_may_fill_their_bounds_and_be_empty() {
    let mut metadata = Metadata::default();
    metadata.push_list("a", &[""; 0]).unwrap();
    metadata.push_list("b", &vec!["漢".repeat(8); 64]).unwrap();
    metadata.push_list("c", &["😀".repeat(512)]).unwrap();
    let written = serde_json::to_string(&metadata).unwrap();
    assert!(written.starts_with("{\"a\":[],\"b\":[\"漢漢"));
    assert_eq!(
        serde_json::from_str::<Metadata>(&written).unwrap(),
        metadata
    );
}

#[test]
fn capacity_is_bounded_by_usual_sizes() {
    assert_eq!(Metadata::with_capacity(100).packed.capacity(), 100);
    assert!(Metadata::with_capacity(64 << 20).packed.capacity() <= 1 << 10);
}

#[test]
fn metadata_outside_the_bounds_is_rejected() {
    for wrong in [
        "{\"a\":null}",
        "{\"a\":[1]}",
        "{\"a\":[null]}",
        "{\"a\":[[\"b\"]]}",
        "{\"a\":{\"b\":1}}",
        "[]",
        "{\"\":1}",
        "{\"a\":1,\"a\":2}",
    ] {
        assert!(serde_json::from_str::<Metadata>(wrong).is_err(), "{wrong}");
    }
    let numbers = "{\"whole\":-7,\"large\":9223372036854775808,\"part\":0.5}";
    let read: Metadata = serde_json::from_str(numbers).unwrap();
    let values: Vec<_> = read.iter().map(|(_, value)| value).collect();
    let large = MetadataValue::Float(9_223_372_036_854_775_808.0);
    assert_eq!(
        values,
        [MetadataValue::Integer(-7), large, MetadataValue::Float(0.5)]
    );
}
