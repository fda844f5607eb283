//! Parsing any configuration file terminates, and the snapshot of a valid file
//! yields routing tables without an unusable backend.

#![no_main]

#[path = "../../wire/fuzz/fuzz_targets/seeded.rs"]
mod seeded;

use fastllm_contract::PolicyKind;
use fastllm_engine::{RoutingState, Tuning};
use fastllm_gateway::configuration_file::{Surroundings, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let environment = |name: &str| (name.len() % 2 == 0).then(|| name.to_owned());
    let surroundings = Surroundings {
        environment: &environment,
        included: &|_| Err(String::new()),
        master_key: None,
        policy: PolicyKind::default(),
        max_body_bytes: 64 << 20,
    };
    let reading = read(text, &surroundings);
    for problem in reading.problems.listed() {
        assert!(!problem.to_string().contains('\n'));
    }
    let Some(contents) = reading.contents else {
        assert!(reading.problems.errors() > 0);
        return;
    };
    let tuning = Tuning {
        affinity_slots: 0,
        ..contents.tuning
    };
    let built = RoutingState::build(&contents.snapshot, None, &tuning).unwrap();
    assert!(built.skipped_backends.is_empty());
});
