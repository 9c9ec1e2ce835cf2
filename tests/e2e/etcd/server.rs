//! A real etcd, of one member.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use convey_testkit::{Loopback, Process, run, wait_for};
use serde_json::json;

use crate::curl::curl;

/// Prefix of all keys in these tests.
pub(super) const PREFIX: &str = "/convey/edge";

pub(crate) struct Etcd {
    directory: PathBuf,
    at: SocketAddr,
    /// Files of TLS: the authority, the certificate, the key.
    tls: Option<[PathBuf; 3]>,
    /// Lifetime of a user's token, in seconds; `None`: as long as it is used.
    token_life: Option<u32>,
    process: Option<Process>,
}

impl Etcd {
    pub(crate) fn start(lab: &Loopback) -> Etcd {
        Etcd::start_with(lab, None)
    }

    /// Starts etcd. With these files, it accepts TLS only.
    pub(super) fn start_with(lab: &Loopback, tls: Option<[PathBuf; 3]>) -> Etcd {
        let mut etcd = Etcd::of(lab);
        etcd.tls = tls;
        etcd.come_back();
        etcd
    }

    /// Starts etcd with tokens that expire after so many seconds.
    pub(super) fn start_with_tokens_of(lab: &Loopback, seconds: u32) -> Etcd {
        let mut etcd = Etcd { token_life: Some(seconds), ..Etcd::of(lab) };
        let (key, public) = etcd.token_keys();
        for args in [
            format!("genrsa -out {} 2048", key.display()),
            format!("rsa -in {} -pubout -out {}", key.display(), public.display()),
        ] {
            let ran = run(Command::new("openssl").args(args.split(' ')));
            assert!(ran.code == Some(0), "{ran:?}");
        }
        etcd.come_back();
        etcd
    }

    fn of(lab: &Loopback) -> Etcd {
        let directory = lab.directory().join("etcd");
        Etcd { directory, at: SocketAddr::new(lab.ip(5), 2_379), tls: None, token_life: None, process: None }
    }

    fn token_keys(&self) -> (PathBuf, PathBuf) {
        (self.directory.with_extension("key"), self.directory.with_extension("pub"))
    }

    /// Starts etcd with its previous data.
    pub(super) fn come_back(&mut self) {
        let (url, data) = (self.url(), self.directory.display().to_string());
        let peer = format!("http://{}:2380", self.at.ip());
        let mut etcd = Command::new("etcd");
        etcd.args(["--data-dir", &data, "--listen-client-urls", &url, "--advertise-client-urls", &url]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"]);
        if let Some([_, cert, key]) = &self.tls {
            etcd.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        if let Some(seconds) = self.token_life {
            let (key, public) = self.token_keys();
            let (key, public) = (key.display(), public.display());
            etcd.args([
                "--auth-token",
                &format!("jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl={seconds}s"),
            ]);
        }
        let log = File::create(self.directory.with_extension("log")).unwrap();
        self.process = Some(Process::spawn(etcd.stdout(Stdio::null()).stderr(log)));
        wait_for("etcd", || TcpStream::connect(self.at).ok());
        wait_for("etcd to have a leader", || {
            let health = self.control().args(["endpoint", "health"]).output().unwrap();
            let text = String::from_utf8_lossy(&health.stderr).into_owned()
                + &String::from_utf8_lossy(&health.stdout);
            (text.contains("is healthy") || text.contains("user name is empty")).then_some(())
        });
    }

    pub(super) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// Value for `--config`.
    pub(super) fn address(&self) -> String {
        let (scheme, query) = match &self.tls {
            None => ("etcd", String::new()),
            Some([ca, ..]) => ("etcds", format!("?ca={}", ca.display())),
        };
        format!("{scheme}://{}{PREFIX}{query}", self.at)
    }

    /// Value for `--config` with a user.
    pub(super) fn address_of(&self, user: &str) -> String {
        self.address().replacen("://", &format!("://{user}@"), 1)
    }

    /// `etcdctl`.
    pub(super) fn control(&self) -> Command {
        let mut control = Command::new("etcdctl");
        control.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]);
        // The defaults of 2 s and 5 s are too short on a busy machine.
        control.args(["--dial-timeout=20s", "--command-timeout=20s"]);
        if let Some([ca, ..]) = &self.tls {
            control.arg("--cacert").arg(ca);
        }
        control
    }

    /// `etcdctl` as user `root`.
    pub(super) fn as_root(&self) -> Command {
        let mut control = self.control();
        control.args(["--user", "root:root"]);
        control
    }

    /// Remaining seconds of the lease on this host's status.
    pub(super) fn status_lease_left(&self) -> i64 {
        let status = format!("{PREFIX}-status/");
        let ran = run(self.as_root().args(["get", "--prefix", "-w", "json", &status]));
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let lease = format!("{:x}", answer["kvs"][0]["lease"].as_i64().unwrap());
        let ran = run(self.as_root().args(["lease", "timetolive", &lease, "-w", "json"]));
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["ttl"].as_i64().unwrap()
    }

    pub(super) fn put(&self, file: &str, text: &str) {
        let ran = run(self.control().args(["put", &format!("{PREFIX}/{file}"), "--", text]));
        assert!(ran.code == Some(0), "{ran:?}");
    }

    pub(super) fn delete(&self, file: &str) {
        let ran = run(self.control().args(["del", &format!("{PREFIX}/{file}")]));
        assert!(ran.code == Some(0), "{ran:?}");
    }

    /// Puts several files in one transaction.
    pub(super) fn put_all(&self, files: &[(&str, &str)]) {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let puts = files.iter().map(|(file, text)| {
            json!({ "request_put": { "key": encoded(&format!("{PREFIX}/{file}")), "value": encoded(text) } })
        });
        let transaction = json!({ "success": puts.collect::<Vec<_>>() }).to_string();
        let answer = curl(&["-d", &transaction, &format!("{}/v3/kv/txn", self.url())]);
        assert!(answer.contains("\"succeeded\":true"), "{answer}");
    }

    /// This host's status under its key.
    pub(super) fn status(&self) -> serde_json::Value {
        let ran =
            run(self.control().args(["get", "--prefix", "--print-value-only", &format!("{PREFIX}-status/")]));
        serde_json::from_str(&ran.stdout).unwrap_or_default()
    }

    /// A host's status under its key.
    pub(super) fn status_of(&self, node: &str) -> serde_json::Value {
        let key = format!("{PREFIX}-status/{node}");
        let ran = run(self.control().args(["get", "--print-value-only", &key]));
        serde_json::from_str(&ran.stdout).unwrap_or_default()
    }

    /// Revision of a file's last change.
    pub(super) fn revision(&self, file: &str) -> i64 {
        let ran = run(self.control().args(["get", "-w", "json", &format!("{PREFIX}/{file}")]));
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["kvs"][0]["mod_revision"].as_i64().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.at)
    }
}
