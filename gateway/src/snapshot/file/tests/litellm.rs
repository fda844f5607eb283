//! Files of the shapes that LiteLLM's users have: per entry, whether it is served,
//! and with what, or why not.

use std::fmt::Write;
use std::path::Path;

use fastllm_contract::{Backend, HealthCheck, Model, PolicyKind, Snapshot};

use super::super::{FileContents, ReadOutcome, Severity, Surroundings, read};
use super::{models, no_file};

/// Variables that the files refer to.
const VARIABLES: [(&str, &str); 16] = [
    ("OPENAI_API_KEY", "key-of-openai"),
    ("GROQ_API_KEY", "key-of-groq"),
    ("MISTRAL_API_KEY", "key-of-mistral"),
    ("ANTHROPIC_API_KEY", "key-of-anthropic"),
    ("GEMINI_API_KEY", "key-of-gemini"),
    ("OPENROUTER_API_KEY", "key-of-openrouter"),
    ("LITELLM_PROXY_API_KEY", "key-of-litellm"),
    ("HF_TOKEN", "key-of-hugging-face"),
    ("AZURE_API_KEY_EU", "key-of-azure-eu"),
    ("AZURE_API_KEY_US", "key-of-azure-us"),
    ("AZURE_TOKEN", "token-of-azure"),
    ("AWS_ACCESS_KEY_ID", "key-of-aws"),
    ("AWS_SECRET_ACCESS_KEY", "secret-of-aws"),
    ("REDIS_HOST", "redis"),
    ("SLACK_WEBHOOK_URL", "http://slack"),
    ("DATABASE_URL", "postgres://db"),
];

fn outcome(text: &str) -> ReadOutcome {
    let environment = |name: &str| {
        let found = VARIABLES.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let surroundings = Surroundings {
        environment: &environment,
        included: &no_file,
        master_key: None,
        policy: PolicyKind::CacheAffinity,
        max_body_bytes: 64 << 20,
    };
    read(text, &surroundings)
}

/// The outcome as text: what is served, then the problems.
fn described(outcome: &ReadOutcome) -> String {
    let mut text = String::new();
    match &outcome.contents {
        Some(FileContents { snapshot, tuning }) => {
            let access = if snapshot.open { "open" } else { "keys" };
            writeln!(text, "served: {access}, {}", tuning.policy).unwrap();
            for model in models(snapshot) {
                describe_model(&mut text, model);
            }
            describe_access(&mut text, snapshot);
        }
        None => writeln!(text, "refused").unwrap(),
    }
    for problem in outcome.problems.listed() {
        writeln!(text, "{problem}").unwrap();
    }
    text
}

fn describe_model(text: &mut String, model: &Model) {
    write!(text, "  {}:", model.name).unwrap();
    if let Some(policy) = model.policy {
        write!(text, " {policy}").unwrap();
    }
    if let Some(tokens) = model.context_length {
        write!(text, " context {}", tokens.0).unwrap();
    }
    if let Some(seconds) = model.cache_ttl_seconds {
        write!(text, " cached {seconds} s").unwrap();
    }
    let failover = serde_json::to_string(&model.failover).unwrap();
    if failover != "{}" {
        write!(text, " {failover}").unwrap();
    }
    writeln!(text).unwrap();
    for backend in &model.backends {
        describe_backend(text, backend);
    }
}

fn describe_backend(text: &mut String, backend: &Backend) {
    let template = backend.request_options.path_template.as_deref();
    write!(
        text,
        "    {} at {}{}",
        backend.upstream_model,
        backend.api_base,
        template.unwrap_or_default()
    )
    .unwrap();
    for (name, value) in &backend.request_options.query {
        write!(text, " ?{name}={value}").unwrap();
    }
    match &backend.api_key {
        Some(key) => {
            let scheme = backend.auth_scheme.as_deref().unwrap_or("-");
            write!(text, ", {} {scheme} {}", backend.auth_header, key.expose()).unwrap();
        }
        None => write!(text, ", no key").unwrap(),
    }
    for (name, value) in &backend.request_options.headers {
        write!(text, ", {name}: {}", value.expose()).unwrap();
    }
    write!(text, ", weight {}", backend.weight).unwrap();
    if let Some(most) = backend.concurrency.max {
        write!(text, ", concurrency {most}").unwrap();
    }
    let usual = HealthCheck::default();
    if !backend.health.enabled {
        write!(text, ", not probed").unwrap();
    } else if backend.health.path != usual.path {
        write!(text, ", probed at {}", backend.health.path).unwrap();
    }
    writeln!(text).unwrap();
}

fn describe_access(text: &mut String, snapshot: &Snapshot) {
    for virtual_model in snapshot.virtual_models.items.as_deref().unwrap() {
        let targets = virtual_model.default_targets.iter();
        let targets = targets.map(|target| format!("{} {}", target.model, target.weight));
        let targets: Vec<_> = targets.collect();
        writeln!(text, "  {} -> {}", virtual_model.name, targets.join(", ")).unwrap();
    }
    for principal in snapshot.principals.items.as_deref().unwrap() {
        let json = serde_json::to_string(principal).unwrap();
        writeln!(text, "  {json}").unwrap();
    }
}

/// The number of entries in `model_list`.
fn entries(text: &str) -> usize {
    text.lines()
        .filter(|line| {
            let line = line.trim_start();
            !line.starts_with('#')
                && (line.starts_with("- {model_name:")
                    || line.starts_with("- model_name:")
                    || line.starts_with("model_name:"))
        })
        .count()
}

/// Whether a problem is an error of this entry.
fn concerns(path: &str, entry: usize) -> bool {
    let prefix = format!("model_list[{entry}]");
    let rest = path.strip_prefix(&prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[test]
fn every_entry_of_a_file_is_served_or_told_why() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snapshot/file/tests/litellm");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 30);
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_snapshot_path("litellm-expected");
    let _bound = settings.bind_to_scope();
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let outcome = outcome(&text);
        check_entries(&name, &text, &outcome);
        let described = described(&outcome);
        assert!(!described.contains("os.environ"), "{name}: {described}");
        insta::assert_snapshot!(name, described);
    }
}

/// Each entry is a backend or has an error, or the file is refused with one.
fn check_entries(name: &str, text: &str, outcome: &ReadOutcome) {
    let errors: Vec<&str> = outcome
        .problems
        .listed()
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.path.as_str())
        .collect();
    let entries = entries(text);
    assert!(entries > 0, "{name}");
    let Some(contents) = &outcome.contents else {
        assert!(!errors.is_empty(), "{name}");
        return;
    };
    let served = models(&contents.snapshot).iter();
    let served: usize = served.map(|model| model.backends.len()).sum();
    let with_errors = (0..entries).filter(|entry| errors.iter().any(|path| concerns(path, *entry)));
    let off = text.matches("blocked: true}\n").count()
        + text.matches("model_info: {blocked: true}").count();
    let off = usize::from(off > 0 && name.contains("model-info"));
    assert_eq!(served + with_errors.count() + off, entries, "{name}");
}
