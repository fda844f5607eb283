//! Tests of the binary: flags, exit codes, signals.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn gateway(flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_fastllm-gateway"))
        .args(flags)
        .env_remove("FASTLLM_CONFIG")
        .env_remove("FASTLLM_MASTER_KEY")
        .env_remove("LITELLM_MASTER_KEY")
        .env_remove("FASTLLM_CONTROL_URL")
        .env_remove("FASTLLM_PROXY_TOKEN")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), words)
}

const CONTROL: &str = "--control-url=http://127.0.0.1:1";
const TOKEN: &str = "--proxy-token=canary-token";

#[test]
fn invalid_flags_exit_with_2() {
    for flags in [
        &[][..],
        &[CONTROL][..],
        &[CONTROL, TOKEN, "--host=nowhere"][..],
        &[CONTROL, TOKEN, "--no-such-flag"][..],
        &["--control-url=http://user:canary@control", TOKEN][..],
        &[CONTROL, TOKEN, "--port=0", "--log=a=b=c"][..],
        &[CONTROL, TOKEN, "--port=0", "--ca-bundle=/nonexistent"][..],
        &[CONTROL, TOKEN, "--config=gateway.yaml"][..],
        &[CONTROL, TOKEN, "--master-key=canary"][..],
        &[CONTROL, TOKEN, "--config-poll=0"][..],
        &["--port=0", "--config=/nonexistent"][..],
    ] {
        let (code, words) = ended(gateway(flags));
        assert_eq!(code, Some(2), "{flags:?}: {words}");
        assert!(!words.is_empty() && !words.contains("canary"), "{words}");
    }
}

#[test]
fn a_port_in_use_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    let (code, words) = ended(gateway(&[CONTROL, TOKEN, &port]));
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("cannot listen on 127.0.0.1:"), "{words}");
}

#[test]
fn sigterm_exits_successfully() {
    let folder = tempfile::tempdir().unwrap();
    let cache = format!(
        "--snapshot-cache={}",
        folder.path().join("s.json").display()
    );
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let port = format!("--port={}", free.port());
    let mut child = gateway(&[CONTROL, TOKEN, &port, &cache, "--log-format=json"]);
    // It listens before it has a snapshot.
    while TcpStream::connect_timeout(&free, Duration::from_secs(1)).is_err() {
        assert_eq!(child.try_wait().unwrap(), None);
    }
    // Two requests, to check that each is logged on its own line.
    for _ in 0..2 {
        let mut client = TcpStream::connect(free).unwrap();
        let request = b"GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let mut lines = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut lines)
        .unwrap();
    assert!(child.wait().unwrap().success());
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["role"], "proxy");
    assert_eq!(first["message"], "listening");
    let access: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["target"] == "fastllm_gateway::access")
        .collect();
    assert_eq!(access.len(), 2);
    for line in access {
        assert_eq!(
            (&line["status"], &line["level"]),
            (&503.into(), &"INFO".into())
        );
        assert_eq!(
            (&line["message"], &line["code"]),
            (&"request".into(), &"not_ready".into())
        );
    }
    assert!(!lines.contains("canary"));
}

/// A temporary file with this text.
fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const BAD: &str = "model_list:
- model_name: a
  litellm_params: {api_base: 'http://user:canary@a', api_key: canary, temperatures: 1}
general_settings: {master_key: 'canary canary'}
";

#[test]
fn the_master_key_of_litellm_closes_a_gateway_with_a_file() {
    let models = file("model_list: []\n");
    let path = models.path().to_str().unwrap();
    let check = |key: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastllm-gateway"));
        command.args(["--check-config", path]);
        command.env_remove("FASTLLM_MASTER_KEY");
        match key {
            Some(key) => command.env("LITELLM_MASTER_KEY", key),
            None => command.env_remove("LITELLM_MASTER_KEY"),
        };
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, printed) = check(None);
    assert!(
        code == Some(0) && printed.contains("open to everyone"),
        "{printed}"
    );
    let (code, printed) = check(Some("canary-key"));
    assert_eq!(
        (code, printed),
        (Some(0), format!("{path}: errors: 0, warnings: 0\n"))
    );
    for unusable in ["", "canary key"] {
        let (code, printed) = check(Some(unusable));
        assert_eq!(code, Some(2));
        assert!(printed.contains("LITELLM_MASTER_KEY") && !printed.contains("canary"));
    }
}

#[test]
fn a_file_with_a_restriction_that_cannot_be_enforced_is_not_served() {
    let closed = file("model_list: []\ngeneral_settings:\n  custom_auth: auth.check\n");
    let path = closed.path().to_str().unwrap();
    let (code, words) = ended(gateway(&["--port=0", "--config", path]));
    assert_eq!(code, Some(2));
    let expected = format!("{path}:3:3: error: general_settings.custom_auth: a restriction");
    assert!(words.contains(&expected), "{words}");
}

#[test]
fn check_config_reports_every_problem_and_its_location() {
    let bad = file(BAD);
    let path = bad.path().to_str().unwrap();
    let output = gateway(&["--check-config", path])
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.is_empty());
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected = format!(
        "{path}:3:19: error: model_list[0].litellm_params: api_base holds credentials; \
they belong into the credential field
{path}:3:71: warning: model_list[0].litellm_params.temperatures: unknown field
{path}:4:32: error: general_settings.master_key: a key is printable ASCII without spaces, \
and not empty
{path}: errors: 2, warnings: 1
"
    );
    assert_eq!(printed, expected);

    let good = file("model_list: []\ngeneral_settings: {master_key: canary}\nextra: 1\n");
    let path = good.path().to_str().unwrap();
    // Unrelated environment variables are ignored.
    let output = gateway(&["--check-config", path, CONTROL])
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected =
        format!("{path}:3:1: warning: extra: unknown field\n{path}: errors: 0, warnings: 1\n");
    assert_eq!(printed, expected);

    let output = gateway(&["--check-config", "/nonexistent"])
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.starts_with("/nonexistent:1:1: error: cannot be read: "),
        "{printed}"
    );
}

#[test]
fn an_invalid_file_exits_with_its_problems() {
    let bad = file(BAD);
    let path = bad.path().to_str().unwrap();
    let (code, words) = ended(gateway(&["--port=0", "--config", path]));
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains(&format!(
        "{path}:4:32: error: general_settings.master_key: "
    )));
    assert!(
        words.contains("temperatures: unknown field") && !words.contains("canary"),
        "{words}"
    );
}
