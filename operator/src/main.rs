//! The `fastllm-operator` program.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use fastllm_operator::client;
use fastllm_operator::config::{Cli, Command, RunConfig};
use fastllm_operator::controller::{self, Controller};
use fastllm_operator::error::OperatorError;
use fastllm_operator::lease::{self, Candidate};
use fastllm_operator::metrics::Metrics;
use fastllm_operator::observe::HttpPlaneProbe;
use fastllm_operator::serve::{self, Leader, ServerState};
use fastllm_operator::tasks::Tasks;
use fastllm_process::{logging, signals};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Crd) => print_crd(),
        Some(Command::Run(config)) => start(&config),
        None => start(&cli.run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "exiting");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the CRD is the output")]
fn print_crd() -> anyhow::Result<()> {
    print!("{}", fastllm_crds::crd_yaml()?);
    Ok(())
}

fn start(config: &RunConfig) -> anyhow::Result<()> {
    let logging = logging::Config {
        format: config.log_format,
        flatten_fields: false,
        include_spans: true,
        preformatted_target: None,
    };
    logging.init(&config.log_filter())?;
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(run(config))
}

async fn run(config: &RunConfig) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, pod = config.pod_name, "starting");
    let client = client::connect()
        .await
        .context("cannot configure the Kubernetes client")?;
    let metrics = Arc::new(Metrics::new()?);
    let state = Arc::new(ServerState::new(Arc::clone(&metrics)));
    let mut tasks = Tasks::default();
    let listener = serve::bind(config.metrics_addr)?;
    tasks.spawn(
        "the HTTP listener",
        serve::serve(listener, Arc::clone(&state)),
    );

    let mut shutdown = pin!(signals::shutdown()?);
    let lease = lease::Config {
        namespace: &config.pod_namespace,
        pod: &config.pod_name,
    };
    let mut candidate = Candidate::new(lease, client.clone(), Arc::clone(&metrics));
    if config.leader_elect {
        tokio::select! {
            () = candidate.acquire() => {}
            error = tasks.first_end() => return Err(error.into()),
            () = &mut shutdown => return Ok(()),
        }
    } else {
        metrics.set_leader(true);
    }

    let probe = HttpPlaneProbe::new().map_err(OperatorError::Http)?;
    let controller = controller::Config {
        namespace: config.namespace.as_deref().filter(|n| !n.is_empty()),
        instance: &config.pod_name,
    };
    let controller = Controller::new(controller, &client, probe, &metrics);
    let leader = Leader {
        proxies: controller.proxies(),
        health: controller.health(),
        definition: controller.definition(),
    };
    state.set_syncing(leader.clone());
    let on_synced = || state.set_leading(leader);
    let hold = async {
        if config.leader_elect {
            candidate.hold().await
        } else {
            std::future::pending().await
        }
    };
    // Not a task of its own: when the lease is lost, the controller is dropped
    // immediately and writes nothing more.
    let ended = tokio::select! {
        ended = controller.run(on_synced) => ended,
        error = hold => Err(error),
        error = tasks.first_end() => Err(error),
        () = &mut shutdown => Ok(()),
    };
    if ended.is_ok() && config.leader_elect {
        candidate.release().await;
    }
    Ok(ended?)
}
