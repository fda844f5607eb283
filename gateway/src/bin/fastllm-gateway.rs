//! The slim binary of the data plane.

use std::process::ExitCode;

fn main() -> ExitCode {
    fastllm_gateway::cli::main(std::env::args_os())
}
