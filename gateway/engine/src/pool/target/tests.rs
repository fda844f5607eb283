use std::collections::BTreeMap;

use super::{InvalidTemplate, Location, PathTemplate};
use crate::fixture::backend;
use crate::pool::InvalidBackend;

fn location(template: Option<&str>, query: &[(&str, &str)]) -> Result<Location, InvalidBackend> {
    let mut described = backend(1);
    described.upstream_model = "gpt 4/o".to_owned();
    described.request_options.path_template = template.map(str::to_owned);
    let query = query.iter();
    described.request_options.query = query
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect::<BTreeMap<_, _>>();
    Location::of(&described)
}

fn target(template: Option<&str>, query: &[(&str, &str)], sub_path: &str) -> String {
    let location = location(template, query).unwrap();
    location.target(sub_path).unwrap().as_str().to_owned()
}

#[test]
fn target_is_base_template_and_query() {
    let plain = "/chat/completions";
    assert_eq!(target(None, &[], plain), "/v1/chat/completions");
    let azure = Some("/openai/deployments/{upstream_model}{sub_path}");
    let version = [("api-version", "2024-10-21")];
    assert_eq!(
        target(azure, &version, plain),
        "/v1/openai/deployments/gpt%204%2Fo/chat/completions?api-version=2024-10-21"
    );
    assert_eq!(
        target(Some("{sub_path}/of/{upstream_model}"), &[], "/unusual"),
        "/v1/unusual/of/gpt%204%2Fo"
    );
    assert_eq!(
        target(None, &[("a b", "c&d=é"), ("z", "")], plain),
        "/v1/chat/completions?a%20b=c%26d%3D%C3%A9&z="
    );
}

#[test]
fn parameters_are_found_in_any_case() {
    let location = location(None, &[("api-version", "1"), ("a b", "2")]).unwrap();
    assert!(location.has_parameter("API-Version") && location.has_parameter("a b"));
    assert!(!location.has_parameter("api_version") && !location.has_parameter("a"));
}

#[test]
fn common_targets_are_shared() {
    let location = location(Some("/x{sub_path}"), &[("a", "b")]).unwrap();
    let bytes = |sub_path| location.target(sub_path).unwrap().as_str().as_ptr();
    let at = |sub_path| {
        let known = location.usual.iter();
        let mut known = known.filter(|(known, _)| *known == sub_path);
        known.next().unwrap().1.as_str().as_ptr()
    };
    assert_eq!(bytes("/chat/completions"), at("/chat/completions"));
    assert_eq!(bytes("/embeddings"), at("/embeddings"));
}

#[test]
fn probe_path_is_relative_or_from_the_root() {
    let location = location(Some("/x{sub_path}"), &[("a", "b")]).unwrap();
    let beside = |path| location.beside(path).unwrap().as_str().to_owned();
    assert_eq!(beside("/models"), "/v1/models?a=b");
    assert_eq!(beside("//health"), "/health?a=b");
    assert_eq!(beside("/"), "/v1/?a=b");
}

#[test]
fn invalid_templates_are_rejected() {
    for (text, error) in [
        ("", InvalidTemplate::SubPath),
        ("/x", InvalidTemplate::SubPath),
        ("{sub_path}{sub_path}", InvalidTemplate::SubPath),
        ("x{sub_path}", InvalidTemplate::Start),
        ("{upstream_model}{sub_path}", InvalidTemplate::Start),
        ("/{other}{sub_path}", InvalidTemplate::Character),
        ("/a b{sub_path}", InvalidTemplate::Character),
        ("/a?b{sub_path}", InvalidTemplate::Character),
        ("{sub_path}#x", InvalidTemplate::Character),
        ("/{sub_path}\r\nhost: x", InvalidTemplate::Character),
    ] {
        assert_eq!(PathTemplate::parse(text), Err(error), "{text}");
    }
    let unusable = location(Some("/x"), &[]).map(|_| ());
    assert_eq!(
        unusable,
        Err(InvalidBackend::PathTemplate(InvalidTemplate::SubPath))
    );
}
