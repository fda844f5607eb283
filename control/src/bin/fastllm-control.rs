//! The control plane's own binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    fastllm_control::cli::main(std::env::args_os())
}
