//! Syslog as the destination of log lines: `syslog+udp://10.0.0.9:514?facility=local0&tag=convey`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::hint;

/// Socket of the syslog service of this host.
const LOCAL: &str = "/dev/log";

/// Port of a syslog server, unless the URL has another one.
const PORT: u16 = 514;

/// Maximum length of the path of a socket in bytes (`sun_path`, unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// Maximum length of a tag in bytes (`APP-NAME`, RFC 5424, section 6.2.5).
const MAX_TAG: usize = 48;

/// Facilities with their codes (RFC 5424, section 6.2.1), without those of kernels and clocks.
const FACILITIES: [(&str, u8); 19] = [
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Syslog service, and how it sorts the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyslogTarget {
    /// Address of the service.
    pub address: SyslogAddress,
    /// Facility of all lines.
    pub facility: SyslogFacility,
    /// Name of the program in each line.
    pub tag: String,
}

/// Address of a syslog service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogAddress {
    /// Datagrams, one for each line (RFC 5426).
    Udp(SocketAddr),
    /// A connection, with the length before each line (RFC 6587, section 3.4.1).
    Tcp(SocketAddr),
    /// Datagrams to a socket of this host.
    Unix(PathBuf),
}

/// Facility: the kind of program that a line is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyslogFacility(u8);

impl SyslogFacility {
    /// Code of the facility, 0 to 23.
    pub fn code(self) -> u8 {
        self.0
    }

    fn named(name: &str) -> Option<SyslogFacility> {
        FACILITIES.into_iter().find(|(known, _)| *known == name).map(|(_, code)| SyslogFacility(code))
    }

    fn name(self) -> &'static str {
        FACILITIES.into_iter().find(|(_, code)| *code == self.0).map_or("daemon", |(name, _)| name)
    }
}

impl SyslogTarget {
    /// Parses `syslog`, or a URL that begins with `syslog+udp`, `syslog+tcp` or `syslog+unix`. `None`:
    /// the text means no syslog.
    pub(super) fn parse(text: &str) -> Option<Result<SyslogTarget, String>> {
        let rest = text.strip_prefix("syslog")?;
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        Some(address_of(address).and_then(|address| with_parameters(address, parameters)))
    }
}

/// Parses the part behind `syslog`: nothing, or `+udp://10.0.0.9:514`.
fn address_of(text: &str) -> Result<SyslogAddress, String> {
    let network = |address: &str| {
        let in_brackets = address.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(address);
        let with_port = || in_brackets.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, PORT));
        let found = address.parse().ok().or_else(with_port).filter(|addr: &SocketAddr| addr.port() != 0);
        found.ok_or_else(|| {
            format!("{address:?} is no address of a syslog server; allowed: an address such as 10.0.0.9:514")
        })
    };
    match text.split_once("://") {
        None if text.is_empty() => Ok(SyslogAddress::Unix(PathBuf::from(LOCAL))),
        Some(("+udp", address)) => network(address).map(SyslogAddress::Udp),
        Some(("+tcp", address)) => network(address).map(SyslogAddress::Tcp),
        Some(("+unix", path)) if Path::new(path).is_absolute() && !path.contains(char::is_control) => {
            socket(path).map(SyslogAddress::Unix)
        }
        _ => Err(format!(
            "\"syslog{text}\" is no syslog service; allowed: syslog, syslog+udp://IP:PORT, syslog+tcp://IP:PORT or syslog+unix:///PATH"
        )),
    }
}

/// Checks the absolute path of a socket.
fn socket(path: &str) -> Result<PathBuf, String> {
    const EXAMPLE: &str = "the path of a socket, such as /dev/log";
    if path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..") {
        return Err(format!("{path:?} is a directory; allowed: {EXAMPLE}"));
    }
    match path.len() {
        0..=MAX_SOCKET_PATH => Ok(PathBuf::from(path)),
        len => Err(format!("the path of the socket has {len} bytes; allowed: up to {MAX_SOCKET_PATH}")),
    }
}

