//! Interprets a server's answer to a SYN. Pure.

use std::io::ErrorKind;
use std::net::SocketAddr;

use convey_model::DsrKind;
use convey_wire::VipAnswer;

use crate::{Diagnosis, Severity};

/// Minimum number of failed handshakes of clients that doctor reports as a fault.
const FEW: u64 = 5;

/// A server and one VIP, to be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathTarget {
    /// Backend and server, in the form that commands accept.
    pub(super) name: String,
    pub(super) backend: String,
    pub(super) server_name: String,
    pub(super) vip: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) dsr: DsrKind,
}

/// Outcome of probing one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SeenOnPath {
    /// No SYN was sent, because the Ethernet address of the next hop is unknown.
    NoNextHop,
    /// The server answered the SYN.
    Answer(VipAnswer),
    /// The server answered an ARP request for the VIP.
    HasVip,
    /// The server did not answer. Holds the error of a connection to the server's own address;
    /// `None` if the server accepted that connection.
    Silence(Option<ErrorKind>),
    /// The probe could not be sent.
    NotTried,
}

/// Leg of the path of direct server return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathLeg {
    Forward,
    Return,
}

/// Handshakes of clients with a server, counted by the running convey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClientHandshakes {
    /// Handshakes completed since convey started.
    pub(super) completed: u64,
    /// Handshakes completed while doctor ran.
    pub(super) completed_meanwhile: u64,
    /// Handshakes that clients have started since the last completed handshake.
    pub(super) consecutive_incomplete: u64,
}

impl ClientHandshakes {
    /// Whether the server completes handshakes with clients now, whatever the outcome of the probe.
    fn are_served(self) -> bool {
        self.completed_meanwhile > 0
    }

    /// Whether the last handshake of a client succeeded.
    fn was_last_served(self) -> bool {
        self.completed > 0 && self.consecutive_incomplete == 0
    }
}

/// Finding for the leg of the path that failed; `None` if both legs work.
pub(super) fn diagnosis(
    target: &PathTarget,
    seen: SeenOnPath,
    clients: ClientHandshakes,
) -> Option<Diagnosis> {
    let (own, vip) = (target.server, target.vip);
    let consecutive_incomplete = clients.consecutive_incomplete;
    let found = |leg, seen: String, why: &str| Some(finding(target, leg, &seen, why));
    match seen {
        SeenOnPath::NotTried => None,
        SeenOnPath::HasVip => {
            let mut found = finding(
                target,
                PathLeg::Forward,
                &format!("answers ARP requests for {}", vip.ip()),
                "So clients and routers may send packets to this server instead of the balancer. The server must not answer ARP requests for the VIP.",
            );
            if clients.are_served() {
                found.severity = Severity::Warning;
            }
            Some(found)
        }
        _ if clients.are_served() => None,
        // Rules of the server may exclude the VIP, which is the source address of doctor's probe.
        SeenOnPath::Answer(VipAnswer::WrongSource { .. }) if clients.was_last_served() => None,
        SeenOnPath::Answer(VipAnswer::Accepted) => {
            if consecutive_incomplete < FEW {
                return None;
            }
            found(
                PathLeg::Return,
                format!(
                    "accepts a connection of this host to {vip}, but clients completed none of their last {consecutive_incomplete} handshakes"
                ),
                "Answers of the server to this host need no router. Its answers to clients are lost: its gateway is wrong, or a firewall on the path drops them.",
            )
        }
        SeenOnPath::NoNextHop => found(
            PathLeg::Forward,
            "no host on the link answers for its address".to_owned(),
            "So convey cannot send packets to the server. The server is down, or it has another address.",
        ),
        SeenOnPath::Answer(VipAnswer::WrongSource { from }) => found(
            PathLeg::Return,
            format!("the server answers a client of {vip} with the source address {from}"),
            "Clients ignore such answers. The rules on the server that set the VIP as the source address are missing, or are for another port or interface.",
        ),
        SeenOnPath::Answer(VipAnswer::Refused { from }) => found(
            PathLeg::Forward,
            format!("the server refuses a client of {vip} with a reset from {from}"),
            "No service on the server listens on the address and port of these packets, or a firewall rejects them.",
        ),
        SeenOnPath::Answer(VipAnswer::Unreachable { from, icmp: [kind, code] }) => found(
            PathLeg::Forward,
            format!("a client of {vip} is rejected by {from} (ICMP type {kind}, code {code})"),
            if from == own.ip() || from == vip.ip() {
                "A firewall of the server rejects clients."
            } else {
                "A router on the path rejects packets, or has no route to the server."
            },
        ),
        SeenOnPath::Silence(met) => Some(silent(target, met)),
    }
}

/// Finding for a server that does not answer the probe. `met` is the error of a connection to the
/// server's own address, which shows whether the host is up.
fn silent(target: &PathTarget, met: Option<ErrorKind>) -> Diagnosis {
    let PathTarget { server: own, vip, .. } = target;
    let does = match met {
        None => Some("accepts"),
        // The host is up; its service may listen only on the VIP.
        Some(ErrorKind::ConnectionRefused) => Some("refuses"),
        Some(_) => None,
    };
    if let Some(does) = does {
        let why = match target.dsr {
            DsrKind::L2 => {
                "The server drops packets for the VIP: the VIP is not on lo, or rp_filter or a firewall drops the packets."
            }
            DsrKind::Ipip | DsrKind::Gue => {
                "The server drops packets of the tunnel, or the packets for the VIP in them: it has no tunnel device, or rp_filter or a firewall drops the packets."
            }
            DsrKind::L3 => {
                "The server drops packets of clients (a firewall, rp_filter), or its answers take another path (its routes)."
            }
        };
        let seen = format!(
            "the server does not answer a client of {vip}, but {does} connections to its own address {own}"
        );
        return finding(target, PathLeg::Forward, &seen, why);
    }
    let kind = met.unwrap_or(ErrorKind::TimedOut);
    let seen = format!(
        "the server answers neither a client of {vip} nor a connection to its own address {own} ({kind})"
    );
    finding(target, PathLeg::Forward, &seen, "The server is down, or a firewall drops the packets.")
}

