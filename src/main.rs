//! The `convey` command.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use convey::app;
use convey::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    app::run(&cli)
}

/// One line an event: time, level, text. `RUST_LOG` chooses what is shown.
fn start_log() {
    // The demo's live line may stand where the event goes.
    let clear = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format(move |buffer, record| {
            let level = record.level();
            let style = buffer.default_level_style(level);
            let time = buffer.timestamp_millis();
            writeln!(buffer, "{clear}{time} {style}{level:<5}{style:#} {}", record.args())
        })
        .init();
}
