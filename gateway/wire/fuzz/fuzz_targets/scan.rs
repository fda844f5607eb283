//! A body that a strict parser takes is read alike by the scanner, and the
//! spliced body parses to the request with the change.

#![no_main]

use fastllm_wire::{Splice, scan_chat};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|body: &[u8]| {
    let Ok(members) = scan_chat(body) else {
        return;
    };
    let splice = Splice::new(&members).model("engine").include_usage();
    let out = splice.to_vec(body);
    assert_eq!(splice.len(body.len()), out.len());
    let Ok(mut wanted) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    assert_eq!(wanted["model"], members.model());
    assert_eq!(
        wanted.get("stream").is_some_and(|stream| stream == true),
        members.is_stream()
    );
    wanted["model"] = "engine".into();
    wanted["stream_options"]["include_usage"] = true.into();
    let got: Value = serde_json::from_slice(&out).expect("still JSON");
    assert_eq!(got, wanted);
});
