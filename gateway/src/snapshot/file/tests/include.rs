//! Files that include others.

use std::path::Path;

use fastllm_contract::PolicyKind;

use super::super::{ReadOutcome, Surroundings, read};
use super::{models, problems};

/// Reads a text beside these files.
fn reading(text: &str, files: &[(&str, &str)]) -> ReadOutcome {
    let included = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        let found = found.map(|(_, text)| (*text).to_owned());
        found.ok_or_else(|| "no such file".to_owned())
    };
    let surroundings = Surroundings {
        environment: &|_| None,
        included: &included,
        master_key: None,
        policy: PolicyKind::RoundRobin,
        max_body_bytes: 64 << 20,
    };
    read(text, &surroundings)
}

const MODELS: &str = "model_list: [{model_name: a, litellm_params: {api_base: 'http://a'}}]\n";

#[test]
fn sections_of_included_files_are_joined() {
    let text = "include: [models/first.yaml, ./keys.yaml]\nmodel_list: []\n";
    let files = [
        ("models/first.yaml", "include: ../second.yaml\n"),
        ("second.yaml", MODELS),
        ("keys.yaml", "general_settings: {master_key: sk-1}\n"),
    ];
    let reading = reading(text, &files);
    assert_eq!(problems(&reading), [""; 0]);
    let snapshot = reading.contents.unwrap().snapshot;
    assert_eq!(models(&snapshot)[0].name.as_str(), "a");
    assert!(!snapshot.open);
    // The version depends on every file.
    let files = [
        ("models/first.yaml", "include: ../second.yaml\n"),
        ("second.yaml", MODELS),
        ("keys.yaml", "general_settings: {master_key: sk-2}\n"),
    ];
    let changed = super::include::reading(text, &files).contents.unwrap();
    assert_ne!(snapshot.version, changed.snapshot.version);
}

#[test]
fn problems_of_included_files_refuse_the_file_and_name_their_file() {
    let cycle = ("b.yaml", "include: [c.yaml]\n");
    for (text, files, expected) in [
        (
            "include: [b.yaml]\n",
            &[][..],
            "1:11: error: include: the file cannot be included: no such file",
        ),
        (
            "include: [[b.yaml]]\n",
            &[],
            "1:11: error: include: expected the path of a file",
        ),
        (
            "include: [b.yaml]\n",
            &[cycle, ("c.yaml", "include: [./b.yaml]\n")],
            "1:11: error: include: the file is included already",
        ),
        (
            "include: [b.yaml]\ngeneral_settings: {master_key: a}\n",
            &[("b.yaml", "\n\ngeneral_settings: {master_key: canary}\n")],
            "3:20: error: general_settings.master_key: another file has it, too",
        ),
        (
            "include: [b.yaml]\nmodel_list: []\n",
            &[("b.yaml", "model_list: canary\n")],
            "1:1: error: model_list: another file has it, too",
        ),
        (
            "include: [b.yaml]\n",
            &[("b.yaml", "a: [\n")],
            "1:4: error: a[0]: not YAML",
        ),
    ] {
        let reading = reading(text, files);
        let listed = problems(&reading);
        let found = listed.iter().find(|problem| problem.starts_with(expected));
        assert!(found.is_some(), "{text}: {listed:?}");
        assert!(reading.contents.is_none(), "{text}");
        assert!(!format!("{reading:?}").contains("canary"));
    }
    let entry = "model_list: [{model_name: b, litellm_params: {api_base: 'ftp://a'}}]\n";
    let reading = reading(
        &format!("include: [b.yaml]\n{MODELS}"),
        &[("b.yaml", entry)],
    );
    let problem = reading.problems.listed().last().unwrap();
    assert_eq!(problem.path, "model_list[1].litellm_params");
    assert_eq!(reading.problems.file_of(problem), Some(Path::new("b.yaml")));
    assert_eq!(models(&reading.contents.unwrap().snapshot).len(), 2);
}

#[test]
fn inclusions_are_bounded() {
    let deep: Vec<(String, String)> = (0..20)
        .map(|number| {
            (
                format!("{number}"),
                format!("include: ['{}']\n", number + 1),
            )
        })
        .collect();
    let deep: Vec<(&str, &str)> = deep
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let names: Vec<String> = (0..100).map(|number| format!("'{number}'")).collect();
    let wide = format!("include: [{}]\n", names.join(", "));
    let empty: Vec<(String, String)> = (0..100)
        .map(|number| (format!("{number}"), "model_list: []\n".to_owned()))
        .collect();
    let empty: Vec<(&str, &str)> = empty
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let large = "# ".to_owned() + &"x".repeat(9 << 20);
    for (text, files, expected) in [
        ("include: ['0']\n", &deep[..], "more than 64 files"),
        (&wide, &empty, "more than 64 files"),
        (
            "include: ['0']\n",
            &[("0", large.as_str())],
            "larger than 8 MiB",
        ),
    ] {
        let reading = reading(text, files);
        assert!(
            problems(&reading)
                .iter()
                .any(|problem| problem.contains(expected))
        );
        assert!(reading.contents.is_none());
    }
}
