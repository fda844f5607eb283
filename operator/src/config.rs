//! Flags and environment.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};
use fastllm_process::logging::{LogFormat, parse_filter};

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
    #[arg(long, env = "FASTLLM_OPERATOR_LOG", default_value = "info", value_parser = parse_filter)]
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::{Cli, Command};

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_shipped_manifest_can_be_started() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../config/operator/deployment.yaml"
        );
        let manifest = std::fs::read_to_string(path).unwrap();
        let manifest: serde_yaml_ng::Value = serde_yaml_ng::from_str(&manifest).unwrap();
        let args = &manifest["spec"]["template"]["spec"]["containers"][0]["args"];
        let args = args
            .as_sequence()
            .unwrap()
            .iter()
            .map(|a| a.as_str().unwrap());
        let cli = Cli::try_parse_from(["fastllm-operator"].into_iter().chain(args)).unwrap();
        let Some(Command::Run(config)) = cli.command else {
            panic!("the manifest does not run the operator")
        };
        assert!(config.leader_elect);
        assert_eq!(config.metrics_addr.port(), 8080);
    }

    #[test]
    fn nothing_said_means_run_and_a_wrong_filter_is_refused() {
        let cli = Cli::try_parse_from(["fastllm-operator", "--leader-elect=false"]).unwrap();
        assert!(cli.command.is_none() && !cli.run.leader_elect);
        assert!(Cli::try_parse_from(["fastllm-operator", "--log", "a=b=c"]).is_err());
    }
}
