//! Wires everything: what a command does, in which order things start and stop.

mod balancer;
mod claims;
mod clock;
mod coverage;
mod flood;
mod host;
mod left_over;
mod limits;
mod offload;
mod packet_path;
mod packet_plan;
mod paths;
mod privileges;
mod proxy_path;
mod restart;
mod show;
mod signals;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::Runtime;

use self::host::Kernel;
use self::show::Show;

use crate::cli::{Cli, Command, Options};
use crate::config::{self, LoadError};
use crate::control::File;
use crate::demo::{self, PacketDemo};
use crate::model::Mode;

/// Carries out the command line.
pub fn run(cli: &Cli) -> ExitCode {
    let done = match cli.command {
        None => balance(&cli.options),
        Some(Command::Check) => check(&cli.options),
        Some(Command::Demo) => try_out(&cli.options),
    };
    done.unwrap_or_else(|failure| failure.report())
}

/// Why a command could not be carried out.
enum Failure {
    /// What is wrong with the configuration, a line each.
    Config(LoadError),
    /// Start-up failed.
    Start(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Start(error)
    }
}

impl Failure {
    fn report(&self) -> ExitCode {
        match self {
            Failure::Config(LoadError::Invalid(problems)) => {
                problems.iter().for_each(|problem| eprintln!("error: {problem}"));
                let count = problems.len();
                eprintln!("convey: {count} error{} in the configuration", if count == 1 { "" } else { "s" });
                ExitCode::from(1)
            }
            Failure::Config(unreadable) => {
                eprintln!("convey: {unreadable}");
                eprintln!("Name a file with --config, or try `convey demo`.");
                ExitCode::from(1)
            }
            Failure::Start(error) => {
                eprintln!("convey: {error:#}");
                ExitCode::from(1)
            }
        }
    }
}

fn balance(options: &Options) -> Result<ExitCode, Failure> {
    balancer::run(options.config(), options.mode(), &Show::Nothing)
}

fn check(options: &Options) -> Result<ExitCode, Failure> {
    let file = File { path: options.config().to_owned(), mode: options.mode() };
    let runtime = runtime()?;
    let (loaded, kernel) = runtime.block_on(host::load(&file))?;
    loaded.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    if let Some(Kernel { netlink, table, .. }) = &kernel {
        let left = runtime.block_on(left_over::describe(netlink, &table.interfaces));
        left.iter().for_each(|line| eprintln!("warning: {line}"));
    }
    let config = match kernel {
        Some(kernel) => packet_plan::resolve(loaded.config, &kernel.network, cores())?,
        None => loaded.config,
    };
    print(&format!("{} is valid; it would run:\n\n", options.config().display()));
    print(&config::describe(&config));
    Ok(ExitCode::SUCCESS)
}

fn try_out(options: &Options) -> Result<ExitCode, Failure> {
    if let Some(mode) = options.mode().filter(|mode| *mode != Mode::Proxy) {
        let demo = PacketDemo::new(mode).context("no demo")?;
        return balancer::run(&demo.path(), Some(mode), &Show::Lab(demo.clone()));
    }
    if !options.has_no_file() {
        return balancer::run(options.config(), None, &Show::Servers);
    }
    let sample = demo::Sample::new().context("cannot write the sample configuration")?;
    let (missing, path) = (options.config().display(), sample.path());
    print(&format!("there is no {missing} here; this is the sample: {}\n\n", path.display()));
    balancer::run(&path, None, &Show::Servers)
}

/// Where the control path runs: one thread.
fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn cores() -> usize {
    available_parallelism().map_or(1, |cores| cores.get())
}

/// To standard output; whether anybody still reads it is not our business.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}
