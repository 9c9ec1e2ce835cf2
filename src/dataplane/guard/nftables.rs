//! The guard of nftables, for kernels without tcx.
//!
//! `nft` works interactively and owns a table (`flags owner`): the kernel removes that as soon as nft ends, and nft
//! ends with its standard input, which ours is the only process to hold open.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};

use thiserror::Error;

use super::super::{Replies, Selection};
use crate::model::Interface;

/// A table of rules, and the process that owns it.
#[derive(Debug)]
pub(super) struct Nftables {
    table: String,
    nft: Nft,
}

/// Why nftables do not guard.
#[derive(Debug, Error)]
pub enum NftablesError {
    /// There is no `nft`.
    #[error("nft is not installed (Debian package nftables)")]
    Missing,
    /// It ended before it was told to.
    #[error("nft has ended{}", after_colon(.0))]
    Ended(String),
    /// It, or the kernel, did not take the rules.
    #[error("nft refused (needs CAP_NET_ADMIN, Linux 5.12 and nft 1.0): {0}")]
    Refused(String),
    /// The system refused.
    #[error("nft: {0}")]
    System(#[from] io::Error),
}

impl Nftables {
    /// Guards the interfaces, in the thread's network namespace.
    pub(super) fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Nftables, NftablesError> {
        let mut guard = Nftables { table: format!("convey_{}", std::process::id()), nft: Nft::start()? };
        guard.nft.run(&table(&guard.table, interfaces))?;
        guard.select(selection)?;
        Ok(guard)
    }

    /// Replaces the rules, in one transaction.
    pub(super) fn select(&mut self, selection: &Selection) -> Result<(), NftablesError> {
        self.nft.run(&rules(&self.table, selection))
    }

