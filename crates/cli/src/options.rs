//! Options of every command, and the source of the configuration that they name.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, PathBufValueParser, PossibleValuesParser, TypedValueParser};
use convey_config::{ListSettings, LogLevel, Stats, parse_log_level};
use convey_etcd::EtcdAddress;
use convey_model::Mode;

/// The configuration file of this host, which packages install.
pub const HOST_CONFIG: &str = "/etc/convey/config.toml";

/// The configuration file in the working directory, used if the host has none.
const LOCAL_CONFIG: &str = "config.toml";

/// Options of every command.
#[derive(Debug, Args)]
pub struct Options {
    /// Configuration: a file, or etcd://[USER@]HOST[:PORT]/PREFIX [default: /etc/convey/config.toml
    /// if it exists, else ./config.toml]
    ///
    /// In etcd the keys below the prefix are the files of a folder, and PREFIX/config.toml is the
    /// configuration. Separate several members by commas. etcds:// uses TLS; append
    /// ?ca=FILE&cert=FILE&key=FILE to set the trusted authorities and the certificate of this host.
    /// The user's password is in CONVEY_ETCD_PASSWORD.
    #[arg(short, long, value_name = "PATH|URL", global = true, value_parser = config_place())]
    config: Option<ConfigPlace>,
    /// Folder for a copy of the configuration in etcd, for a start without etcd
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        env = "STATE_DIRECTORY",
        hide_env_values = true,
        default_value = "/var/lib/convey"
    )]
    pub state_dir: PathBuf,
    /// Without a configuration file: the address that clients connect to (a port alone: on all IPv4
    /// addresses)
    #[arg(
        short, long, value_name = "[IP:]PORT", global = true,
        conflicts_with = "config", requires = "servers", value_parser = listen_address
    )]
    pub listen: Option<SocketAddr>,
    /// Without a configuration file: a list of servers, one HOST:PORT a line; `#` begins a comment.
    ///
    /// convey distributes connections to them in turn, and checks each of them every 2 seconds.
    /// Three failures in a row, of checks or of clients' connections, take a server out of
    /// rotation. Two successful checks bring it back. If a connection fails, the client gets another server.
    #[arg(short, long, value_name = "PATH", global = true, requires = "listen")]
    pub servers: Option<PathBuf>,
    /// Without a configuration file: the address of the statistics (a port alone: on 127.0.0.1)
    #[arg(
        long, value_name = "[IP:]PORT", global = true, default_value_t = Stats::default().listen,
        requires = "listen", value_parser = statistics_address
    )]
    pub stats: SocketAddr,
    /// The control socket, through which commands reach the running convey; empty: no socket
    /// [default: /run/convey/control.sock, or convey/control.sock in $XDG_RUNTIME_DIR for users who
    /// may not write there]
    #[arg(long, value_name = "PATH", global = true, env = "CONVEY_SOCKET", hide_env_values = true, value_parser = path_or_none())]
    pub socket: Option<PathBuf>,
    /// Minimum level to log; overrides RUST_LOG, which overrides log.level
    #[arg(long, value_name = "LEVEL", global = true, ignore_case = true, value_parser = log_level())]
    pub log_level: Option<LogLevel>,
    /// Mode of frontends that set none: forward packets and rewrite both directions (NAT); needs
    /// root
    #[arg(short, long, global = true, conflicts_with = "dsr")]
    pub passthrough: bool,
    /// Mode of frontends that set none: forward packets; servers answer clients directly (DSR);
    /// needs root
    #[arg(short, long, global = true)]
    pub dsr: bool,
}

/// Source of the configuration, as given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigOrigin<'a> {
    /// A configuration file.
    File(&'a Path),
    /// A list of servers, with the settings that such a list lacks.
    List(&'a Path, ListSettings),
    /// A configuration in etcd.
    Etcd(&'a EtcdAddress),
}

/// Value of `--config`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConfigPlace {
    File(PathBuf),
    Etcd(EtcdAddress),
}

impl Options {
    /// Source of the configuration. Without options it is the host's file, or the file in the
    /// working directory.
    pub fn origin(&self) -> ConfigOrigin<'_> {
        match (&self.servers, self.listen, &self.config) {
            (Some(path), Some(listen), _) => {
                ConfigOrigin::List(path, ListSettings { listen, stats: self.stats })
            }
            (_, _, Some(ConfigPlace::File(path))) => ConfigOrigin::File(path),
            (_, _, Some(ConfigPlace::Etcd(address))) => ConfigOrigin::Etcd(address),
            (_, _, None) => ConfigOrigin::File(default_config(Path::new(HOST_CONFIG))),
        }
    }

    /// Whether the command line names no file and no list of servers.
    pub fn names_no_file(&self) -> bool {
        self.config.is_none() && self.listen.is_none()
    }

    /// Mode set on the command line. It overrides the file's, but not a frontend's own mode. `None`
    /// if the command line sets no mode.
    pub fn mode(&self) -> Option<Mode> {
        match (self.passthrough, self.dsr) {
            (true, _) => Some(Mode::Passthrough),
            (_, true) => Some(Mode::Dsr),
            _ => None,
        }
    }
}

/// Path of the configuration file without `--config`: the host's file, or the file in the working
/// directory if the host's file is known not to exist. If the host's file cannot be accessed, the
/// start fails with that error instead of using the other file.
fn default_config(host: &Path) -> &Path {
    if matches!(host.try_exists(), Ok(false)) { Path::new(LOCAL_CONFIG) } else { host }
}

/// Returns the parser of `--config`: a path, or an address of etcd.
fn config_place() -> impl TypedValueParser<Value = ConfigPlace> {
    PathBufValueParser::new().try_map(|path| match path.to_str().filter(|text| EtcdAddress::is_meant(text)) {
        Some(text) => EtcdAddress::parse(text).map(ConfigPlace::Etcd),
        None => Ok(ConfigPlace::File(path)),
    })
}

/// Returns the parser of a path that may be empty. An empty path means no file; clap's own parser
/// refuses it.
fn path_or_none() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Returns the parser of a log level. For a misspelled level, clap suggests the nearest one.
pub(crate) fn log_level() -> impl TypedValueParser<Value = LogLevel> {
    PossibleValuesParser::new(LogLevel::ALL.map(LogLevel::name)).try_map(|word| parse_log_level(&word))
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    address(text, Ipv4Addr::UNSPECIFIED)
}

fn statistics_address(text: &str) -> Result<SocketAddr, String> {
    address(text, Ipv4Addr::LOCALHOST)
}

/// Parses `IP:port`, or a port alone, which gets the address `ip`.
fn address(text: &str, ip: Ipv4Addr) -> Result<SocketAddr, String> {
    let addr = text.parse().or_else(|_| text.parse().map(|port| SocketAddr::from((ip, port))));
    let addr = addr.ok().filter(|addr| addr.port() != 0);
    addr.ok_or_else(|| "allowed: a port from 1 to 65535, or IP:port, such as 7777 or [::]:7777".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_config_is_the_file_of_the_host_before_the_current_folder() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("config.toml");
        assert_eq!(default_config(&host), Path::new("config.toml"));
        std::fs::write(&host, "").unwrap();
        assert_eq!(default_config(&host), host);
        let beyond = host.join("not_in_a_folder");
        assert_eq!(default_config(&beyond), beyond, "whether it exists cannot be found out");
    }
}
