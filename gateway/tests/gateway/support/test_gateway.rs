use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use fastllm_contract::UsageEvent;
use fastllm_gateway::cli::Flags;
use fastllm_gateway::{Error, Gateway};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::control::TOKEN;
use super::{
    Client, Control, Reply, SnapshotContent, Upstream, chat, content, get, snapshot, soon,
};

#[derive(Debug, Parser)]
#[command(args_override_self = true)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

/// Options for starting a gateway.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) flags: Vec<String>,
    pub(crate) cache: Option<PathBuf>,
}

impl Options {
    pub(crate) fn flags(flags: &[&str]) -> Self {
        Self {
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            cache: None,
        }
    }
}

/// A gateway that runs in this process, with its control plane.
#[derive(Debug)]
pub(crate) struct TestGateway {
    pub(crate) address: SocketAddr,
    pub(crate) status_address: Option<SocketAddr>,
    pub(crate) control: Control,
    stop: CancellationToken,
    running: JoinSet<Result<(), Error>>,
    _folder: TempDir,
}

impl TestGateway {
    /// A gateway in front of these upstreams, ready to serve.
    pub(crate) async fn start(upstreams: &[&Upstream]) -> Self {
        Self::start_with(upstreams, Options::default()).await
    }

    pub(crate) async fn start_with(upstreams: &[&Upstream], options: Options) -> Self {
        let addresses: Vec<_> = upstreams
            .iter()
            .map(|upstream| upstream.api_base())
            .collect();
        Self::serving(&content(&addresses), options).await
    }

    pub(crate) async fn serving(content: &SnapshotContent, options: Options) -> Self {
        let control = Control::start(snapshot(content)).await;
        let gateway = Self::with_control(control, options);
        gateway.until_ready().await;
        gateway
    }

    /// A gateway that serves a configuration file, without a control plane.
    pub(crate) async fn with_file(file: &Path, flags: &[&str]) -> Self {
        let mut all = vec![format!("--config={}", file.display())];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let unknown = Control::start(snapshot(&content(&[]))).await;
        Self::launch(unknown, tempfile::tempdir().unwrap(), all)
    }

    /// A gateway that may not be ready yet.
    pub(crate) fn with_control(control: Control, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = options
            .cache
            .unwrap_or_else(|| folder.path().join("snapshot.json"));
        let mut flags = vec![
            format!("--control-url={}", control.url()),
            format!("--proxy-token={TOKEN}"),
            format!("--snapshot-cache={}", cache.display()),
        ];
        flags.extend(options.flags);
        Self::launch(control, folder, flags)
    }

    fn launch(control: Control, folder: TempDir, more: Vec<String>) -> Self {
        super::logs::listen();
        let usual = ["gateway", "--port=0", "--shutdown-grace=10"];
        let mut flags: Vec<_> = usual.map(str::to_owned).to_vec();
        flags.extend(more);
        let flags = Command::try_parse_from(flags).unwrap().flags;
        let gateway = Gateway::bind(flags.config().unwrap()).unwrap();
        let (address, status_address) = (gateway.address(), gateway.status_address());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        let stopped = stop.clone();
        running.spawn(async move { gateway.serve(stopped.cancelled()).await });
        Self {
            address,
            status_address,
            control,
            stop,
            running,
            _folder: folder,
        }
    }

    pub(crate) async fn until_ready(&self) {
        self.until("readiness", async || {
            self.get("/readyz").await.status == 200
        })
        .await;
    }

    /// Polls the condition until it holds.
    pub(crate) async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        soon(what, async {
            while !condition().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends one request on a separate connection.
    pub(crate) async fn send(&self, request: &[u8]) -> Reply {
        self.client().await.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(&get(path, "")).await
    }

    pub(crate) async fn chat(&self, body: &str) -> Reply {
        self.send(&chat(body)).await
    }

    /// The value of one metric line; 0 if it is absent.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Signals the gateway to shut down.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the gateway has exited.
    pub(crate) async fn ended(&mut self) {
        let ended = soon("the gateway's end", self.running.join_next()).await;
        ended.unwrap().unwrap().unwrap();
    }

    /// Shuts the gateway down; returns the usage events that it reported, ordered by
    /// request time, because each thread reports separately.
    pub(crate) async fn finish(mut self) -> Vec<UsageEvent> {
        self.stop();
        self.ended().await;
        let batches = self.control.batches();
        let mut events: Vec<_> = batches.into_iter().flat_map(|batch| batch.events).collect();
        events.sort_by_key(|event| event.at);
        events
    }
}
