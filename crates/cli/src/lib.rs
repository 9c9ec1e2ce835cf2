//! Command line of convey. [`operator`] has the commands that query or change the running convey
//! through its control socket.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod definition;
mod duration;
mod flows;
mod maintenance;
mod operate;
pub mod operator;
mod options;
mod service;
mod status;
mod top;
mod trace;

use std::io::{self, Write};
use std::process::exit;

use clap::error::{ContextKind, ErrorKind};
use clap::{Parser, Subcommand, ValueEnum};
use convey_config::LogLevel;
use convey_explain::{AskedRequest, ClientAddr};
use convey_model::Target;

pub use self::flows::{FlowsArgs, FlowsCommand};
pub use self::maintenance::{MaintainedObject, MaintenanceCommand};
pub use self::operate::{BackendCommand, RouteCommand, ServerCommand};
pub use self::options::{ConfigOrigin, HOST_CONFIG, Options};
pub use self::service::Service;
pub use self::status::{ServerState, StatusArgs, StatusFilter};
pub use self::top::TopArgs;
pub use self::trace::TraceArgs;

/// A load balancer for TCP, UDP and HTTP: one binary, one file, every way to forward.
#[derive(Debug, Parser)]
#[command(
    name = "convey",
    version,
    about = "A load balancer for TCP, UDP and HTTP: one binary, one file, every way to forward.",
    long_about = "A load balancer for TCP, UDP and HTTP: one binary, one file, every way to forward.\n\n\
        Without a command, convey runs the balancer that the configuration file describes. With --listen and \
        --servers it needs no such file, only a list of servers. Saving the file reloads it; a reload never cuts \
        established connections.",
    after_help = after_help(),
    args_conflicts_with_subcommands = false
)]
pub struct Cli {
    /// The command; without one, convey runs the balancer.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of every command.
    #[command(flatten)]
    pub options: Options,
}

impl Cli {
    /// Parses the command line of this process. Exits if it is invalid, or requests help.
    pub fn read() -> Cli {
        let error = match Cli::parsed(std::env::args_os()) {
            Ok(cli) => return cli,
            Err(error) => without_usage(error),
        };
        match error.print() {
            Err(failed) if failed.kind() != io::ErrorKind::BrokenPipe => {
                // Writing to standard error may fail, too.
                let _ = writeln!(io::stderr(), "convey: cannot print: {failed}");
                exit(1)
            }
            _ => exit(error.exit_code()),
        }
    }
}

/// Removes clap's usage line from errors about missing or conflicting options, because the line
/// would show only some of the options.
fn without_usage(mut error: clap::Error) -> clap::Error {
    let contradicts =
        [ErrorKind::ArgumentConflict, ErrorKind::MissingRequiredArgument, ErrorKind::UnknownArgument];
    if contradicts.contains(&error.kind()) {
        error.remove(ContextKind::Usage);
    }
    error
}

