//! Flags and environment.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The operator of FastLLM Proxy.
#[derive(Debug, Parser)]
#[command(
    name = "fastllm-operator",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// What to do; `run` if nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to run.
    #[command(flatten)]
    pub run: RunConfig,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reconcile resources until told to stop.
    Run(RunConfig),
    /// Print the definition of the resource, to be applied before the first one.
    Crd,
}

/// How to run.
#[derive(Args, Clone, Debug)]
pub struct RunConfig {
    /// Watch one namespace instead of all.
    #[arg(long, env = "FASTLLM_OPERATOR_NAMESPACE")]
    pub namespace: Option<String>,
    /// Let replicas agree on one that acts.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(
        long,
        env = "FASTLLM_OPERATOR_METRICS_ADDR",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_addr: SocketAddr,
    /// Verbosity, or a filter such as `info,kube=debug`.
    #[arg(long, env = "FASTLLM_OPERATOR_LOG", default_value = "info")]
    pub log: String,
    /// How log lines are written.
    #[arg(long, env = "FASTLLM_OPERATOR_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Name of this replica, for the lease and for events.
    #[arg(long, env = "POD_NAME", default_value = "fastllm-operator")]
    pub pod_name: String,
    /// Namespace of this replica, where the lease is.
    #[arg(long, env = "POD_NAMESPACE", default_value = "fastllm-system")]
    pub pod_namespace: String,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For log collectors.
    Json,
}
