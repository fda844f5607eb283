//! The binary: flags, exit codes, signals.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn gateway(flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_fastllm-gateway"))
        .args(flags)
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
fn what_flags_are_to_blame_for_ends_with_2() {
    for flags in [
        &[][..],
        &[CONTROL][..],
        &[CONTROL, TOKEN, "--host=nowhere"][..],
        &[CONTROL, TOKEN, "--no-such-flag"][..],
        &["--control-url=http://user:canary@control", TOKEN][..],
        &[CONTROL, TOKEN, "--port=0", "--log=a=b=c"][..],
        &[CONTROL, TOKEN, "--port=0", "--ca-bundle=/nonexistent"][..],
    ] {
        let (code, words) = ended(gateway(flags));
        assert_eq!(code, Some(2), "{flags:?}: {words}");
        assert!(!words.is_empty() && !words.contains("canary"), "{words}");
    }
}

#[test]
fn a_port_that_is_taken_ends_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    let (code, words) = ended(gateway(&[CONTROL, TOKEN, &port]));
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("cannot listen on 127.0.0.1:"), "{words}");
}

#[test]
fn sigterm_ends_it_well() {
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
    // Two, so that each is seen to have a line of its own.
    for _ in 0..2 {
        let mut client = TcpStream::connect(free).unwrap();
        let request = b"GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
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
    assert_eq!(first["message"], "the gateway listens");
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
