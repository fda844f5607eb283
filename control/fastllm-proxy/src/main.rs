//! The whole product in one binary: `--role` chooses the plane, everything
//! else on the command line is the plane's own. Subcommands are control's.

mod role;

use std::process::ExitCode;

use role::Role;

fn main() -> ExitCode {
    let variable = role::from_environment();
    match role::split(std::env::args_os(), variable) {
        Ok((Role::Proxy, arguments)) => fastllm_gateway::cli::main(arguments),
        Ok((Role::Control, arguments)) => fastllm_control::cli::main(arguments),
        Err(error) => error.exit(),
    }
}