/// A command other than running the balancer.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Test whether convey would start here and now, and print the effective configuration
    ///
    /// Tests addresses, ports, privileges, descriptors and offload, as a start does. Exit code 0
    /// means that convey would start. The ports of a running convey count as taken.
    Check {
        /// Test only the configuration and the files that it names, such as keys and lists, but not
        /// this host. Use it for the files of another host, or while convey runs
        #[arg(long)]
        syntax: bool,
    },
    /// Run the balancer with small HTTP servers behind it, to try it out
    ///
    /// Without --config it writes its own configuration, and prints the path, so that you can edit
    /// it.
    Demo {
        /// Show ECMP instead: four balancers announce one address to a router by BGP, and are
        /// killed and restarted in turn
        ///
        /// Uses mode dsr, or passthrough with --passthrough. Needs root and BIRD 2 (Debian package
        /// bird2).
        #[arg(long)]
        ecmp: bool,
    },
    /// Remove leftovers of a convey process that has ended on this host
    ///
    /// Leftovers are the guard of dsr mode (it stays for some minutes, so that the host does not
    /// reset connections), the announced addresses of a killed process, and, before Linux 6.6, its
    /// filters. The command removes nothing that belongs to a running convey.
    Clear {
        /// Remove only addresses, and leave the guard
        #[arg(long)]
        addresses: bool,
    },
    /// Replace the running convey with a new process of the installed program, without cutting
    /// connections
    ///
    /// The new process reads the configuration and takes over the listening sockets; the old one
    /// lets its connections finish. If the new one cannot start, the old one continues, and the
    /// command prints why. Only root and convey's own user may upgrade. With several processes in a
    /// network namespace, --socket or --config selects one. A demo cannot be upgraded.
    Upgrade,
    /// Show the status of the running convey on one screen
    ///
    /// Exit code 0 means that convey is ready (/readyz), 3 that it is not ready or that a frontend
    /// has no valid certificate, and 1 that no convey answers.
    Status(StatusArgs),
    /// Show live rates per second of the running convey: new connections, bytes, latency, servers,
    /// drops
    ///
    /// Keys: q quits, s or an arrow sorts by another column, r reverses, / filters, p pauses, ?
    /// shows help. It continues through upgrades and restarts of convey. NO_COLOR=1 turns colors
    /// off.
    Top(TopArgs),
    /// List connections, UDP sessions and packet flows of the running convey, count them, or end
    /// one
    ///
    /// Flows begin and end while convey makes the list. The list contains a flow that exists the
    /// whole time exactly once.
    Flows(Box<FlowsArgs>),
    /// Drain, remove or add a server of the running convey, or change its weight
    ///
    /// The change overrides the file, through reloads and upgrades, until `convey reset` or the end
    /// of convey.
    #[command(subcommand)]
    Server(ServerCommand),
    /// Drain all servers of a backend of the running convey, put them into maintenance, or back
    /// into rotation
    ///
    /// A change of one server takes precedence over a change of its backend.
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Change the shares of requests that the backends of a route get (mode http)
    ///
    /// The change overrides the file, through reloads and upgrades, until `convey route reset`,
    /// `convey reset` or the end of convey.
    #[command(subcommand)]
    Route(RouteCommand),
    /// Answer the requests of a frontend, a route or a backend with a page for a while (mode http)
    ///
    /// The page lasts through reloads and upgrades, until `maintenance off`, `convey reset`
    /// or the end of convey. `convey server maint` and `convey backend maint` differ: they take
    /// servers out of rotation, so that convey may withdraw an announced address.
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Undo the changes of servers and backends, or of everything, so that the file applies again
    Reset {
        /// A backend with its servers, or one server [default: everything]
        #[arg(value_name = "BACKEND[/SERVER]", value_parser = operate::target)]
        target: Option<Target>,
    },
    /// Print or change the log level of the running convey
    ///
    /// The level overrides --log-level, RUST_LOG and log.level, through reloads and upgrades, until
    /// --reset, `convey reset` or the end of convey.
    LogLevel {
        /// Minimum level to log; without it, convey prints the current level
        #[arg(value_name = "LEVEL", ignore_case = true, value_parser = options::log_level())]
        level: Option<LogLevel>,
        /// Use the level of the command line, RUST_LOG and the file again
        #[arg(long, conflicts_with = "level")]
        reset: bool,
    },
    /// Make the running convey read its file again, and print the changes or why it refused the
    /// file
    Reload,
    /// Show live events of connections and packets: the received packet, the decision and its
    /// reason, the sent packet
    ///
    /// Without options it shows everything, at most 1,000 events a second. Traced packets pass
    /// through convey's workers, even if the kernel would forward them otherwise. So select a
    /// client, a frontend or a server on a busy balancer.
    Trace(TraceArgs),
    /// Show which server a client gets, and why: access lists, limits, hash and position in the
    /// table, weights and health of all servers, SNAT address, next hop and offload
    ///
    /// It queries the running convey. With --config, or a list of servers, it uses that file and
    /// assumes a fresh start: all servers are up, and no client is connected. Exit code 0 means
    /// that the client gets a server, 3 that the client is refused or waits.
    Explain {
        /// The client; the port may be left out if the choice does not depend on it
        #[arg(value_name = "CLIENT[:PORT]")]
        client: ClientAddr,
        /// A frontend by its name, with a port if it has several, or by an address that it listens
        /// on
        #[arg(value_name = "FRONTEND[:PORT]|ADDRESS")]
        frontend: String,
        /// URL of the request: its route determines the backend. In proxy mode only the host
        /// matters, as the TLS server name
        url: Option<AskedRequest>,
        /// Method of the request
        #[arg(short = 'X', long, value_name = "METHOD", requires = "url")]
        method: Option<String>,
        /// Header of the request, such as 'X-Canary: always'; may be repeated
        #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "url")]
        headers: Vec<String>,
        /// Print the response of the control API
        #[arg(long)]
        json: bool,
    },
    /// Check this host for faults that block traffic, and print the cause and a command that fixes
    /// each
    ///
    /// Exit code 0 means no findings, 3 findings, and 1 that the host could not be checked.
    Doctor {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
        /// Check this host as a server for direct server return with this VIP; with a port, also
        /// check the service there
        #[arg(long, value_name = "VIP[:PORT]")]
        server: Option<Service>,
    },
    /// Print the manual page or the completions of a shell
    ///
    /// For example `convey generate complete-bash > /etc/bash_completion.d/convey`. The Debian
    /// package has all of them.
    Generate {
        /// Output to generate
        #[arg(value_name = "KIND")]
        kind: Generated,
    },
}

/// Files generated from the definition of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// The manual page, convey(8)
    Man,
    /// Completions for bash
    CompleteBash,
    /// Completions for fish
    CompleteFish,
    /// Completions for zsh
    CompleteZsh,
}

