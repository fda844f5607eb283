//! A body that a strict parser takes is read alike by the scanner, and the
//! spliced body parses to the request with the change.

#![no_main]

use fastllm_wire::{Fields, Splice, scan, text_bytes};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const FIELDS: [Fields; 4] = [
    Fields::Completion,
    Fields::Response,
    Fields::Media,
    Fields::ModelOnly,
];

fuzz_target!(|input: (u8, &[u8])| {
    let (fields, body) = input;
    let fields = FIELDS[usize::from(fields) % FIELDS.len()];
    assert!(text_bytes(body) <= body.len() as u64);
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
    assert_eq!(streams && fields != Fields::ModelOnly, members.is_stream());
    wanted["model"] = "engine".into();
    if fields == Fields::Completion {
        wanted["stream_options"]["include_usage"] = true.into();
    }
    let got: Value = serde_json::from_slice(&out).expect("still JSON");
    assert_eq!(got, wanted);
});
