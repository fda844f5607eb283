use proptest::prelude::*;

use super::{Redactor, contains_secret};
use crate::tests::cut;

const SECRET: &str = "sk-proj-aB3/x+9_z=Tail";

/// The text in parts that end at these positions, without the secrets.
fn redacted(text: &str, secrets: &[&str], positions: &[usize]) -> String {
    let secrets = secrets.iter().map(|secret| secret.as_bytes());
    let mut redactor = Redactor::new(secrets).unwrap();
    let mut out = Vec::new();
    for part in cut(text.as_bytes(), positions) {
        redactor.push(&part, &mut out);
    }
    redactor.finish(&mut out);
    assert_eq!(out.len(), text.len(), "{text}");
    String::from_utf8(out).unwrap()
}

fn stars(len: usize) -> String {
    "*".repeat(len)
}

/// Each byte in one of the forms that it is found in.
fn encoded(secret: &str, forms: &[u8]) -> String {
    let bytes = secret.bytes().zip(forms.iter().cycle());
    bytes
        .map(|(byte, form)| match form % 6 {
            1 => format!("%{byte:02X}"),
            2 => format!("%{byte:02x}"),
            3 => format!("\\u{byte:04x}"),
            4 => format!("\\\\u{byte:04X}"),
            5 if !byte.is_ascii_alphanumeric() => format!("\\{}", char::from(byte)),
            _ => char::from(byte).to_string(),
        })
        .collect()
}

#[test]
fn every_form_of_a_secret_is_replaced() {
    for form in [
        SECRET,
        "sk-proj-aB3\\/x+9_z=Tail",
        "sk-proj-aB3\\\\/x+9_z=Tail",
        "sk-proj-aB3%2Fx%2b9_z%3DTail",
        "sk-proj-aB3\\u002fx\\u002B9_z=Tail",
        "\\u0073k-proj-aB3/x+9_z=Tail",
        // Shortened.
        "sk-proj-************Tail",
        "sk-p**ail",
        "sk-proj-aB3/...Tail",
        "sk-proj-…Tail",
        "sk-proj-•••",
        "*****Tail",
    ] {
        for (before, after) in [("", ""), ("{\"message\":\"key: ", ", see\"}"), ("sk-", "")] {
            let text = format!("{before}{form}{after}");
            let expected = format!("{before}{}{after}", stars(form.len()));
            let expected = match (before, form) {
                // Read together as one shortened form.
                ("sk-", "*****Tail") => stars(text.len()),
                _ => expected,
            };
            assert_eq!(redacted(&text, &[SECRET], &[]), expected);
            let each: Vec<usize> = (0..text.len()).collect();
            assert_eq!(redacted(&text, &[SECRET], &each), expected);
        }
    }
}

#[test]
fn other_text_is_unchanged() {
    for text in [
        "",
        "s",
        "sk",
        "sk-other-aB3/x+9_z=Tail",
        "\\",
        "%",
        "100%25 \\u00e9 \\n \\\\\\\\\\\\\\\\\\\\\\\\",
        "**bold** and *** and ****",
        "wait... Tail",
        "the tail",
    ] {
        let each: Vec<usize> = (0..text.len()).collect();
        assert_eq!(redacted(text, &[SECRET], &[]), text);
        assert_eq!(redacted(text, &[SECRET], &each), text);
    }
}

#[test]
fn a_secret_that_is_cut_off_at_the_end_is_replaced() {
    for shown in 3..SECRET.len() {
        let text = format!("key {}", &SECRET[..shown]);
        assert_eq!(
            redacted(&text, &[SECRET], &[]),
            format!("key {}", stars(shown))
        );
    }
}

#[test]
fn the_longest_of_several_secrets_is_replaced() {
    let secrets = ["token", "token-of-another", "third"];
    for (text, expected) in [
        ("a token-of-another b", "a **************** b"),
        ("a token-of b", "a *****-of b"),
        ("token third token", "***** ***** *****"),
        ("a token", "a *****"),
    ] {
        assert_eq!(redacted(text, &secrets, &[]), expected);
    }
    assert!(Redactor::new([b"".as_slice()]).is_none());
}

#[test]
fn little_is_buffered() {
    let mut redactor = Redactor::new([SECRET.as_bytes()]).unwrap();
    let mut out = Vec::new();
    for text in ["\\", "*", ".", "sk-proj-", "sk-**", "%", "\\u0", "x"] {
        for _ in 0..10_000 {
            redactor.push(text.as_bytes(), &mut out);
            assert!(redactor.carried.len() <= 512, "{text}");
        }
    }
}

#[test]
fn debug_output_holds_no_secret() {
    let mut redactor = Redactor::new([SECRET.as_bytes()]).unwrap();
    redactor.push(b"sk-proj", &mut Vec::new());
    assert!(!format!("{redactor:?}").contains("sk-"));
}

proptest! {
    #[test]
    fn an_encoded_secret_never_passes(
        before in "[ -~]{0,20}",
        after in "[ -~]{0,20}",
        secret in "[a-zA-Z0-9+/=_-]{6,40}",
        forms in proptest::collection::vec(any::<u8>(), 1..8),
        positions in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        let form = encoded(&secret, &forms);
        let text = format!("{before} {form} {after}");
        prop_assert!(contains_secret(text.as_bytes(), secret.as_bytes()));
        let passed = redacted(&text, &[&secret], &positions);
        prop_assert!(!passed.contains(&form));
        prop_assert!(!contains_secret(passed.as_bytes(), secret.as_bytes()));
        prop_assert_eq!(&passed, &redacted(&text, &[&secret], &[]));
    }

    #[test]
    fn parts_make_no_difference(
        text in "[sk%u\\\\*.0-9-]{0,60}",
        positions in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        let secrets = ["sk-0123", "k%u0", "sk-01"];
        prop_assert_eq!(
            redacted(&text, &secrets, &positions),
            redacted(&text, &secrets, &[])
        );
    }
}
