//! The operator's program: parse, configure, run.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use fastllm_operator::config::{Cli, Command, LogFormat, RunConfig};
use fastllm_operator::controller::Controller;
use fastllm_operator::error::OperatorError;
use fastllm_operator::lease::Candidate;
use fastllm_operator::metrics::Metrics;
use fastllm_operator::observe::HttpModels;
use fastllm_operator::serve::{self, Served};
use fastllm_operator::tasks::Tasks;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Crd) => print_definition(),
        Some(Command::Run(config)) => start(&config),
        None => start(&cli.run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "fastllm-operator ends");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the definition is the output")]
fn print_definition() -> anyhow::Result<()> {
    print!("{}", fastllm_crds::crd_yaml()?);
    Ok(())
}

fn start(config: &RunConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log).context("--log")?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    // Only fails if one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(run(config))
}

async fn run(config: &RunConfig) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, pod = config.pod_name, "fastllm-operator starts");
    let client = Client::try_default().await.context("no way to a cluster")?;
    let metrics = Arc::new(Metrics::new()?);
    let served = Arc::new(Served::new(Arc::clone(&metrics)));
    let mut tasks = Tasks::default();
    let listener = serve::bind(config.metrics_addr).await?;
    tasks.start(
        "the HTTP listener",
        serve::serve(listener, Arc::clone(&served)),
    );

    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (namespace, pod) = (&config.pod_namespace, &config.pod_name);
    let mut candidate = Candidate::new(client.clone(), namespace, pod, Arc::clone(&metrics));
    if config.leader_elect {
        tokio::select! {
            () = candidate.acquire() => {}
            error = tasks.first_end() => return Err(error.into()),
            _ = stop.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    } else {
        metrics.set_leader(true);
    }

    let probe = HttpModels::new().map_err(OperatorError::Http)?;
    let watched = config.namespace.as_deref().filter(|n| !n.is_empty());
    let controller = Controller::new(&client, watched, pod, probe, &metrics);
    served.syncing(controller.proxies());
    let filled = {
        let served = Arc::clone(&served);
        move || served.acting()
    };
    let hold = async {
        if config.leader_elect {
            candidate.hold().await
        } else {
            std::future::pending().await
        }
    };
    // Not a task of its own: when the lease is lost, the loop is dropped in
    // the same moment, and nothing more is written.
    let ended = tokio::select! {
        ended = controller.run(filled) => ended,
        error = hold => Err(error),
        error = tasks.first_end() => Err(error),
        _ = stop.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if ended.is_ok() && config.leader_elect {
        candidate.release().await;
    }
    Ok(ended?)
}
