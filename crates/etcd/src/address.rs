//! Address of a configuration in etcd, as given on the command line. Pure.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Key of the main configuration file, relative to the prefix.
pub const MAIN_FILE: &str = "config.toml";

/// Maximum length of the readable part of a directory name, in bytes. File systems allow 255 bytes
/// for the whole name.
const MAX_FOLDER_NAME: usize = 200;

/// Default port of etcd for client requests.
const PORT: u16 = 2379;

/// Address of a configuration: `etcd://[USER@]HOST[:PORT][,…]/PREFIX`, or `etcds://` for TLS. The
/// query may contain paths of files: `ca`, `cert` and `key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Members of the etcd cluster.
    pub endpoints: Vec<EtcdEndpoint>,
    /// User name for authentication. The password is never part of the address.
    pub user: Option<String>,
    /// Prefix of the keys, with a slash at both ends, such as `/convey/edge/`.
    pub prefix: String,
    /// TLS settings; `None` means no TLS.
    pub tls: Option<EtcdTls>,
}

/// Endpoint of a member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// Host name or address; an IPv6 address is in brackets.
    pub host: String,
    /// Port for clients.
    pub port: u16,
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Files for TLS with etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificate authorities to trust; `None` means the authorities that this host trusts.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub certificate: Option<EtcdCertificate>,
}

/// Files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdCertificate {
    /// File of the certificate chain.
    pub chain_path: PathBuf,
    /// File of the key.
    pub key_path: PathBuf,
}

/// Reason why an address is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AddressFault(String);

impl EtcdAddress {
    /// Whether a text begins with the scheme of an etcd address, `etcd://` or `etcds://`.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("etcd://") || text.starts_with("etcds://")
    }

    /// Parses an address.
    ///
    /// # Errors
    /// The address has no host, no prefix, an invalid port, a password, or an unknown parameter.
    pub fn parse(text: &str) -> Result<EtcdAddress, AddressFault> {
        let fault =
            |why: &str| AddressFault(format!("{why}: expected an address such as etcd://HOST:2379/PREFIX"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fault("not an address of etcd"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').ok_or_else(|| fault("no prefix"))?;
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() {
            return Err(fault("no prefix"));
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            let why = "everybody on this host can read a password on the command line: set CONVEY_ETCD_PASSWORD instead";
            return Err(AddressFault(why.to_owned()));
        }
        let endpoints = hosts.split(',').map(endpoint).collect::<Option<Vec<_>>>();
        let endpoints = endpoints.ok_or_else(|| fault("no host, or an invalid port"))?;
        let tls = tls(query, scheme == "etcds")?;
        Ok(EtcdAddress { endpoints, user: user.map(str::to_owned), prefix: format!("/{prefix}/"), tls })
    }

    /// Key to which a node writes its status of the configuration. The key is outside of the
    /// prefix, so that nodes need no permission to write the configuration.
    pub fn status_key(&self, node: &str) -> String {
        format!("{}-status/{node}", self.prefix.trim_end_matches('/'))
    }

    /// Name of this host's directory for the configuration at this address. The name depends only
    /// on the prefix, because the members of a cluster may change. A long prefix is truncated, and
    /// a hash makes the name unique.
    pub fn folder_name(&self) -> String {
        let prefix = self.prefix.trim_end_matches('/');
        let name = prefix.replace('%', "%25").replace('/', "%2F");
        if name.len() <= MAX_FOLDER_NAME {
            return name;
        }
        let cut = (0..=MAX_FOLDER_NAME).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        format!("{}%{:016x}", &name[..cut], xxh3_64(prefix.as_bytes()))
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "etcds://" } else { "etcd://" })?;
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if index == 0 { "" } else { "," })?;
        }
        f.write_str(self.prefix.trim_end_matches('/'))
    }
}

/// Parses `HOST` or `HOST:PORT` of a member; `None` if the text is invalid.
fn endpoint(text: &str) -> Option<EtcdEndpoint> {
    let end = text.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match text[end..].rfind(':') {
        Some(colon) => {
            (&text[..end + colon], text[end + colon + 1..].parse().ok().filter(|port| *port != 0)?)
        }
        None => (text, PORT),
    };
    let is_plain = end > 0 || !host.contains(':');
    (!host.is_empty() && is_plain).then(|| EtcdEndpoint { host: host.to_owned(), port })
}

