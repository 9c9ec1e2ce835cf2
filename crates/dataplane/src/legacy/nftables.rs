//! Guard by nftables, for kernels without tcx.
//!
//! `nft` runs interactively and owns a table (`flags owner`), which the kernel removes when `nft`
//! ends. `nft` ends when its standard input is closed. Only this process holds the other end of the
//! input open.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Stdio};

use thiserror::Error;

use super::super::{Replies, Selection};
use crate::programs;
use convey_model::{Endpoint, Interface};

/// nftables table of the guard, with the `nft` process that owns it.
#[derive(Debug)]
pub(crate) struct Nftables {
    table: String,
    nft: Nft,
}

/// Errors of the nftables guard.
#[derive(Debug, Error)]
pub enum NftablesError {
    /// The system's directories of programs contain no `nft`.
    #[error("nft is not installed (Debian package nftables)")]
    Missing,
    /// `nft` exited early.
    #[error("nft exited unexpectedly{}", after_colon(.0))]
    Ended(String),
    /// `nft` or the kernel refused the rules.
    #[error("nft refused the rules: {0}")]
    Refused(String),
    /// A system call failed.
    #[error("nft: {0}")]
    System(#[from] io::Error),
}

impl Nftables {
    /// Guards these interfaces, in the calling thread's network namespace.
    pub(crate) fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Nftables, NftablesError> {
        let mut guard = Nftables { table: format!("convey_{}", std::process::id()), nft: Nft::start()? };
        guard.nft.run(&table(&guard.table, interfaces))?;
        guard.select(selection)?;
        Ok(guard)
    }

    /// Guards exactly these interfaces: recreates the table in one transaction. Has no effect if
    /// the list is empty. The new table has no record yet of the host's own connections at draining
    /// frontends.
    pub(crate) fn cover(
        &mut self,
        selection: &Selection,
        interfaces: &[Interface],
    ) -> Result<(), NftablesError> {
        if interfaces.is_empty() {
            return Ok(());
        }
        let name = &self.table;
        let (table, rules) = (table(name, interfaces), rules(name, selection));
        self.nft.run(&format!("delete table netdev {name}; {table}; {rules}"))
    }

    /// Replaces the rules in one transaction.
    pub(crate) fn select(&mut self, selection: &Selection) -> Result<(), NftablesError> {
        self.nft.run(&rules(&self.table, selection))
    }

