//! Connects the crates to a program: commands, and the order in which components start and stop.

mod acme;
mod announce;
mod ask;
mod attachments;
mod balancer;
mod bootstrap;
mod certificates;
mod check;
mod check_thread;
mod clear;
mod clock;
mod confine;
mod control_socket;
mod dispatch_seed;
mod doctor;
mod ecmp;
mod explain;
mod flood;
mod generate;
mod host;
mod limits;
mod logs;
mod memory;
mod neighbours;
mod offload;
mod operators;
mod ownership;
mod packet_path;
mod packet_plan;
mod path_mtus;
mod paths;
mod port_owner;
mod privileges;
mod proxy_path;
mod request_samples;
mod resources;
mod restart;
mod route_check;
mod server_sources;
mod service_manager;
mod serving;
mod show;
mod signals;
mod snat_ports;
mod snat_watch;
mod socket_owner;
mod socket_store;
mod sources;
mod stale_addresses;
mod stale_filters;
mod state_folder;
mod statistics;
mod top;
mod trace;
mod upgrade;
mod vip_prober;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::Runtime;

use self::ask::{OutputFormat, StatusPart};
use self::bootstrap::Bootstrap;
use self::show::Show;
use self::signals::ControlRuntime;

use convey_cli::operator::Wanted;
use convey_cli::{Cli, Command, Generated, HOST_CONFIG, Options, StatusArgs};
use convey_config::LoadError;
use convey_control::ConfigFile;
use convey_demo::PacketDemo;
use convey_logging::Log;
use convey_model::Mode;

/// Result of the steps that convey takes while the process has one thread.
pub struct Bootstrapped(Option<Bootstrap>);

/// Loads the file and drops privileges if a balancer is to start. Must be called while the process
/// has one thread.
///
/// # Errors
/// This process cannot become the configured user, or the process that it is to replace in an
/// upgrade is incompatible: operator-facing message.
pub fn begin(cli: &Cli) -> Result<Bootstrapped, String> {
    convey_heap::begin();
    convey_config::lower_rights().map_err(|error| format!("cannot lower CAP_DAC_READ_SEARCH: {error}"))?;
    match cli.command {
        None => {
            let source = sources::of(&cli.options, &cli.options.state_dir);
            Bootstrap::begin(file(&cli.options), source, cli.options.socket.as_deref())
                .map(Some)
                .map(Bootstrapped)
        }
        // Other commands keep their privileges: they serve only the user who started them, and the
        // demo creates namespaces.
        Some(_) => Ok(Bootstrapped(None)),
    }
}

/// Runs the command that the command line selects.
///
/// # Errors
/// The configuration cannot be used, or the start failed.
pub fn run(cli: &Cli, Bootstrapped(bootstrap): Bootstrapped, log: &Log) -> Result<ExitCode, Failure> {
    let code = carry_out(cli, Bootstrapped(bootstrap), log)?;
    match PRINT_ERROR.lock().ok().and_then(|mut error| error.take()) {
        // For a balancer, which has served clients despite the error, the exit code stays as it is.
        Some(error) if !matches!(cli.command, None | Some(Command::Demo { .. })) => {
            Err(anyhow::Error::new(error).context("cannot print").into())
        }
        _ => Ok(code),
    }
}