fn finding(target: &PathTarget, leg: PathLeg, seen: &str, why: &str) -> Diagnosis {
    let PathTarget { name, vip, server, .. } = target;
    let (check, leg) = match leg {
        PathLeg::Forward => ("dsr-forward-leg", "client -> VIP -> server"),
        PathLeg::Return => ("dsr-return-leg", "server -> client"),
    };
    Diagnosis {
        check,
        severity: Severity::Error,
        seen: format!("server {name} ({server}), leg {leg}: {seen}"),
        why: why.to_owned(),
        on: Some(format!("server {name} ({})", server.ip())),
        fix: vec![format!("convey doctor --server {vip}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(dsr: DsrKind) -> PathTarget {
        PathTarget {
            name: "pool/s1".to_owned(),
            backend: "pool".to_owned(),
            server_name: "s1".to_owned(),
            vip: "10.77.0.100:80".parse().unwrap(),
            server: "10.77.0.11:80".parse().unwrap(),
            dsr,
        }
    }

    #[test]
    fn each_answer_tells_of_a_leg() {
        let [vip, server]: [SocketAddr; 2] = [target(DsrKind::L3).vip, target(DsrKind::L3).server];
        for (seen, check, text) in [
            (
                SeenOnPath::Answer(VipAnswer::WrongSource { from: server }),
                "dsr-return-leg",
                "with the source address 10.77.0.11:80",
            ),
            (
                SeenOnPath::Answer(VipAnswer::Refused { from: vip }),
                "dsr-forward-leg",
                "with a reset from 10.77.0.100:80",
            ),
            (
                SeenOnPath::Answer(VipAnswer::Unreachable { from: server.ip(), icmp: [3, 3] }),
                "dsr-forward-leg",
                "(ICMP type 3, code 3)",
            ),
            (SeenOnPath::HasVip, "dsr-forward-leg", "answers ARP requests for 10.77.0.100"),
            (SeenOnPath::NoNextHop, "dsr-forward-leg", "no host on the link answers"),
            (SeenOnPath::Silence(None), "dsr-forward-leg", "but accepts connections to its own address"),
            (
                SeenOnPath::Silence(Some(ErrorKind::ConnectionRefused)),
                "dsr-forward-leg",
                "but refuses connections to its own address",
            ),
            (
                SeenOnPath::Silence(Some(ErrorKind::TimedOut)),
                "dsr-forward-leg",
                "nor a connection to its own address",
            ),
        ] {
            for dsr in DsrKind::ALL {
                let found = diagnosis(&target(dsr), seen.clone(), ClientHandshakes::default()).unwrap();
                assert_eq!(found.check, check);
                assert!(found.seen.starts_with("server pool/s1 (10.77.0.11:80), leg "), "{}", found.seen);
                assert!(found.seen.contains(text), "{}", found.seen);
                assert_eq!(found.on.as_deref(), Some("server pool/s1 (10.77.0.11)"));
                assert_eq!(found.fix[0], "convey doctor --server 10.77.0.100:80");
            }
        }
    }

    #[test]
    fn a_server_that_accepts_is_fine_unless_clients_complete_nothing_of_late() {
        let told = |consecutive_incomplete| {
            let accepted = SeenOnPath::Answer(VipAnswer::Accepted);
            let clients = ClientHandshakes { consecutive_incomplete, ..ClientHandshakes::default() };
            diagnosis(&target(DsrKind::L3), accepted, clients).map(|found| found.check)
        };
        let clients = ClientHandshakes { consecutive_incomplete: 9, ..ClientHandshakes::default() };
        assert_eq!(diagnosis(&target(DsrKind::L2), SeenOnPath::NotTried, clients), None);
        assert_eq!([told(0), told(4)], [None; 2]);
        assert_eq!([told(5), told(100)], [Some("dsr-return-leg"); 2]);
    }
    #[test]
    fn server_is_not_broken_while_clients_complete_handshakes() {
        let from = target(DsrKind::L3).server;
        let wrong = SeenOnPath::Answer(VipAnswer::WrongSource { from });
        let severity =
            |seen: &SeenOnPath, [completed, completed_meanwhile, consecutive_incomplete]: [u64; 3]| {
                let clients = ClientHandshakes { completed, completed_meanwhile, consecutive_incomplete };
                diagnosis(&target(DsrKind::L3), seen.clone(), clients).map(|found| found.severity)
            };
        for seen in [&wrong, &SeenOnPath::Silence(None), &SeenOnPath::Answer(VipAnswer::Accepted)] {
            assert_eq!(severity(seen, [9, 1, 5]), None);
            assert_eq!(severity(seen, [9, 0, 5]), Some(Severity::Error));
        }
        assert_eq!(severity(&SeenOnPath::HasVip, [9, 1, 0]), Some(Severity::Warning), "an error soon");
        assert_eq!(severity(&wrong, [9, 0, 0]), None, "the last client was served");
        assert_eq!(severity(&wrong, [9, 0, 1]), Some(Severity::Error));
        assert_eq!(severity(&wrong, [0, 0, 0]), Some(Severity::Error), "no client has tried");
        assert_eq!(severity(&SeenOnPath::Silence(None), [9, 0, 0]), Some(Severity::Error));
    }
}