    /// Name of the table, whose family is netdev.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }
}

/// Address families: nft's names of the family and of its address type.
const FAMILIES: [(&str, &str); 2] = [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")];

/// nft expressions for the fragments of one address family.
struct FragmentRules {
    /// Name of the set of packets whose first fragment was dropped.
    set: &'static str,
    /// Expression for the fields that all fragments of a packet share.
    key: &'static str,
    /// Expression that matches first fragments.
    first: &'static str,
    /// Expression that matches later fragments.
    later: &'static str,
}

const FRAGMENTS: [FragmentRules; 2] = [
    FragmentRules {
        set: "fragments_ip",
        key: "ip saddr . ip daddr . ip id . ip protocol",
        first: "ip frag-off & 0x3fff == 0x2000",
        later: "ip frag-off & 0x1fff != 0",
    },
    FragmentRules {
        set: "fragments_ip6",
        key: "ip6 saddr . ip6 daddr . frag id",
        first: "meta protocol ip6 frag frag-off 0 frag more-fragments 1",
        later: "meta protocol ip6 frag frag-off != 0",
    },
];

/// Command that creates the table. The table has no rules for packets yet, so it drops nothing.
/// (Packet sockets receive a copy of a frame before the ingress hook.)
///
/// Ingress rules cannot look up sockets. At a draining frontend, a TCP connection therefore counts
/// as the host's own if its SYN arrived after the draining began. Datagrams never count as the
/// host's own.
fn table(table: &str, interfaces: &[Interface]) -> String {
    let names: Vec<String> = interfaces.iter().map(|interface| format!("{:?}", interface.name)).collect();
    let mut text = format!(
        "add table netdev {table} {{ flags owner; }}; add chain netdev {table} forwarded \
         {{ type filter hook ingress devices = {{ {} }} priority 0; policy accept; }}; \
         add chain netdev {table} ours; add chain netdev {table} draining; add counter netdev {table} stacked_tags",
        names.join(", ")
    );
    for FragmentRules { set, key, first, .. } in FRAGMENTS {
        let _ = write!(
            text,
            "; add set netdev {table} {set} {{ typeof {key}; flags dynamic, timeout; timeout 2s; size 65536; }}\
             ; add rule netdev {table} ours {first} add @{set} {{ {key} }}"
        );
    }
    let _ = write!(text, "; add rule netdev {table} ours drop");
    for (family, address) in FAMILIES {
        let set = format!("hosts_{family}");
        let key = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
        let rule = format!("; add rule netdev {table} draining");
        let syn = "tcp flags & (syn | rst | ack) == syn";
        let _ = write!(
            text,
            "; add set netdev {table} {set} {{ type {address} . inet_service . {address} . inet_service; \
             flags dynamic, timeout; timeout 1h; size 65536; }}\
             {rule} {syn} update @{set} {{ {key} timeout 1m }}\
             {rule} meta protocol {family} {syn} accept\
             {rule} {key} @{set} update @{set} {{ {key} timeout 1h }} accept"
        );
    }
    let _ = write!(text, "; add rule netdev {table} draining goto ours");
    text
}

/// Command that replaces the rules of the table by the rules for a selection. The rules match the
/// same packets as the BPF program (`bpf/README.md`). Ports are matched only in unfragmented
/// packets and in first fragments, because later fragments do not contain ports.
fn rules(table: &str, selection: &Selection) -> String {
    let rule = format!("; add rule netdev {table} forwarded");
    let mut text = format!(
        "flush chain netdev {table} forwarded{rule} meta pkttype != host accept\
         {rule} ether type {{ 8021q, 8021ad }} @ll,116,12 != 0 accept\
         {rule} meta protocol {{ 8021q, 8021ad }} @nh,4,12 0 counter name stacked_tags drop{rule} rt seg-left > 0 accept"
    );
    // A first fragment that passes may have the ID of an older packet whose first fragment was
    // dropped: remove that packet from the set.
    for FragmentRules { set, key, first, later } in FRAGMENTS {
        let _ = write!(text, "{rule} {later} {key} @{set} drop{rule} {first} delete @{set} {{ {key} }}");
    }
    for (family, _) in FAMILIES {
        let is_of_family = |ip: &IpAddr| ip.is_ipv4() == (family == "ip");
        let endpoints = |all: &BTreeSet<Endpoint>| {
            let of_family = all.iter().filter(|endpoint| is_of_family(&endpoint.addr.ip()));
            set(with_ports(of_family.filter(|endpoint| endpoint.addr.port() != 0)))
        };
        for (all, verdict) in [(&selection.frontends, "goto ours"), (&selection.draining, "goto draining")] {
            if let Some(frontends) = endpoints(all) {
                let _ = write!(text, "{rule} {family} daddr . meta l4proto . th dport {frontends} {verdict}");
            }
        }
        let Some(Replies { servers, snat_addresses, snat_ports }) = &selection.replies else { continue };
        let addresses = set(snat_addresses.iter().filter(|ip| is_of_family(ip)).map(IpAddr::to_string));
        let at_any_port = servers.iter().filter(|server| server.addr.port() == 0);
        let at_any_port = at_any_port.filter(|server| is_of_family(&server.addr.ip()));
        let at_any_port = set(at_any_port.map(|s| format!("{} . {}", s.addr.ip(), s.protocol.name())));
        let sources = [
            endpoints(servers).map(|servers| format!("{family} saddr . meta l4proto . th sport {servers}")),
            at_any_port.map(|servers| format!("{family} saddr . meta l4proto {servers}")),
        ];
        let (first, last) = (snat_ports.start(), snat_ports.end());
        for source in sources.into_iter().flatten() {
            if let Some(addresses) = &addresses {
                let _ = write!(
                    text,
                    "{rule} {source} {family} daddr {addresses} th dport {first}-{last} goto ours"
                );
            }
        }
    }
    text
}

/// Formats addresses, protocols and ports. Consecutive ports are merged into ranges.
fn with_ports<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> impl Iterator<Item = String> {
    let endpoints: Vec<&Endpoint> = endpoints.collect();
    let is_next = |a: &&Endpoint, b: &&Endpoint| {
        (a.protocol, a.addr.ip(), a.addr.port().checked_add(1))
            == (b.protocol, b.addr.ip(), Some(b.addr.port()))
    };
    let rows: Vec<String> = endpoints
        .chunk_by(is_next)
        .map(|row| {
            let Endpoint { protocol, addr } = row[0];
            let ports = match row {
                [.., last] if row.len() > 1 => format!("{}-{}", addr.port(), last.addr.port()),
                _ => addr.port().to_string(),
            };
            format!("{} . {} . {ports}", addr.ip(), protocol.name())
        })
        .collect();
    rows.into_iter()
}

/// Formats a set for nft. `None` if there are no elements, because nft has no empty sets.
fn set(elements: impl Iterator<Item = String>) -> Option<String> {
    let elements: Vec<String> = elements.collect();
    (!elements.is_empty()).then(|| format!("{{ {} }}", elements.join(", ")))
}

/// Running `nft` that executes commands and owns the tables they create. Dropping it ends the
/// process.
#[derive(Debug)]
struct Nft {
    child: Child,
    commands: ChildStdin,
    errors: BufReader<ChildStderr>,
    sent: u64,
}

impl Nft {
    fn start() -> Result<Nft, NftablesError> {
        let mut command = programs::command("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Keep nft from writing its history of commands.
        command.env("HOME", "/dev/null");
        // Ctrl-C is meant for convey; nft must keep the guard until convey ends.
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

    /// Runs a command, and waits until nft has executed it.
    ///
    /// nft prints nothing on success. So an invalid command (an end marker) follows each command:
    /// when nft reports the end marker as an error, all errors of the command itself have been
    /// read.
    fn run(&mut self, command: &str) -> Result<(), NftablesError> {
        self.sent += 1;
        let end = format!("end_of_{}", self.sent);
        // Errors are ignored here: reading below detects an nft that has exited, and returns its
        // last output.
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
        // The last error is about the end marker.
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

    fn endpoints(all: &[&str]) -> BTreeSet<Endpoint> {
        let endpoint = |text: &&str| match text.strip_suffix("/udp") {
            Some(addr) => Endpoint::udp(addr.parse().unwrap()),
            None => Endpoint::tcp(text.parse().unwrap()),
        };
        all.iter().map(endpoint).collect()
    }

    fn selection(frontends: &[&str], servers: &[&str], snat_addresses: &[&str]) -> Selection {
        let replies = Replies {
            servers: endpoints(servers),
            snat_addresses: snat_addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            snat_ports: 33768..=61000,
        };
        Selection { frontends: endpoints(frontends), draining: BTreeSet::new(), replies: Some(replies) }
    }

    /// Rules that drop packets of the selection, without the general rules before them.
    fn ours(selection: &Selection) -> Vec<String> {
        let text = rules("t", selection);
        let (_, ours) = text.rsplit_once("delete @").unwrap();
        ours.split("; add rule netdev t forwarded ").skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn adjacent_ports_become_a_range_and_portless_servers_have_none() {
        let frontends =
            ["10.0.0.1:80", "10.0.0.1:21000", "10.0.0.1:21001", "10.0.0.1:21002", "10.0.0.2:21003"];
        let both = selection(&frontends, &["10.1.0.1:8080", "10.1.0.2:0", "10.1.0.3:0/udp"], &["10.0.0.1"]);
        let to_snat = "ip daddr { 10.0.0.1 } th dport 33768-61000 goto ours";
        assert_eq!(
            ours(&both),
            [
                "ip daddr . meta l4proto . th dport { 10.0.0.1 . tcp . 80, 10.0.0.1 . tcp . 21000-21002, \
                 10.0.0.2 . tcp . 21003 } goto ours",
                &format!("ip saddr . meta l4proto . th sport {{ 10.1.0.1 . tcp . 8080 }} {to_snat}"),
                &format!("ip saddr . meta l4proto {{ 10.1.0.2 . tcp, 10.1.0.3 . udp }} {to_snat}"),
            ]
        );
    }

    #[test]
    fn rules_drop_frontends_and_replies_to_snat_ports_and_nothing_else() {
        let frontends = ["10.0.0.1:80", "10.0.0.1:53/udp"];
        let both = selection(&frontends, &["10.1.0.1:8080", "10.1.0.1:53/udp"], &["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            ours(&both),
            [
                "ip daddr . meta l4proto . th dport { 10.0.0.1 . tcp . 80, 10.0.0.1 . udp . 53 } goto ours",
                "ip saddr . meta l4proto . th sport { 10.1.0.1 . tcp . 8080, 10.1.0.1 . udp . 53 } \
                 ip daddr { 10.0.0.1, 10.0.0.2 } th dport 33768-61000 goto ours",
            ]
        );
        assert_eq!(ours(&Selection { replies: None, ..both }).len(), 1);
    }

    #[test]
    fn each_family_has_rules_of_its_own_and_an_empty_set_none() {
        let mixed = selection(&["[2001:db8::1]:80"], &["10.1.0.1:80", "[2001:db8::2]:80"], &["2001:db8::9"]);
        assert_eq!(
            ours(&mixed),
            [
                "ip6 daddr . meta l4proto . th dport { 2001:db8::1 . tcp . 80 } goto ours",
                "ip6 saddr . meta l4proto . th sport { 2001:db8::2 . tcp . 80 } \
                 ip6 daddr { 2001:db8::9 } th dport 33768-61000 goto ours",
            ]
        );
        assert_eq!(ours(&selection(&[], &[], &[])), [""; 0]);
    }

    #[test]
    fn a_frontend_that_serves_again_no_longer_drains() {
        let draining = endpoints(&["10.0.0.1:80"]);
        assert_eq!(
            ours(&Selection { draining, ..selection(&["10.0.0.1:80"], &[], &[]) }),
            [
                "ip daddr . meta l4proto . th dport { 10.0.0.1 . tcp . 80 } goto ours",
                "ip daddr . meta l4proto . th dport { 10.0.0.1 . tcp . 80 } goto draining",
            ],
            "the first rule is asked first"
        );
    }
}
