//! Selects the global options that the help of each command shows.
//!
//! Every command accepts all global options, before and after its name. Its help hides the options
//! that have no effect on it.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, FromArgMatches};

use super::Cli;

/// Global options that the start of the balancer uses.
const START: &[&str] =
    &["config", "state_dir", "listen", "servers", "stats", "socket", "log_level", "passthrough", "dsr"];

/// Options of commands that inspect a file or the running convey.
const LOOK: &[&str] = &["config", "state_dir", "listen", "servers", "stats", "socket", "passthrough", "dsr"];

/// Names of the global options that a command uses.
fn own_options(command: &str) -> &'static [&'static str] {
    match command {
        "check" | "demo" => START,
        "explain" | "doctor" => LOOK,
        "upgrade" => &["config", "state_dir", "socket"],
        "clear" | "generate" => &[],
        _ => &["socket"],
    }
}

impl Cli {
    /// Definition of the command line: commands, options and their help.
    pub fn definition() -> Command {
        let mut definition = Cli::command();
        let shared: Vec<_> =
            definition.get_arguments().filter(|option| option.is_global_set()).cloned().collect();
        for command in definition.get_subcommands_mut() {
            let own = own_options(command.get_name());
            let others = shared.iter().filter(|option| !own.contains(&option.get_id().as_str()));
            *command = std::mem::take(command).args(others.map(|option| option.clone().hide(true)));
        }
        definition
    }

    /// Parses a command line.
    ///
    /// # Errors
    /// The command line is invalid, or requests help.
    pub fn parsed(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let line: Vec<OsString> = line.into_iter().collect();
        let parsed = Cli::parsed_as_it_is(line.iter());
        let is_help = |word: &OsString| word == "--help" || word == "-h";
        match parsed {
            // clap mistakes a flag after `help` for the name of a command.
            Err(error) if error.kind() == ErrorKind::InvalidSubcommand && line.contains(&"help".into()) => {
                Cli::parsed_as_it_is(line.iter().filter(|word| !is_help(word)))
            }
            parsed => parsed,
        }
    }

    fn parsed_as_it_is<'a>(line: impl Iterator<Item = &'a OsString>) -> Result<Cli, clap::Error> {
        let mut definition = Cli::definition();
        let mut matches = definition.try_get_matches_from_mut(line)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::Mode;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        Cli::parsed(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::definition().debug_assert();
    }

    #[test]
    fn the_help_of_a_command_shows_its_own_options_alone() {
        let all = [
            "--config",
            "--listen",
            "--servers",
            "--stats",
            "--socket",
            "--log-level",
            "--passthrough",
            "--dsr",
        ];
        let shown = |line: &str| {
            let help = parsed(line).unwrap_err().to_string();
            let lines = || help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
            let shows = |option: &&str| lines().any(|line| line.split(' ').any(|word| word == *option));
            all.into_iter().filter(shows).collect::<Vec<_>>()
        };
        assert_eq!(shown("convey --help"), all);
        assert_eq!(shown("convey check --help"), all);
        for command in [
            "status",
            "top",
            "flows",
            "flows kill",
            "server drain",
            "backend maint",
            "reset",
            "reload",
            "trace",
        ] {
            assert_eq!(shown(&format!("convey {command} --help")), ["--socket"], "{command}");
            assert_eq!(shown(&format!("convey {command} -h")), ["--socket"], "{command}");
        }
        assert_eq!(shown("convey log-level --help"), ["--socket"]);
        assert_eq!(shown("convey upgrade --help"), ["--config", "--socket"]);
        assert_eq!(shown("convey generate --help"), [""; 0]);
    }

    #[test]
    fn help_takes_the_flags_for_help() {
        let help = |line: &str| {
            let error = parsed(line).unwrap_err();
            (error.exit_code(), error.to_string())
        };
        for (line, same_as) in [
            ("convey help --help", "convey help"),
            ("convey help -h", "convey help"),
            ("convey help status --help", "convey help status"),
            ("convey server help --help", "convey server help"),
        ] {
            assert_eq!(help(line), help(same_as), "{line}");
            assert_eq!(help(line).0, 0, "{line}");
        }
        assert_eq!(help("convey help --hlp").0, 2);
        assert_eq!(help("convey help chek --help").0, 2);
    }

    #[test]
    fn an_option_that_is_not_shown_may_stand_where_it_did() {
        for line in [
            "convey -d status --socket /tmp/x",
            "convey status -d --socket /tmp/x",
            "convey --socket /tmp/x server drain web/a -d",
        ] {
            let options = parsed(line).unwrap().options;
            assert_eq!(options.socket.as_deref(), Some(std::path::Path::new("/tmp/x")), "{line}");
            assert_eq!(options.mode(), Some(Mode::Dsr), "{line}");
        }
        assert_eq!(parsed("convey status --listen 80").unwrap_err().exit_code(), 2);
    }
}
