//! Pebble: a certificate authority for tests, with a name server that resolves all names.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use convey_testkit::{Loopback, Need, Process, TestAuthority, wait_for, whole_lines};
use serde_json::json;

use crate::curl::curl;

pub(super) const PEBBLE: Need =
    Need::Tool("pebble", "none: go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1");
pub(super) const NAMES: Need = Need::Tool(
    "pebble-challtestsrv",
    "none: go install github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@v2.10.1",
);

/// Deviations from the usual behaviour.
#[derive(Default)]
pub(super) struct Habits {
    /// Validity of its certificates in seconds; 0: 90 days.
    pub(super) validity: u64,
    /// Percent of nonces that it refuses.
    pub(super) refused_nonces: u32,
    /// Maximum duration of a validation in seconds; 0: no delay.
    pub(super) slow: u32,
    /// Address of all names; `None`: the network's first host.
    pub(super) names_are_at: Option<&'static str>,
    /// Accepts only holders of an external account, with its number and key.
    pub(super) external_account: Option<(&'static str, &'static str)>,
}

/// A running Pebble. All names resolve to the network's first host; it fetches tokens from the port
/// of the second VIP, and handshakes at the port of the first.
pub(super) struct Pebble {
    directory: PathBuf,
    at: SocketAddr,
    management: SocketAddr,
    ca: PathBuf,
    _processes: [Process; 2],
}

impl Pebble {
    pub(super) fn start(lab: &Loopback, habits: &Habits) -> Pebble {
        let directory = lab.directory().join("pebble");
        fs::create_dir_all(&directory).unwrap();
        let at = |port| SocketAddr::new(lab.ip(5), port);
        let authority = TestAuthority::new("The authority of the authority");
        authority.issue(&[&lab.ip(5).to_string()]).save(&directory, "own");
        let ca = authority.save(&directory);
        let validity = if habits.validity == 0 { 90 * 24 * 60 * 60 } else { habits.validity };
        let (id, key) = habits.external_account.unwrap_or(("none", "bm9uZQ"));
        let config = json!({ "pebble": {
            "listenAddress": at(14_000), "managementListenAddress": at(15_000),
            "certificate": directory.join("own.pem"), "privateKey": directory.join("own.key"),
            "httpPort": lab.second_vip().port(), "tlsPort": lab.vip().port(), "ocspResponderURL": "",
            "externalAccountBindingRequired": habits.external_account.is_some(),
            "externalAccountMACKeys": { id: key },
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "the only one", "validityPeriod": validity } },
        }});
        fs::write(directory.join("config.json"), config.to_string()).unwrap();
        let log = || fs::File::create(directory.join("log")).unwrap();
        let mut names = Command::new("pebble-challtestsrv");
        let names_are_at = habits.names_are_at.map_or_else(|| lab.ip(1).to_string(), str::to_owned);
        names.args(["-defaultIPv4", &names_are_at, "-defaultIPv6", ""]);
        names.args(["-dnsserver", &at(8_053).to_string(), "-management", &at(8_055).to_string()]);
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]);
        let names = Process::spawn(names.stdout(Stdio::null()).stderr(Stdio::null()));
        let mut pebble = Command::new("pebble");
        pebble.arg("-config").arg(directory.join("config.json"));
        pebble.args(["-dnsserver", &at(8_053).to_string()]);
        pebble.env("PEBBLE_WFE_NONCEREJECT", habits.refused_nonces.to_string());
        match habits.slow {
            0 => pebble.env("PEBBLE_VA_NOSLEEP", "1"),
            slow => pebble.env("PEBBLE_VA_SLEEPTIME", slow.to_string()),
        };
        let pebble = Process::spawn(pebble.stdout(log()).stderr(Stdio::null()));
        for place in [at(14_000), at(15_000), at(8_053)] {
            wait_for(&format!("an authority on {place}"), || TcpStream::connect(place).ok());
        }
        Pebble { directory, at: at(14_000), management: at(15_000), ca, _processes: [names, pebble] }
    }

    /// `[acme]` with this authority, and further lines.
    pub(super) fn table(&self, lines: &str) -> String {
        format!("[acme]\ndirectory = \"https://{}/dir\"\nca = \"{}\"\n{lines}\n", self.at, self.ca.display())
    }

    /// File with the authority of its certificates.
    pub(super) fn root(&self) -> PathBuf {
        let path = self.directory.join("root.pem");
        fs::write(&path, curl(&["-k", &format!("https://{}/roots/0", self.management)])).unwrap();
        path
    }

    /// Number of orders so far.
    pub(super) fn orders(&self) -> usize {
        whole_lines(&self.directory.join("log")).matches("POST /order-plz").count()
    }
}