fn carry_out(cli: &Cli, Bootstrapped(bootstrap): Bootstrapped, log: &Log) -> Result<ExitCode, Failure> {
    match &cli.command {
        None => {
            let bootstrap = match bootstrap {
                Some(bootstrap) => bootstrap,
                None => Bootstrap::unconfined(ControlRuntime::new()?, file(&cli.options)),
            };
            balancer::run(bootstrap, &Show::Nothing, log)
        }
        Some(Command::Check { syntax }) => {
            let checked = check::Checked::of(&cli.options)?;
            if *syntax { checked.syntax() } else { checked.run(cli.options.socket.as_deref()) }
        }
        Some(Command::Demo { ecmp: true }) => ecmp::run(cli.options.mode().unwrap_or(Mode::Dsr)),
        Some(Command::Demo { ecmp: false }) => try_out(&cli.options, log),
        Some(Command::Clear { addresses }) => clear::run(*addresses),
        Some(Command::Status(StatusArgs { filter, json, events })) => {
            let part = if *events { StatusPart::Events } else { StatusPart::Screen };
            let format = if *json { OutputFormat::Json } else { OutputFormat::Text };
            ask::status(&cli.options, filter, part, format)
        }
        Some(Command::Top(args)) => top::run(&cli.options, args),
        Some(Command::Flows(args)) => ask::flows(&cli.options, args),
        Some(Command::Server(server)) => ask::steer(&cli.options, &server.change(), server.patience()),
        Some(Command::Backend(backend)) => ask::steer(&cli.options, &backend.change(), backend.patience()),
        Some(Command::Route(route)) => ask::steer(&cli.options, &route.change(), None),
        Some(Command::Maintenance(maintenance)) => {
            let change = maintenance.change().map_err(|why| Failure::Start(anyhow::anyhow!("{why}")))?;
            ask::steer(&cli.options, &change, None)
        }
        Some(Command::Reset { target }) => {
            ask::steer(&cli.options, &Wanted::Reset(target.clone()).into(), None)
        }
        Some(Command::Explain { client, frontend, url, method, headers, json }) => {
            let request = url.clone().map(|url| url.with(method.as_deref(), headers.clone()));
            let request = request.transpose().map_err(|why| Failure::Start(anyhow::anyhow!("{why}")))?;
            explain::run(&cli.options, *client, frontend, request.as_ref(), *json)
        }
        Some(Command::Doctor { json, server }) => doctor::run(&cli.options, *json, *server),
        Some(Command::Trace(args)) => trace::run(&cli.options, args),
        Some(Command::LogLevel { level, reset }) => {
            let show = if *reset { Wanted::ResetLogLevel } else { Wanted::ShowLogLevel };
            ask::steer(&cli.options, &level.map_or(show, Wanted::LogLevel).into(), None)
        }
        Some(Command::Reload) => ask::steer(&cli.options, &Wanted::Reload.into(), None),
        Some(Command::Generate { kind }) => generated(*kind),
        Some(Command::Upgrade) => {
            let is_named = !cli.options.names_no_file();
            upgrade::run(&file(&cli.options), is_named, cli.options.socket.as_deref())
        }
    }
}

/// Reason why a command failed.
pub enum Failure {
    /// Problems in the configuration, one per line.
    Config(LoadError),
    /// The start failed.
    Start(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Start(error)
    }
}

impl Display for Failure {
    /// Formats the failure in one line.
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
    /// Returns the lines for standard error, including hints that depend on the options.
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

/// The configuration file that the command line selects.
fn file(options: &Options) -> ConfigFile {
    ConfigFile { mode: options.mode(), ..sources::of(options, &options.state_dir).file() }
}

fn generated(kind: Generated) -> Result<ExitCode, Failure> {
    print_bytes(&generate::generated(kind).context("cannot generate the output")?);
    Ok(ExitCode::SUCCESS)
}

fn try_out(options: &Options, log: &Log) -> Result<ExitCode, Failure> {
    let (runtime, socket) = (ControlRuntime::new()?, options.socket.as_deref());
    if let Some(mode) = options.mode().filter(|mode| mode.forwards_packets()) {
        let demo = PacketDemo::new(mode).context("cannot start the demo")?;
        let file = ConfigFile { mode: Some(mode), ..ConfigFile::new(demo.path()) };
        return balancer::run(Bootstrap::shown(runtime, file, socket), &Show::Lab(demo.clone()), log);
    }
    if !options.names_no_file() {
        let file = ConfigFile { mode: None, ..file(options) };
        return balancer::run(Bootstrap::shown(runtime, file, socket), &Show::Servers, log);
    }
    let sample = convey_demo::Sample::new().context("cannot write the sample configuration")?;
    let path = sample.path();
    print(&format!("the demo's configuration, for you to edit: {}\n\n", path.display()));
    balancer::run(Bootstrap::shown(runtime, ConfigFile::new(path), socket), &Show::Servers, log)
}

/// Single-threaded runtime of the control path.
fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn cores() -> usize {
    available_parallelism().map_or(1, |cores| cores.get())
}

/// First error while printing to standard output.
static PRINT_ERROR: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints to standard output. Ignores the error if a reader such as `head` has closed the output.
/// [`run`] reports other errors when the command ends.
fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Prints to standard error. Ignores errors, because standard error may be full or closed.
fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn print_bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let printed = out.write_all(bytes).and_then(|()| out.flush());
    if let Err(error) = printed
        && error.kind() != io::ErrorKind::BrokenPipe
        && let Ok(mut first) = PRINT_ERROR.lock()
    {
        first.get_or_insert(error);
    }
}
