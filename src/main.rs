//! The `convey` command.

use std::process::ExitCode;

use clap::Parser;
use convey::app;
use convey::cli::Cli;
use convey::logging::Log;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = Log::start();
    let ran = app::run(&cli);
    // What led to a failure stands before it.
    log.flush();
    ran.unwrap_or_else(|failure| failure.report())
}
