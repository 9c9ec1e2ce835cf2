//! The `convey` command.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

use std::io::{self, Write};
use std::process::ExitCode;

use convey::app;
use convey_cli::Cli;
use convey_logging::Log;

fn main() -> ExitCode {
    // After an upgrade, the process would otherwise have the name of `/proc/self/exe`.
    let _ = rustix::thread::set_name(c"convey");
    let cli = Cli::read();
    // Drop privileges before any thread starts, because each thread inherits the restrictions.
    let bootstrapped = match app::begin(&cli) {
        Ok(bootstrapped) => bootstrapped,
        Err(why) => {
            let _ = writeln!(io::stderr(), "convey: {why}");
            return ExitCode::FAILURE;
        }
    };
    let log = Log::start(cli.options.log_level);
    let ran = app::run(&cli, bootstrapped, &log);
    let code = ran.unwrap_or_else(|failure| {
        failure.lines(&cli.options).iter().for_each(|line| log.log_exit_reason(line));
        ExitCode::FAILURE
    });
    log.flush();
    code
}
