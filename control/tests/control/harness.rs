//! Test fixtures: an empty database and control planes that use it.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, header};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// The gateways' token in every test.
pub(crate) const TOKEN: &str = "pt-canary-token-4a1e";
/// The administrator's password in every test.
pub(crate) const PASSWORD: &str = "canary-password-77c2";
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Counts the connections of control planes that wait for a lock.
pub(crate) const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND application_name = 'fastllm-control' \
       AND wait_event_type = 'Lock'";

/// The timeout of conditions, long enough for machines under load.
const DEADLINE: Duration = Duration::from_secs(30);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Waits until `probe` returns a value.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < end, "timed out: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The database of one test; deleted when dropped.
pub(crate) struct Database {
    server: String,
    name: String,
    pub(crate) pool: PgPool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the environment names the server"
)]
fn server() -> String {
    std::env::var("DATABASE_URL")
        .expect("set DATABASE_URL to a Postgres server with a superuser, as `make test` does")
}

fn options(server: &str, name: &str) -> PgConnectOptions {
    server.parse::<PgConnectOptions>().unwrap().database(name)
}

impl Database {
    pub(crate) async fn create() -> Self {
        let server = server();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("fastllm_test_{}_{number}", std::process::id());
        let mut connection = options(&server, "postgres").connect().await.unwrap();
        let create = format!("CREATE DATABASE {name}");
        connection.execute(AssertSqlSafe(create)).await.unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect_lazy_with(options(&server, &name));
        Self { server, name, pool }
    }

    /// The URL for a control plane, optionally with the address of a proxy.
    pub(crate) fn url(&self, through: Option<std::net::SocketAddr>) -> String {
        let mut url = url::Url::parse(&self.server).unwrap();
        url.set_path(&self.name);
        if let Some(address) = through {
            url.set_host(Some(&address.ip().to_string())).unwrap();
            url.set_port(Some(address.port())).unwrap();
        }
        url.to_string()
    }

    /// The URL for a control plane with one connection and none for LISTEN.
    pub(crate) async fn url_without_listen(&self) -> String {
        let sql = format!(
            "CREATE ROLE {0} LOGIN PASSWORD '{0}' CONNECTION LIMIT 1; \
             GRANT ALL ON DATABASE {0} TO {0}; GRANT ALL ON SCHEMA public TO {0}; \
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {0}; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {0}",
            self.name
        );
        self.pool.execute(AssertSqlSafe(sql)).await.unwrap();
        let mut url = url::Url::parse(&self.url(None)).unwrap();
        url.set_username(&self.name).unwrap();
        url.set_password(Some(&self.name)).unwrap();
        url.to_string()
    }

    pub(crate) fn address(&self) -> (String, u16) {
        let options = options(&self.server, &self.name);
        (options.get_host().to_owned(), options.get_port())
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        self.pool.execute(sql).await.unwrap();
    }

    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut connection = options(&server, "postgres").connect().await.unwrap();
                for drop in [
                    format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
                    format!("DROP ROLE IF EXISTS {name}"),
                ] {
                    connection.execute(AssertSqlSafe(drop)).await.unwrap();
                }
            });
        });
        // The test itself reports failures.
        let _ = dropped.join();
    }
}

/// The control plane's binary with this test's environment.
pub(crate) fn command(database_url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastllm-control"));
    command
        .env_clear()
        .env("FASTLLM_DATABASE_URL", database_url)
        .env("FASTLLM_PROXY_TOKEN", TOKEN)
        .env("FASTLLM_ENCRYPTION_KEY", KEY)
        .env("FASTLLM_LOG", "debug")
        .env("FASTLLM_LOG_FORMAT", "json");
    command
}

/// A running control plane.
pub(crate) struct Control {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
    child: Child,
    directory: TempDir,
}

impl Control {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(database: &Database) -> Self {
        let control = Self::launch(&database.url(None), &[]).await;
        control.ready().await;
        control
    }

    /// Starts one and waits until its port is open.
    pub(crate) async fn launch(database_url: &str, flags: &[&str]) -> Self {
        Self::launch_command(command(database_url), flags, "http").await
    }

