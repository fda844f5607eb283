//! `fastllm-tidy modules CRATE_FOLDER` lists the imports between the top
//! modules of a crate, and the cycles among them. `fastllm-tidy words FOLDER`
//! lists the uses of words that the vocabulary replaces.

use std::io::{self, Write};
use std::process::ExitCode;

use fastllm_tidy::{Tree, list_modules, list_words};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, folder] = &arguments[..] else {
        return usage();
    };
    let text = match command.as_str() {
        "modules" => list_modules(&Tree::root_of_this_checkout()?, folder)?,
        "words" => list_words(&Tree::of_this_checkout()?, folder),
        _ => return usage(),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> io::Result<ExitCode> {
    writeln!(
        io::stderr(),
        "usage: fastllm-tidy modules CRATE_FOLDER | words FOLDER"
    )?;
    Ok(ExitCode::from(2))
}
