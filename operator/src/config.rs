//! The command line and its environment variables.

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
    /// Command to run; `run` by default.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of `run`.
    #[command(flatten)]
    pub run: RunConfig,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reconcile resources.
    Run(RunConfig),
    /// Print the CRD as YAML.
    Crd,
}

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunConfig {
    /// Watch a single namespace instead of all.
    #[arg(long, env = "FASTLLM_OPERATOR_NAMESPACE")]
    pub namespace: Option<String>,
    /// Elect a leader among the replicas; only the leader reconciles.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(
        long,
        env = "FASTLLM_OPERATOR_METRICS_ADDR",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_addr: SocketAddr,
    /// Log level, or a filter such as `info,kube=debug`.
    #[arg(long, env = "FASTLLM_OPERATOR_LOG", default_value = "info", value_parser = parse_filter)]
    pub log: String,
    /// Format of log lines.
    #[arg(long, env = "FASTLLM_OPERATOR_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Name of this pod, used in the Lease and in Events.
    #[arg(long, env = "POD_NAME", default_value = "fastllm-operator")]
    pub pod_name: String,
    /// Namespace of this pod and of the Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "fastllm-system")]
    pub pod_namespace: String,
}

impl RunConfig {
    /// The log filter. The client library logs complete bodies of responses, which
    /// may contain Secrets, so its lines are excluded unless they are requested.
    #[must_use]
    pub fn log_filter(&self) -> String {
        const BODIES: &str = "kube_client::client";
        if self.log.contains(BODIES) {
            return self.log.clone();
        }
        format!("{},{BODIES}=off", self.log)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use fastllm_process::logging::parse_filter;

    use super::{Cli, Command};

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_arguments_of_the_shipped_manifest_are_valid() {
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
    fn run_is_the_default_and_an_invalid_filter_is_rejected() {
        let cli = Cli::try_parse_from(["fastllm-operator", "--leader-elect=false"]).unwrap();
        assert!(cli.command.is_none() && !cli.run.leader_elect);
        assert!(Cli::try_parse_from(["fastllm-operator", "--log", "a=b=c"]).is_err());
    }

    #[test]
    fn bodies_of_responses_are_not_logged_unless_requested() {
        for (log, filter) in [
            ("info", "info,kube_client::client=off"),
            (
                "trace,kube=trace",
                "trace,kube=trace,kube_client::client=off",
            ),
            ("kube_client::client=warn", "kube_client::client=warn"),
        ] {
            let cli = Cli::try_parse_from(["fastllm-operator", "--log", log]).unwrap();
            assert_eq!(cli.run.log_filter(), filter);
            assert!(parse_filter(filter).is_ok());
        }
    }
}
