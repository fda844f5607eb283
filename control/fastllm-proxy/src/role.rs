use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Args, Command, Subcommand, ValueEnum};

/// Which plane this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// The gateway.
    Proxy,
    /// The control plane.
    Control,
}

/// The role that `FASTLLM_ROLE` names.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the configuration module"
)]
pub(crate) fn from_environment() -> Option<OsString> {
    std::env::var_os("FASTLLM_ROLE").filter(|value| !value.is_empty())
}

/// Finds the role and gives the arguments without it (the program's name
/// first). The flag beats the variable, a subcommand is control's, and the
/// default is the gateway.
pub(crate) fn split(
    arguments: impl IntoIterator<Item = OsString>,
    variable: Option<OsString>,
) -> Result<(Role, Vec<OsString>), clap::Error> {
    let mut rest = Vec::new();
    let mut named = None;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "--role" {
            named = Some(arguments.next().ok_or_else(missing)?);
        } else if let Some(value) = text.strip_prefix("--role=") {
            named = Some(OsString::from(value));
        } else {
            rest.push(argument);
        }
    }
    let role = match named.or(variable) {
        Some(name) => parse(&name)?,
        None if names_subcommand(&rest) => Role::Control,
        None if asks_for_help(&rest) => return Err(help()),
        None => Role::Proxy,
    };
    Ok((role, rest))
}

fn names_subcommand(arguments: &[OsString]) -> bool {
    let control = fastllm_control::Command::augment_subcommands(Command::new("control"));
    arguments
        .get(1)
        .and_then(|first| first.to_str())
        .is_some_and(|first| first == "help" || control.find_subcommand(first).is_some())
}

fn asks_for_help(arguments: &[OsString]) -> bool {
    matches!(arguments, [_, only] if only == "--help" || only == "-h")
}

fn parse(name: &OsStr) -> Result<Role, clap::Error> {
    Role::from_str(&name.to_string_lossy(), false).map_err(|_| {
        command().error(
            ErrorKind::InvalidValue,
            format!("no role {}: expected proxy or control", name.display()),
        )
    })
}

fn missing() -> clap::Error {
    command().error(ErrorKind::InvalidValue, "--role wants proxy or control")
}

fn help() -> clap::Error {
    let text = command().render_help();
    command().error(ErrorKind::DisplayHelp, text)
}

fn command() -> Command {
    let gateway = fastllm_gateway::cli::Flags::augment_args(Command::new("fastllm-proxy"));
    fastllm_control::Command::augment_subcommands(gateway)
        .about("FastLLM Proxy: the gateway, or with --role control the control plane")
        .after_help(
            "--role proxy|control chooses the plane (FASTLLM_ROLE; default proxy). \
             `--role control --help` lists the control plane's flags.",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(arguments: &str, variable: Option<&str>) -> Result<(Role, String), clap::Error> {
        let words = arguments.split(' ').map(OsString::from);
        let (role, rest) = split(words, variable.map(OsString::from))?;
        let rest: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
        Ok((role, rest.join(" ")))
    }

    #[test]
    fn the_flag_beats_the_variable_and_the_default_is_the_gateway() {
        for (arguments, variable, role) in [
            ("p --port 1", None, Role::Proxy),
            ("p --port 1", Some("control"), Role::Control),
            ("p --role proxy --port 1", Some("control"), Role::Proxy),
            ("p --role=control --port 1", None, Role::Control),
        ] {
            let expected = (role, "p --port 1".to_owned());
            assert_eq!(split_text(arguments, variable).unwrap(), expected);
        }
    }

    #[test]
    fn a_subcommand_is_the_control_planes() {
        let (role, rest) = split_text("p set-password --name a", None).unwrap();
        assert_eq!(
            (role, rest.as_str()),
            (Role::Control, "p set-password --name a")
        );
    }

    #[test]
    fn what_is_no_role_is_refused_and_help_names_them() {
        for wrong in ["p --role gateway", "p --role"] {
            let error = split_text(wrong, None).unwrap_err();
            assert_eq!(error.exit_code(), 2);
        }
        let help = split_text("p --help", None).unwrap_err();
        assert_eq!(help.exit_code(), 0);
        assert!(help.to_string().contains("--role"));
    }
}
