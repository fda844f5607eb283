//! The members and elements of every object or array that a strict parser
//! accepts are the same as the parser's.

#![no_main]

use fastllm_wire::json::{Array, Object};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &[u8]| {
    let object = Object::open(text).map(|object| object.collect::<Result<Vec<_>, _>>());
    let array: Option<Vec<_>> = Array::open(text).map(Iterator::collect);
    match serde_json::from_slice::<Value>(text) {
        Ok(Value::Object(parsed)) => {
            let members = object.expect("an object").expect("a valid one");
            let mut walked = serde_json::Map::new();
            for member in members {
                assert_eq!(&text[member.at], member.value);
                let name = String::from_utf8(member.name.into_owned()).expect("text");
                let value = serde_json::from_slice(member.value).expect("a value");
                walked.insert(name, value);
            }
            assert_eq!(walked, parsed);
        }
        Ok(Value::Array(parsed)) => {
            let walked: Vec<Value> = array
                .expect("an array")
                .iter()
                .map(|element| serde_json::from_slice(element).expect("a value"))
                .collect();
            assert_eq!(walked, parsed);
        }
        Ok(_) => assert!(object.is_err() && array.is_none()),
        Err(_) => {}
    }
});
