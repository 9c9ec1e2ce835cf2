//! Wires everything: what a command does, in which order things start and stop.

mod attachments;
mod balancer;
mod check;
mod clear;
mod clock;
mod confine;
mod flood;
mod generate;
mod host;
mod limits;
mod logs;
mod neighbours;
mod offload;
mod ownership;
mod packet_path;
mod packet_plan;
mod paths;
mod port_owner;
mod privileges;
mod proxy_path;
mod restart;
mod service_manager;
mod show;
mod signals;
mod snat_ports;
mod stale_filters;
mod statistics;
mod upgrade;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::Runtime;

pub use self::confine::Confined;
use self::show::Show;

use crate::cli::{Cli, Command, Generated, HOST_CONFIG, Options};
use crate::config::watch::Lists;
use crate::config::{List, LoadError};
use crate::control::File;
use crate::demo::{self, PacketDemo};
use crate::logging::Log;

/// Gives up what the file says, if a balancer is to start. To be called while the process has one thread.
///
/// # Errors
/// The user that the file names cannot be had: words for an operator.
pub fn confine(cli: &Cli) -> Result<Confined, String> {
    match cli.command {
        None => Confined::by(&file(&cli.options)),
        // They serve nobody but who has started them; the demo makes namespaces.
        Some(_) => Ok(Confined::default()),
    }
}

/// Carries out the command line.
///
/// # Errors
/// If the configuration cannot be used, or start-up failed.
pub fn run(cli: &Cli, confined: &Confined, log: &Log) -> Result<ExitCode, Failure> {
    match cli.command {
        None => balancer::run(file(&cli.options), &Show::Nothing, confined, log),
        Some(Command::Check { syntax: false }) => check::run(&file(&cli.options)),
        Some(Command::Check { syntax: true }) => check::syntax(&file(&cli.options)),
        Some(Command::Demo) => try_out(&cli.options, log),
        Some(Command::Clear) => clear::run(),
        Some(Command::Generate { kind }) => generated(kind),
        Some(Command::Upgrade) => upgrade::run(&file(&cli.options)),
    }
}

/// Why a command could not be carried out.
pub enum Failure {
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

impl std::fmt::Display for Failure {
    /// In one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Config(LoadError::Invalid(problems)) => {
                let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                f.write_str(&problems.join("; "))
            }
            Failure::Config(unreadable) => unreadable.fmt(f),
            Failure::Start(error) => write!(f, "{error:#}"),
        }
    }
}

impl Failure {
    /// What to tell whoever has started this with these options.
    pub fn lines(&self, options: &Options) -> Vec<String> {
        match self {
            Failure::Config(LoadError::Invalid(problems)) => {
                let count = problems.len();
                let errors = if count == 1 { "error" } else { "errors" };
                let problems = problems.iter().map(|problem| format!("error: {problem}"));
                problems.chain([format!("convey: {count} {errors} in the configuration")]).collect()
            }
            Failure::Config(unreadable) => {
                let says = format!("convey: {unreadable}");
                if !is_missing(unreadable) || options.servers.is_some() {
                    return vec![says];
                }
                let neither = options.names_no_file().then(|| format!("There is no {HOST_CONFIG} either."));
                let hint =
                    "Name a file with --config, a list of servers with --servers, or try `convey demo`.";
                [says].into_iter().chain(neither).chain([hint.to_owned()]).collect()
            }
            Failure::Start(error) => vec![format!("convey: {error:#}")],
        }
    }
}

fn is_missing(error: &LoadError) -> bool {
    matches!(error, LoadError::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// What the command line names: a configuration, or a list of servers.
fn file(options: &Options) -> File {
    let path = options.servers.as_deref().unwrap_or(options.config()).to_owned();
    let list = options.listen.map(|listen| List { listen, stats: options.stats });
    File { path, list, mode: options.mode(), lists: Lists::default() }
}

fn generated(kind: Generated) -> Result<ExitCode, Failure> {
    match generate::print(kind) {
        // The reader, such as `head`, has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot print").into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn try_out(options: &Options, log: &Log) -> Result<ExitCode, Failure> {
    if let Some(mode) = options.mode().filter(|mode| mode.forwards_packets()) {
        let demo = PacketDemo::new(mode).context("no demo")?;
        let file = File { path: demo.path(), list: None, mode: Some(mode), lists: Lists::default() };
        return balancer::run(file, &Show::Lab(demo.clone()), &Confined::default(), log);
    }
    if !options.names_no_file() {
        return balancer::run(
            File { mode: None, ..file(options) },
            &Show::Servers,
            &Confined::default(),
            log,
        );
    }
    let sample = demo::Sample::new().context("cannot write the sample configuration")?;
    let path = sample.path();
    print(&format!("the demo's configuration, to be edited: {}\n\n", path.display()));
    let file = File { path, list: None, mode: None, lists: Lists::default() };
    balancer::run(file, &Show::Servers, &Confined::default(), log)
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
