use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Objects;

#[derive(Debug, PartialEq, Deserialize)]
struct Pair {
    name: String,
    count: Option<u8>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Nested {
    list: Vec<Pair>,
    map: BTreeMap<String, Pair>,
    optional: Option<Pair>,
    newtype: Newtype,
    chosen: Choice,
    tuple: (u8, String),
}

#[derive(Debug, PartialEq, Deserialize)]
struct Newtype(Pair);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Choice {
    Nothing,
    One(Pair),
    Fields { name: String },
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let inner = serde_path_to_error::deserialize(Objects(&mut reader));
    inner.map_err(|error| error.to_string())
}

/// The document with these parts in the place of its objects.
fn nested(parts: [&str; 5]) -> String {
    let [list, map, optional, newtype, chosen] = parts;
    format!(
        "{{\"list\":[{list}],\"map\":{{\"a\":{map}}},\"optional\":{optional},\
         \"newtype\":{newtype},\"chosen\":{chosen},\"tuple\":[1,\"x\"]}}"
    )
}

const OBJECT: &str = "{\"name\":\"n\",\"count\":1}";
const ARRAY: &str = "[\"n\",1]";

#[test]
fn objects_are_read_as_before() {
    for chosen in [
        "\"nothing\"",
        "{\"one\":{\"name\":\"n\"}}",
        "{\"fields\":{\"name\":\"n\"}}",
    ] {
        let text = nested([OBJECT, OBJECT, OBJECT, OBJECT, chosen]);
        let usual: Nested = serde_json::from_str(&text).unwrap();
        assert_eq!(read::<Nested>(&text), Ok(usual));
    }
    let raw: Vec<Box<RawValue>> = {
        let mut reader = serde_json::Deserializer::from_str("[{\"a\": [1]} , 2.50]");
        Deserialize::deserialize(Objects(&mut reader)).unwrap()
    };
    let raw: Vec<_> = raw.iter().map(|value| value.get()).collect();
    assert_eq!(raw, ["{\"a\": [1]}", "2.50"]);
}

#[test]
fn an_array_in_place_of_an_object_is_rejected_at_every_depth() {
    assert!(serde_json::from_str::<Pair>(ARRAY).is_ok());
    assert!(
        read::<Pair>(ARRAY)
            .unwrap_err()
            .contains("expected an object")
    );
    for place in 0..4 {
        let mut parts = [OBJECT, OBJECT, OBJECT, OBJECT, "\"nothing\""];
        parts[place] = ARRAY;
        let text = nested(parts);
        assert!(serde_json::from_str::<Nested>(&text).is_ok(), "{text}");
        assert!(read::<Nested>(&text).is_err(), "{text}");
    }
    for chosen in ["{\"one\":[\"n\",1]}", "{\"fields\":[\"n\"]}"] {
        let text = nested([OBJECT, OBJECT, OBJECT, OBJECT, chosen]);
        assert!(serde_json::from_str::<Nested>(&text).is_ok(), "{text}");
        let error = read::<Nested>(&text).unwrap_err();
        assert!(
            error.contains("chosen") && error.contains("expected an object"),
            "{error}"
        );
    }
}