/// Parses `facility=local0&tag=convey`.
fn with_parameters(address: SyslogAddress, text: &str) -> Result<SyslogTarget, String> {
    let (mut facility, mut tag) = (SyslogFacility(3), "convey".to_owned());
    let parameters: Vec<&str> = text.split('&').filter(|text| !text.is_empty()).collect();
    let name = |parameter: &str| parameter.split('=').next().unwrap_or_default().to_owned();
    for (at, parameter) in parameters.iter().enumerate() {
        if parameters[..at].iter().any(|other| name(other) == name(parameter)) {
            return Err(format!("has the parameter {:?} twice; keep one of them", name(parameter)));
        }
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("facility", name) => {
                facility = SyslogFacility::named(name).ok_or_else(|| {
                    let names = FACILITIES.map(|(name, _)| name);
                    let meant = hint::did_you_mean(name, names);
                    format!("{name:?} is no syslog facility; allowed: {}{meant}", names.join(", "))
                })?;
            }
            ("tag", name) => {
                let is_of_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
                if !(1..=MAX_TAG).contains(&name.len()) || !name.bytes().all(is_of_tag) {
                    return Err(format!(
                        "{name:?} is no syslog tag; allowed: up to {MAX_TAG} letters, digits, `-`, `_`, `.` and `/`"
                    ));
                }
                tag = name.to_owned();
            }
            (name, _) => {
                return Err(format!("{name:?} is no parameter of syslog; allowed: facility, tag"));
            }
        }
    }
    Ok(SyslogTarget { address, facility, tag })
}

impl fmt::Display for SyslogTarget {
    /// Formats as in the configuration, with all parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?facility={}&tag={}", self.address, self.facility.name(), self.tag)
    }
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyslogAddress::Udp(addr) => write!(f, "syslog+udp://{addr}"),
            SyslogAddress::Tcp(addr) => write!(f, "syslog+tcp://{addr}"),
            SyslogAddress::Unix(path) => write!(f, "syslog+unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        SyslogTarget::parse(text).map_or("none".to_owned(), |parsed| {
            parsed.map_or_else(|error| error, |target| format!("{target} {}", target.facility.code()))
        })
    }

    #[test]
    fn syslog_target_has_defaults_and_keeps_its_parameters() {
        for (text, expected) in [
            ("syslog", "syslog+unix:///dev/log?facility=daemon&tag=convey 3"),
            ("syslog?facility=local7", "syslog+unix:///dev/log?facility=local7&tag=convey 23"),
            ("syslog+unix:///run/a?tag=b", "syslog+unix:///run/a?facility=daemon&tag=b 3"),
            ("syslog+udp://10.0.0.9", "syslog+udp://10.0.0.9:514?facility=daemon&tag=convey 3"),
            ("syslog+udp://[::1]", "syslog+udp://[::1]:514?facility=daemon&tag=convey 3"),
            (
                "syslog+tcp://[::1]:601?tag=lb-1&facility=auth",
                "syslog+tcp://[::1]:601?facility=auth&tag=lb-1 4",
            ),
            ("/var/log/syslog", "none"),
        ] {
            assert_eq!(parsed(text), expected);
        }
    }

    #[test]
    fn wrong_syslog_target_is_an_error_with_the_allowed_values() {
        let longest = format!("syslog+unix:///{}", "a".repeat(106));
        assert!(parsed(&longest).ends_with("?facility=daemon&tag=convey 3"), "{}", parsed(&longest));
        let too_long = format!("{longest}a");
        for (text, expected) in [
            ("syslogd", "\"syslogd\" is no syslog service; allowed: syslog, syslog+udp://IP:PORT, "),
            ("syslog://10.0.0.9", "is no syslog service"),
            ("syslog+unix://log", "is no syslog service"),
            ("syslog+udp://log.example:514", "\"log.example:514\" is no address of a syslog server"),
            ("syslog+tcp://10.0.0.9:0", "is no address of a syslog server"),
            ("syslog?facility=locall0", "did you mean `local0`?"),
            ("syslog?tag=a%20b", "\"a%20b\" is no syslog tag"),
            ("syslog+unix:///", "\"/\" is a directory; allowed: the path of a socket, such as /dev/log"),
            ("syslog+unix:///run/", "is a directory"),
            (&too_long, "the path of the socket has 108 bytes; allowed: up to 107"),
            (
                "syslog?facility=local0&tag=a&facility=local1",
                "has the parameter \"facility\" twice; keep one of them",
            ),
            ("syslog?tag=a&tag=a", "has the parameter \"tag\" twice"),
            ("syslog?level=info", "\"level\" is no parameter of syslog; allowed: facility, tag"),
        ] {
            assert!(parsed(text).contains(expected), "{text}: {}", parsed(text));
        }
    }
}
