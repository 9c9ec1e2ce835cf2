//! What a story may need from the machine.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Something not every machine has.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    Nginx,
    Curl,
    Dnsmasq,
    Wrk,
    Dig,
    Promtool,
    Prlimit,
    /// Patience: the story takes longer than a newcomer waits.
    #[allow(dead_code, reason = "not every program of stories has a long one")]
    Long,
    /// A network namespace of its own.
    Namespace,
    /// The address `::1`.
    Ipv6,
    /// A hard limit of open files of at least this.
    OpenFiles(u64),
}

impl Need {
    /// Why a story cannot be told here, if it cannot.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Need::Nginx => without("nginx", "nginx-light"),
            Need::Curl => without("curl", "curl"),
            Need::Dnsmasq => without("dnsmasq", "dnsmasq-base"),
            Need::Wrk => without("wrk", "wrk"),
            Need::Dig => without("dig", "bind9-dnsutils"),
            Need::Promtool => without("promtool", "prometheus"),
            Need::Prlimit => without("prlimit", "util-linux"),
            Need::Long => {
                let reason = || "takes long; CONVEY_LONG=1 has it told".to_owned();
                std::env::var_os("CONVEY_LONG").is_none().then(reason)
            }
            Need::Namespace => {
                let tools = [("unshare", "util-linux"), ("ip", "iproute2"), ("nft", "nftables")];
                let missing = tools.iter().find_map(|(name, package)| without(name, package));
                let can = || Command::new("unshare").args(["--net", "true"]).output();
                let cannot = || "cannot make a network namespace (takes root)".to_owned();
                missing.or_else(|| (!can().is_ok_and(|ran| ran.status.success())).then(cannot))
            }
            Need::Ipv6 => {
                TcpListener::bind("[::1]:0").err().map(|error| format!("no IPv6 loopback: {error}"))
            }
            Need::OpenFiles(needed) => {
                let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
                let reason = format!("needs {needed} open files, the hard limit is {allowed}");
                (allowed < needed).then_some(reason)
            }
        }
    }
}

/// Where a tool is. The directories for administrators are not on everybody's `PATH`.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    directories.map(|directory| directory.join(name)).find(|file| Path::is_file(file))
}

/// Lets this process, and those it starts, open as many files as it may.
pub(crate) fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn without(name: &str, package: &str) -> Option<String> {
    tool(name).is_none().then(|| format!("{name} is not installed (Debian package {package})"))
}
