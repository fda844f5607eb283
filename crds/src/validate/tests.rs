//! The functions accept the same texts as the patterns in the schema.

use proptest::prelude::*;
use regex::Regex;
use serde_json::Value;

use super::image::is_image;
use super::{is_account_name, is_log_level, is_secret_key, is_secret_name, is_service_name};

/// The pattern in the first rule of a field that contains one.
fn pattern(field: &str) -> Regex {
    let definition = serde_json::to_value(crate::crd()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let rules = schema.pointer(field).unwrap()["x-kubernetes-validations"].clone();
    let rules: Vec<Value> = serde_json::from_value(rules).unwrap();
    let rules = rules.iter().filter_map(|rule| rule["rule"].as_str());
    let mut patterns = rules
        .filter_map(|rule| rule.split_once("matches("))
        .map(|(_, pattern)| pattern.trim_start_matches('r').trim_start_matches('\''))
        .filter_map(|pattern| pattern.split_once("')"))
        .map(|(pattern, _)| Regex::new(pattern).unwrap());
    patterns.next().unwrap()
}

/// Texts that are shorter than every limit, from characters that matter.
fn texts(characters: &'static str) -> impl Strategy<Value = Vec<String>> {
    let text = prop::collection::vec(
        prop::sample::select(characters.chars().collect::<Vec<_>>()),
        0..9,
    );
    prop::collection::vec(text.prop_map(String::from_iter), 400)
}

fn same(
    texts: &[String],
    pattern: &Regex,
    accepts: impl Fn(&str) -> bool,
) -> Result<(), TestCaseError> {
    for text in texts {
        prop_assert_eq!(accepts(text), pattern.is_match(text), "{:?}", text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn images_match_their_pattern(texts in texts("aaB0.:/-_@[]\n ")) {
        same(&texts, &pattern("/properties/spec/properties/image"), is_image)?;
    }

    #[test]
    fn digests_match_their_pattern(prefix in "[a:@]{0,3}", algorithm in "sha(256|384|512|1)", digits in 60_usize..132, extra in "[0fFg]?") {
        let text = format!("{prefix}a@{algorithm}:{}{extra}", "0".repeat(digits / 4 * 4));
        same(&[text], &pattern("/properties/spec/properties/image"), is_image)?;
    }

    #[test]
    fn names_of_secrets_match_their_pattern(texts in texts("aaA0.-_\n/")) {
        let field = "/properties/spec/properties/database/properties/name";
        same(&texts, &pattern(field), is_secret_name)?;
    }

    #[test]
    fn keys_of_secrets_match_their_pattern(texts in texts("aA0.-_\n/")) {
        let field = "/properties/spec/properties/database/properties/key";
        let excluded = |text: &str| text == "." || text.starts_with("..");
        let texts: Vec<_> = texts.into_iter().filter(|text| !excluded(text)).collect();
        same(&texts, &pattern(field), is_secret_key)?;
        prop_assert!(!is_secret_key(".") && !is_secret_key("..a"));
    }

    #[test]
    fn names_of_accounts_match_their_pattern(texts in texts("a \u{0}\n\t\u{85}\u{a0}\u{200b}\u{2028}\u{3000}\u{e4}\u{7f}")) {
        let field = "/properties/spec/properties/bootstrap/properties/name";
        same(&texts, &pattern(field), is_account_name)?;
    }

    #[test]
    fn log_levels_match_their_pattern(texts in texts("a ~!\n\u{7f}\u{e4}=")) {
        let field = "/properties/spec/properties/observability/properties/logLevel";
        same(&texts, &pattern(field), is_log_level)?;
    }

    #[test]
    fn names_of_resources_match_their_pattern(texts in texts("aaA0-.\n")) {
        same(&texts, &pattern(""), is_service_name)?;
    }
}
