//! The usage of a response of which only the ends were kept is that of its top
//! level, or unknown.

#![no_main]

use fastllm_wire::usage::{EventUsage, MAX_TOKENS};
use fastllm_wire::{BodyExcerpt, Measure, Usage, BodyInspector};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (read, filler, text) = input;
    let _ = EventUsage::from_data(text);
    let mut ends = BodyExcerpt::new();
    text.chunks(usize::from(read).max(1))
        .for_each(|part| ends.push(part));
    assert!(text.len() > 9216 || ends.usage() == Usage::from_response(text));

    let quantities = |measure, read: usize| {
        let mut tail = BodyInspector::new(measure);
        text.chunks(read.max(1)).for_each(|part| tail.push(part));
        tail.quantities()
    };
    for measure in [Measure::Images, Measure::AudioInput, Measure::AudioOutput] {
        let expected = quantities(measure, usize::from(read));
        assert_eq!(expected, quantities(measure, text.len()));
    }
    if let Ok(answer @ Value::Object(_)) = serde_json::from_slice::<Value>(text) {
        let objects = |data: &Vec<Value>| data.iter().filter(|value| value.is_object()).count();
        let mut tail = BodyInspector::new(Measure::Images);
        tail.push(answer.to_string().as_bytes());
        let images = tail.quantities().images.map(|images| images as usize);
        assert_eq!(images, answer["data"].as_array().map(objects));
    }

    // The same object, extended by a member before or after.
    let Ok(Value::Object(members)) = serde_json::from_slice(text) else {
        return;
    };
    let reported = |without: &str| {
        let mut members = members.clone();
        members.remove(without);
        Usage::from_response(Value::Object(members).to_string().as_bytes())
    };
    let exact = [reported("meta"), reported("usage")];
    for usage in exact.iter().flatten() {
        let counts = [Some(usage.prompt_tokens), usage.completion_tokens, usage.cached_tokens];
        assert!(counts.iter().flatten().all(|count| *count <= MAX_TOKENS));
    }
    let filler = "\"\\".repeat(usize::from(filler));
    for name in ["\u{0}", "\u{10FFFF}"] {
        let mut long = members.clone();
        long.insert(name.to_owned(), filler.clone().into());
        let long = Value::Object(long).to_string();
        let mut ends = BodyExcerpt::new();
        long.as_bytes()
            .chunks(usize::from(read) * 64 + 1)
            .for_each(|part| ends.push(part));
        let found = ends.usage();
        assert!(found.is_none() || exact.contains(&found));
    }
});
