//! Control planes behind `PgBouncer` with `pool_mode=transaction`.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use reqwest::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::harness::{Control, Database, PASSWORD, Session, command, eventually, status_and_json};
use crate::snapshots::whole;

/// The pooler; ended when dropped.
struct Pooler {
    address: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Pooler {
    /// Starts one with fewer connections to the server than clients use.
    async fn start(database: &Database) -> Self {
        let directory = TempDir::new().unwrap();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let url = url::Url::parse(&database.url(None)).unwrap();
        let users = directory.path().join("users.txt");
        let user = format!("{:?} {:?}\n", url.username(), url.password().unwrap());
        fs::write(&users, user).unwrap();
        let (host, server_port) = database.address();
        let settings = directory.path().join("pgbouncer.ini");
        // It refuses to run as root, and is then run as PostgreSQL's user.
        let account = if is_root() { "user = postgres\n" } else { "" };
        let text = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = plain\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 3\nmax_client_conn = 200\n{account}",
            users.display()
        );
        fs::write(&settings, text).unwrap();
        let child = Command::new("/usr/sbin/pgbouncer")
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("install the package pgbouncer, as `make test` does");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually("the pooler listens", async || {
            TcpStream::connect(address).await.ok()
        })
        .await;
        Self {
            address,
            child,
            _directory: directory,
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout.trim_ascii() == b"0"
}

/// Changes, reports, and what a gateway sends.
async fn use_all(control: &Control, session: &Session<'_>, number: usize) {
    session.model(&format!("m{number}")).await;
    let models = session.get("/admin/models").await;
    assert!(models.as_array().unwrap().len() > number / 2);
    let event = json!({ "principal_id": 1, "model": format!("m{number}"), "prompt_tokens": 2,
        "completion_tokens": 3, "at": 0 });
    let usage = json!({ "replica": format!("g{number}"), "boot_id": "b", "sequence": 1,
        "events": [event] });
    let report = json!({ "replica_id": format!("g{number}"), "boot_id": "b", "counts": [],
        "budgets": [] });
    for (path, body) in [("/usage", usage), ("/limits/reconcile", report)] {
        let request = control.as_gateway(Method::POST, path).json(&body);
        let (status, reply) = status_and_json(request).await;
        assert_eq!(status, 200, "{path}: {reply}");
    }
    let state = control.as_gateway(Method::GET, "/limits-state");
    assert_eq!(state.send().await.unwrap().status(), StatusCode::OK);
    session.get("/admin/usage?group_by=model").await;
    session.get("/admin/audit").await;
}

/// Uses every kind of statement through two replicas: migrations, logins, changes,
/// snapshots, usage, limits, reports.
#[tokio::test]
async fn control_planes_work_behind_a_transaction_pooler() {
    let database = Database::create().await;
    let pooler = Pooler::start(&database).await;
    let url = database.url(Some(pooler.address));
    let made = command(&url)
        .args(["set-password", "--name", "root"])
        .env("FASTLLM_BOOTSTRAP_PASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let replicas = [
        Control::launch(&url, &[]).await,
        Control::launch(&url, &[]).await,
    ];
    for replica in &replicas {
        replica.ready().await;
    }
    let [one, two] = &replicas;
    let (first, second) = (
        one.session("root", PASSWORD).await,
        two.session("root", PASSWORD).await,
    );
    let sessions = [&first, &second];
    let change = |number: usize| use_all(&replicas[number % 2], sessions[number % 2], number);
    for round in 0..5 {
        let numbers = [0, 1, 2, 3].map(|number| change(round * 4 + number));
        futures_util::future::join_all(numbers).await;
    }
    for replica in &replicas {
        eventually("every change is published", async || {
            let models = whole(replica).await.0.models.items.unwrap();
            (models.len() == 20).then_some(())
        })
        .await;
        let log = replica.log();
        assert!(
            !log.contains("prepared statement") && !log.contains("panicked"),
            "{log}"
        );
    }
    let totals = first.get("/admin/usage?group_by=principal").await;
    assert_eq!(totals[0]["requests"], 20, "{totals}");
}