    pub(crate) async fn launch_command(mut command: Command, flags: &[&str], scheme: &str) -> Self {
        // Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = command
            .arg("--admin-port=0")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut control = Self {
            base: String::new(),
            client: reqwest::Client::builder().build().unwrap(),
            child,
            directory,
        };
        let address = eventually("the port is open", async || control.listening()).await;
        control.base = format!("{scheme}://{address}");
        control
    }

    fn listening(&self) -> Option<String> {
        let log = self.log();
        let line = log
            .lines()
            .find(|line| line.contains("control plane listening"))?;
        let entry: Value = serde_json::from_str(line).ok()?;
        let address = entry["address"].as_str()?;
        Some(address.to_owned())
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) async fn ready(&self) {
        eventually("control is ready", async || {
            let response = self.get("/readyz").send().await.ok()?;
            (response.status() == StatusCode::OK).then_some(())
        })
        .await;
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base))
    }

    /// A request with the gateways' token.
    pub(crate) fn as_gateway(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(TOKEN)
    }

    pub(crate) async fn login(&self, name: &str, password: &str) -> reqwest::Response {
        self.client
            .post(format!("{}/login", self.base))
            .json(&json!({ "name": name, "password": password }))
            .send()
            .await
            .unwrap()
    }

    /// Logs in as `name`.
    pub(crate) async fn session(&self, name: &str, password: &str) -> Session<'_> {
        let response = self.login(name, password).await;
        assert_eq!(response.status(), StatusCode::OK);
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Session {
            control: self,
            cookie,
        }
    }

    /// Sends SIGTERM, as Kubernetes does.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let child = &mut self.child;
        eventually("control exits", async || child.try_wait().unwrap())
            .await
            .code()
    }
}

#[expect(clippy::print_stderr, reason = "a failed test shows the log")]
impl Drop for Control {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let problems = log.lines().filter(|line| {
                line.contains("\"level\":\"WARN\"") || line.contains("\"level\":\"ERROR\"")
            });
            eprintln!("the control plane's problems:");
            problems.for_each(|line| eprintln!("{line}"));
        }
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A logged-in caller.
pub(crate) struct Session<'a> {
    control: &'a Control,
    pub(crate) cookie: String,
}

impl Session<'_> {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.control
            .client
            .request(method, format!("{}{path}", self.control.base))
            .header(header::COOKIE, &self.cookie)
    }

    /// Sends JSON and returns status and body (null if empty).
    pub(crate) async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        status_and_json(self.request(method, path).json(&body)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::POST, path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::PUT, path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::PATCH, path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        status_and_json(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = status_and_json(self.request(Method::GET, path)).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Creates a model and returns its ID.
    pub(crate) async fn model(&self, name: &str) -> i64 {
        let (status, made) = self.post("/admin/models", json!({ "name": name })).await;
        assert_eq!(status, 201, "{made}");
        made["id"].as_i64().unwrap()
    }

    /// Creates a key and returns its ID and plaintext.
    pub(crate) async fn key(&self, name: &str, principal: i64) -> (i64, String) {
        let body = json!({ "name": name, "principal_id": principal });
        let (status, made) = self.post("/admin/keys", body).await;
        assert_eq!(status, 200, "{made}");
        (
            made["id"].as_i64().unwrap(),
            made["key"].as_str().unwrap().to_owned(),
        )
    }
}

/// Sends a request and returns the status and the JSON body (null if empty).
pub(crate) async fn status_and_json(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} is not JSON: {text}"))
    };
    (status, body)
}

/// Runs `set-password` for `name`.
pub(crate) fn set_password(
    database: &Database,
    name: &str,
    flags: &[&str],
) -> std::process::Output {
    command(&database.url(None))
        .args(["set-password", "--name", name])
        .args(flags)
        .env("FASTLLM_BOOTSTRAP_PASSWORD", PASSWORD)
        .output()
        .unwrap()
}

/// A ready control plane on a database with the administrator `root`.
pub(crate) async fn started() -> (Database, Control) {
    let database = Database::create().await;
    assert!(set_password(&database, "root", &[]).status.success());
    let control = Control::start(&database).await;
    (database, control)
}
