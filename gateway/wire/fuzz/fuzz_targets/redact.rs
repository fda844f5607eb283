//! No secret passes the redactor, wherever the reads end, and the length of the
//! text is unchanged.

#![no_main]

use fastllm_wire::Redactor;
use libfuzzer_sys::fuzz_target;

const SECRETS: [&[u8]; 3] = [b"sk-ab/+c", b"sk-ab", b"%u00\\"];

fn redacted(text: &[u8], read: usize) -> Vec<u8> {
    let mut redactor = Redactor::new(SECRETS).expect("secrets");
    let mut out = Vec::new();
    for part in text.chunks(read.max(1)) {
        redactor.push(part, &mut out);
    }
    redactor.finish(&mut out);
    out
}

fuzz_target!(|input: (u8, &[u8])| {
    let (read, text) = input;
    let passed = redacted(text, usize::from(read));
    assert_eq!(passed, redacted(text, text.len()));
    assert_eq!(passed.len(), text.len());
    for secret in SECRETS {
        assert!(!passed.windows(secret.len()).any(|part| part == secret));
    }
    let kept = passed.iter().zip(text);
    assert!(kept.clone().all(|(passed, byte)| passed == byte || *passed == b'*'));
});