fn tls(query: &str, is_meant: bool) -> Result<Option<EtcdTls>, AddressFault> {
    let (mut ca, mut cert, mut key) = (None, None, None);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, path) = parameter.split_once('=').unwrap_or((parameter, ""));
        let file = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            _ => {
                return Err(AddressFault(format!(
                    "unknown parameter {name}; the parameters are ca, cert and key"
                )));
            }
        };
        *file = Some(PathBuf::from(path)).filter(|path| path.as_os_str() != "");
        if file.is_none() {
            return Err(AddressFault(format!("the parameter {name} needs the path of a file")));
        }
    }
    let certificate = match (cert, key) {
        (Some(chain_path), Some(key_path)) => Some(EtcdCertificate { chain_path, key_path }),
        (None, None) => None,
        _ => return Err(AddressFault("the parameters cert and key must be set together".to_owned())),
    };
    match is_meant {
        true => Ok(Some(EtcdTls { ca, certificate })),
        false if ca.is_none() && certificate.is_none() => Ok(None),
        false => Err(AddressFault("the parameters ca, cert and key need TLS: use etcds://".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_whom_to_ask_for_what() {
        let address =
            EtcdAddress::parse("etcd://10.0.0.1,[fd00::1]:4001,etcd.example:2380/convey/edge/").unwrap();
        let endpoints = [("10.0.0.1", 2379), ("[fd00::1]", 4001), ("etcd.example", 2380)];
        assert_eq!(
            address.endpoints,
            endpoints.map(|(host, port)| EtcdEndpoint { host: host.to_owned(), port })
        );
        assert_eq!((&*address.prefix, &address.tls, &address.user), ("/convey/edge/", &None, &None));
        assert_eq!(address.status_key("node7"), "/convey/edge-status/node7");
        assert_eq!(address.to_string(), "etcd://10.0.0.1:2379,[fd00::1]:4001,etcd.example:2380/convey/edge");
        assert_eq!(address.folder_name(), "%2Fconvey%2Fedge", "another member changes nothing");

        let address = EtcdAddress::parse("etcds://edge@h/a?ca=/etc/ca.pem&cert=c.pem&key=k.pem").unwrap();
        assert_eq!(address.user.as_deref(), Some("edge"));
        let certificate = Some(EtcdCertificate { chain_path: "c.pem".into(), key_path: "k.pem".into() });
        assert_eq!(address.tls, Some(EtcdTls { ca: Some("/etc/ca.pem".into()), certificate }));
        assert_eq!(EtcdAddress::parse("etcds://h/a").unwrap().tls, Some(EtcdTls::default()));
    }

    #[test]
    fn folder_name_of_a_long_prefix_fits_file_systems() {
        let name = |last: &str| {
            let prefix = format!("{}/{last}", "ä".repeat(300));
            EtcdAddress::parse(&format!("etcd://h/{prefix}")).unwrap().folder_name()
        };
        assert!(name("a").len() <= 255 && name("a") != name("b"), "{}", name("a"));
    }

    #[test]
    fn address_errors_name_the_fault() {
        for (text, why) in [
            ("etcd://h", "no prefix"),
            ("etcd://h//", "no prefix"),
            ("etcd:///a", "no host"),
            ("etcd://h:0/a", "port"),
            ("etcd://h:x/a", "port"),
            ("etcd://fd00::1/a", "no host"),
            ("etcd://h,/a", "no host"),
            ("etcd://me:secret@h/a", "CONVEY_ETCD_PASSWORD"),
            ("etcd://h/a?ca=x", "etcds://"),
            ("etcds://h/a?cert=x", "must be set together"),
            ("etcds://h/a?ca=", "needs the path of a file"),
            ("etcds://h/a?timeout=3", "unknown parameter timeout"),
        ] {
            let fault = EtcdAddress::parse(text).unwrap_err().to_string();
            assert!(fault.contains(why), "{text}: {fault}");
            assert!(!fault.contains("secret"));
        }
        assert!(EtcdAddress::is_meant("etcds://x") && !EtcdAddress::is_meant("etcd.toml"));
    }
}
