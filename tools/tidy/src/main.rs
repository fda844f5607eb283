//! `fastllm-tidy modules CRATE_FOLDER` lists the imports between the top
//! modules of a crate, and the cycles among them.

use std::io::{self, Write};
use std::process::ExitCode;

use fastllm_tidy::{Tree, list_modules};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, folder] = &arguments[..] else {
        return usage();
    };
    if command != "modules" {
        return usage();
    }
    let text = list_modules(&Tree::root_of_this_checkout()?, folder)?;
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> io::Result<ExitCode> {
    writeln!(io::stderr(), "usage: fastllm-tidy modules CRATE_FOLDER")?;
    Ok(ExitCode::from(2))
}
