//! Every message that the codec accepts is read by hyper in the same way.

#![no_main]

mod frozen;
#[path = "../../tests/http1_hyper/harness.rs"]
mod harness;
mod seeded;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, bool, &[u8])| {
    let (is_answer, is_head, bytes) = input;
    if is_answer {
        harness::check_response(bytes, is_head);
    } else {
        harness::check_requests(bytes);
    }
});