/// Section of the help and of the manual page: a title, and terms with their meaning.
pub type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// Sections of `--help` below the options.
pub const SECTIONS: [Section; 4] = [
    (
        "Files",
        &[
            (HOST_CONFIG, "the configuration, unless --config names another"),
            ("./config.toml", "the configuration, if there is no file of that name in /etc/convey"),
            (
                "/run/convey",
                "the control socket, and a list of the ports that a running convey has reserved (packet modes)",
            ),
        ],
    ),
    (
        "Signals",
        &[
            (
                "SIGTERM, SIGQUIT, Ctrl-C",
                "stop accepting, let connections finish (timeouts.drain), exit; a second signal: exit immediately",
            ),
            ("SIGHUP", "read the configuration file, or the list of servers, again"),
            ("SIGUSR1", "reopen the log files (logrotate)"),
            ("SIGUSR2", "upgrade to a new process, like `convey upgrade`"),
        ],
    ),
    (
        "Environment",
        &[
            (
                "RUST_LOG",
                "log level, overrides log.level: error, warn, info, debug or trace; or of one module: convey_proxy=debug",
            ),
            ("CONVEY_SOCKET", "the control socket, unless --socket names another"),
        ],
    ),
    (
        "Exit codes",
        &[
            ("0", "clean stop"),
            (
                "1",
                "the configuration is invalid, start-up failed, something could not be removed, the upgrade failed, or \
                 the running convey refused a request or does not answer",
            ),
            ("2", "wrong usage"),
            (
                "3",
                "status: a frontend cannot serve its clients; explain: the client gets no server now; doctor: findings",
            ),
            ("128 + N", "ended immediately by a second signal N; top: ended by signal N"),
        ],
    ),
];

fn after_help() -> String {
    let mut help = String::new();
    for (title, terms) in SECTIONS {
        let width = terms.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
        let lines: String = terms.iter().map(|(term, means)| format!("  {term:width$}  {means}\n")).collect();
        help += &format!("{title}:\n{lines}\n");
    }
    help + "Try it: convey demo"
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use convey_model::Mode;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_after_the_command() {
        for line in ["convey check --config a.toml -d", "convey --config a.toml -d check"] {
            let cli = parse(line).unwrap();
            assert_eq!(cli.command, Some(Command::Check { syntax: false }));
            assert_eq!(cli.options.origin(), ConfigOrigin::File(Path::new("a.toml")));
            assert_eq!(cli.options.mode(), Some(Mode::Dsr));
        }
    }

    #[test]
    fn clear_command_takes_an_addresses_flag() {
        assert_eq!(parse("convey clear").unwrap().command, Some(Command::Clear { addresses: false }));
        let addresses = parse("convey clear --addresses").unwrap().command;
        assert_eq!(addresses, Some(Command::Clear { addresses: true }));
    }

    #[test]
    fn the_original_spelling_still_works() {
        assert_eq!(
            parse("convey --config=x.toml").unwrap().options.origin(),
            ConfigOrigin::File(Path::new("x.toml"))
        );
        assert_eq!(parse("convey -p").unwrap().options.mode(), Some(Mode::Passthrough));
    }

    #[test]
    fn a_list_of_servers_takes_the_place_of_a_file() {
        let options = |line| parse(line).unwrap().options;
        let listen = |line| options(line).listen.unwrap().to_string();
        assert_eq!(listen("convey --listen 7777 --servers hosts.txt"), "0.0.0.0:7777");
        assert_eq!(listen("convey --listen [::]:7777 --servers hosts.txt"), "[::]:7777");
        assert_eq!(listen("convey check -l 10.0.0.1:80 -s hosts.txt"), "10.0.0.1:80");
        assert_eq!(options("convey -l 1 -s x").stats.to_string(), "127.0.0.1:7000");
        assert_eq!(options("convey -l 1 -s x --stats 7001").stats.to_string(), "127.0.0.1:7001");
    }

    #[test]
    fn incomplete_server_list_or_list_with_a_file_is_a_usage_error() {
        for line in [
            "convey --listen 7777",
            "convey --servers hosts.txt",
            "convey --stats 7001",
            "convey --config a.toml --listen 7777 --servers hosts.txt",
            "convey --listen 0 --servers hosts.txt",
            "convey --listen localhost:80 --servers hosts.txt",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn usage_line_is_left_out_where_it_contradicts_the_error() {
        for (line, told) in [
            ("convey -c a.toml -l 1 -s x", "cannot be used with"),
            ("convey --servers hosts.txt", "were not provided"),
            ("convey --confg x", "a similar argument exists: '--config'"),
        ] {
            let error = without_usage(parse(line).unwrap_err()).to_string();
            assert!(error.contains(told) && !error.contains("Usage:"), "{error}");
        }
        assert!(without_usage(parse("convey chek").unwrap_err()).to_string().contains("Usage: convey"));
    }

    #[test]
    fn two_modes_at_once_are_a_usage_error() {
        assert_eq!(parse("convey -p -d").unwrap_err().exit_code(), 2);
    }
}