    /// The table's name; its family is netdev.
    pub(super) fn table(&self) -> &str {
        &self.table
    }
}

/// The command that makes an empty table. A packet socket has had its copy of a frame before ingress is asked.
fn table(table: &str, interfaces: &[Interface]) -> String {
    let names: Vec<String> = interfaces.iter().map(|interface| format!("{:?}", interface.name)).collect();
    format!(
        "add table netdev {table} {{ flags owner; }}; add chain netdev {table} forwarded \
         {{ type filter hook ingress devices = {{ {} }} priority 0; policy accept; }}",
        names.join(", ")
    )
}

/// The command that makes rules for a selection, in place of those there are.
fn rules(table: &str, selection: &Selection) -> String {
    let mut text = format!("flush chain netdev {table} forwarded");
    for family in ["ip", "ip6"] {
        let is_of_family = |ip: &IpAddr| ip.is_ipv4() == (family == "ip");
        let endpoints = |all: &BTreeSet<SocketAddr>| {
            let of_family = all.iter().filter(|addr| is_of_family(&addr.ip()));
            set(of_family.map(|addr| format!("{} . {}", addr.ip(), addr.port())))
        };
        let rule = format!("; add rule netdev {table} forwarded {family}");
        if let Some(frontends) = endpoints(&selection.frontends) {
            let _ = write!(text, "{rule} daddr . tcp dport {frontends} drop");
        }
        let Some(Replies { servers, snat_addresses, snat_ports }) = &selection.replies else { continue };
        let addresses = set(snat_addresses.iter().filter(|ip| is_of_family(ip)).map(IpAddr::to_string));
        if let (Some(servers), Some(addresses)) = (endpoints(servers), addresses) {
            let (first, last) = (snat_ports.start(), snat_ports.end());
            let _ = write!(
                text,
                "{rule} saddr . tcp sport {servers} {family} daddr {addresses} tcp dport {first}-{last} drop"
            );
        }
    }
    text
}

/// A set as nft writes it; there are no empty ones.
fn set(elements: impl Iterator<Item = String>) -> Option<String> {
    let elements: Vec<String> = elements.collect();
    (!elements.is_empty()).then(|| format!("{{ {} }}", elements.join(", ")))
}

/// A process of `nft` that carries out commands, and keeps what they own. Ends when dropped.
#[derive(Debug)]
struct Nft {
    child: Child,
    commands: ChildStdin,
    errors: BufReader<ChildStderr>,
    sent: u64,
}

impl Nft {
    fn start() -> Result<Nft, NftablesError> {
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Where it would keep a history of its commands.
        command.env("HOME", "/dev/null");
        // Ctrl-C is for us: the guard is needed to the last packet.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NftablesError::Missing,
            _ => NftablesError::System(error),
        })?;
        let (commands, errors) = (child.stdin.take(), child.stderr.take());
        let (Some(commands), Some(errors)) = (commands, errors) else {
            unreachable!("both were asked for");
        };
        Ok(Nft { child, commands, errors: BufReader::new(errors), sent: 0 })
    }

    /// Has a command carried out, and waits for it.
    ///
    /// nft says nothing of what went well. So the command is followed by something that is none: as soon as nft
    /// complains of that, all its complaints of the command itself have been read.
    fn run(&mut self, command: &str) -> Result<(), NftablesError> {
        self.sent += 1;
        let end = format!("end_of_{}", self.sent);
        // Whether nft still listens is seen below, with what it had to say.
        let _ = self.commands.write_all(format!("{command}\n{end}\n").as_bytes());
        let (mut complaints, mut said) = (Vec::new(), String::new());
        loop {
            let mut line = String::new();
            if self.errors.read_line(&mut line)? == 0 {
                return Err(NftablesError::Ended(said));
            }
            if line.trim() == end {
                break;
            }
            if let Some((_, complaint)) = line.split_once("Error: ") {
                complaints.push(complaint.trim().to_owned());
            }
            said = line.trim().to_owned();
        }
        // The last is that of the end.
        complaints.pop();
        complaints.into_iter().next().map_or(Ok(()), |first| Err(NftablesError::Refused(first)))
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(frontends: &[&str], servers: &[&str], snat_addresses: &[&str]) -> Selection {
        let replies = Replies {
            servers: servers.iter().map(|addr| addr.parse().unwrap()).collect(),
            snat_addresses: snat_addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            snat_ports: 33768..=61000,
        };
        let frontends = frontends.iter().map(|addr| addr.parse().unwrap()).collect();
        Selection { frontends, replies: Some(replies) }
    }

    fn lines(text: &str) -> Vec<&str> {
        text.split("; ").collect()
    }

    #[test]
    fn rules_drop_frontends_and_replies_to_snat_ports_and_nothing_else() {
        let both = selection(&["10.0.0.1:80", "10.0.0.1:443"], &["10.1.0.1:8080"], &["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            lines(&rules("t", &both)),
            [
                "flush chain netdev t forwarded",
                "add rule netdev t forwarded ip daddr . tcp dport { 10.0.0.1 . 80, 10.0.0.1 . 443 } drop",
                "add rule netdev t forwarded ip saddr . tcp sport { 10.1.0.1 . 8080 } \
                 ip daddr { 10.0.0.1, 10.0.0.2 } tcp dport 33768-61000 drop",
            ]
        );
        let dsr = Selection { replies: None, ..both };
        assert_eq!(lines(&rules("t", &dsr)).len(), 2);
    }

    #[test]
    fn each_family_has_rules_of_its_own_and_an_empty_set_none() {
        let mixed = selection(&["[2001:db8::1]:80"], &["10.1.0.1:80", "[2001:db8::2]:80"], &["2001:db8::9"]);
        assert_eq!(
            lines(&rules("t", &mixed))[1..],
            [
                "add rule netdev t forwarded ip6 daddr . tcp dport { 2001:db8::1 . 80 } drop",
                "add rule netdev t forwarded ip6 saddr . tcp sport { 2001:db8::2 . 80 } \
                 ip6 daddr { 2001:db8::9 } tcp dport 33768-61000 drop",
            ]
        );
        assert_eq!(lines(&rules("t", &selection(&[], &[], &[]))).len(), 1);
    }
}
