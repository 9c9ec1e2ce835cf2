//! Captures packets at several interfaces of a lab.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use convey_lab::{INTERFACE, Lab, Role};
use convey_model::FlowKey;
use convey_wire::Headers;
use pnet_datalink::{Channel, Config};

/// Upper bound for the wait for a frame, after which a capture checks whether it should end.
const CAPTURE_TIMEOUT: Duration = Duration::from_millis(50);

/// Maximum number of packets in the list.
const MAX_PACKETS_SHOWN: usize = 40;

/// Runs `action` while capturing on the interfaces of `roles`. Returns a list of the TCP packets in
/// the order in which they were sent.
pub(super) fn record<T>(lab: &Lab, roles: &[Role], action: impl FnOnce() -> T) -> String {
    let (seen, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let ready = Barrier::new(roles.len() + 1);
    thread::scope(|scope| {
        for role in roles {
            let (seen, over, ready) = (&seen, &over, &ready);
            scope.spawn(move || {
                let capture = lab.join(*role).ok().and_then(|()| open());
                ready.wait();
                let Some(mut frames) = capture else { return };
                while !over.load(Ordering::Relaxed) {
                    if let Ok(headers) =
                        frames.next().map_err(drop).and_then(|f| convey_wire::parse(f).map_err(drop))
                        && let Ok(mut seen) = seen.lock()
                    {
                        seen.push((*role, headers));
                    }
                }
            });
        }
        ready.wait();
        action();
        thread::sleep(LAST_PACKETS_WAIT);
        over.store(true, Ordering::Relaxed);
    });
    trace_lines(&seen.into_inner().unwrap_or_default())
}

/// Lists the packets of the request. At each interface, these are the packets of the connection
/// that was opened first, because a previous connection may still be closing.
fn trace_lines(seen: &[(Role, Headers)]) -> String {
    let opens = |headers: &Headers| headers.flags.syn() && !headers.flags.ack();
    let mut connections: Vec<(Role, FlowKey)> = Vec::new();
    for (role, headers) in seen.iter().filter(|(_, headers)| opens(headers) && !is_probe(headers)) {
        if !connections.iter().any(|(at, _)| at == role) {
            connections.push((*role, headers.key));
        }
    }
    let client = connections.iter().find(|(role, _)| matches!(role, Role::Client(_)));
    let Some((_, request)) = client else { return "nothing was captured\n".to_owned() };
    let mut told = format!("one request of {}, packet by packet:\n", request.source());
    let belongs = |(role, headers): &&(Role, Headers)| {
        connections.contains(&(*role, headers.key)) || connections.contains(&(*role, headers.key.reversed()))
    };
    let packets: Vec<(Role, Headers)> = seen.iter().filter(belongs).copied().collect();
    for (role, headers) in in_order(packets, &connections).iter().take(MAX_PACKETS_SHOWN) {
        told.push_str(&format!("  {}\n", line(*role, headers)));
    }
    told.push('\n');
    told
}

/// Sorts packets by the order in which they were sent. Each interface has its own reader thread, so
/// a copy at the receiver may be captured before the copy at the sender.
fn in_order(mut packets: Vec<(Role, Headers)>, connections: &[(Role, FlowKey)]) -> Vec<(Role, Headers)> {
    let is_request = |(role, headers): &(Role, Headers)| connections.contains(&(*role, headers.key));
    let is_at_client = |(role, _): &(Role, Headers)| matches!(role, Role::Client(_));
    // Addresses and ports differ between the copies, so the other fields are compared.
    let copy =
        |(_, headers): &(Role, Headers)| (headers.seq, headers.ack, headers.flags, headers.payload_len);
    let comes_first = |one: &(Role, Headers), other: &(Role, Headers)| {
        let is_same = copy(one) == copy(other) && is_request(one) == is_request(other);
        is_same && is_at_client(one) != is_at_client(other) && is_at_client(one) == is_request(one)
    };
    let mut ordered = Vec::with_capacity(packets.len());
    while !packets.is_empty() {
        let is_next = |at: &usize| {
            let packet = &packets[*at];
            let is_first_there = !packets[..*at].iter().any(|(role, _)| *role == packet.0);
            is_first_there && !packets.iter().any(|other| comes_first(other, packet))
        };
        let next = (0..packets.len()).find(is_next).unwrap_or(0);
        ordered.push(packets.remove(next));
    }
    ordered
}

/// Time to wait for the last packets after the action has ended.
const LAST_PACKETS_WAIT: Duration = Duration::from_millis(100);

fn open() -> Option<Box<dyn pnet_datalink::DataLinkReceiver>> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == INTERFACE)?;
    let config =
        Config { read_timeout: Some(CAPTURE_TIMEOUT), read_buffer_size: 1 << 17, ..Config::default() };
    match pnet_datalink::channel(&interface, config) {
        Ok(Channel::Ethernet(_, frames)) => Some(frames),
        _ => None,
    }
}

/// Whether a packet belongs to a health check: these use the balancer's own address and a port
/// below the SNAT range.
fn is_probe(headers: &Headers) -> bool {
    let from = headers.key.source();
    from.ip() == Role::Balancer.address() && from.port() < 33_768
}

fn line(role: Role, headers: &Headers) -> String {
    let flags = headers.flags;
    let names = [(flags.syn(), "SYN"), (flags.fin(), "FIN"), (flags.rst(), "RST"), (flags.ack(), "ACK")];
    let flags: Vec<&str> = names.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    let (source, destination) = (headers.key.source().to_string(), headers.key.destination().to_string());
    let bytes = match headers.payload_len {
        0 => String::new(),
        n => format!(", {n} bytes"),
    };
    format!("at {role:<8} {source:>18} -> {destination:<18} {}{bytes}", flags.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_wire::TestPacket;

    #[test]
    fn packets_are_in_the_order_in_which_they_were_sent() {
        let (client, server) = (Role::Client(1), Role::Server(2));
        let (from, vip) = ("10.77.0.201:4001", "10.77.0.100:80");
        let (balancer, own) = ("10.77.0.1:50000", "10.77.0.12:80");
        let between = |from: &str, to: &str| TestPacket::from(from).to(to);
        let answer = |from: &str, to: &str| between(from, to).seq(7).syn().ack(2);
        let sent = [
            (client, between(from, vip).seq(1).syn()),
            (server, between(balancer, own).seq(1).syn()),
            (server, answer(own, balancer)),
            (client, answer(vip, from)),
            (client, between(from, vip).seq(2).ack(8)),
            (server, between(balancer, own).seq(2).ack(8)),
        ];
        let lines = |order: [usize; 6]| {
            let seen = order.map(|at| (sent[at].0, convey_wire::parse(&sent[at].1.clone().bytes()).unwrap()));
            trace_lines(&seen)
        };
        let expected = lines([0, 1, 2, 3, 4, 5]);
        for order in [[1, 0, 2, 3, 4, 5], [0, 3, 4, 1, 2, 5], [1, 2, 5, 0, 3, 4]] {
            assert_eq!(lines(order), expected, "{order:?}");
        }
    }

    #[test]
    fn packet_trace_has_the_packets_of_one_request_only() {
        let (client, server) = (Role::Client(1), Role::Server(2));
        let (old, new) = ("10.77.0.201:4000", "10.77.0.201:4001");
        let (vip, balancer, own) = ("10.77.0.100:80", "10.77.0.1:50000", "10.77.0.12:80");
        let between = |from: &str, to: &str| TestPacket::from(from).to(to);
        let seen = [
            (client, between(old, vip).fin().ack(9)),
            (server, between("10.77.0.1:33000", own).syn()),
            (client, between(new, vip).syn()),
            (client, between(vip, old).ack(9)),
            (server, between(balancer, own).syn()),
            (server, between(own, balancer).syn().ack(1)),
            (client, between(vip, new).syn().ack(1)),
        ];
        let seen = seen.map(|(role, packet)| (role, convey_wire::parse(&packet.bytes()).unwrap()));
        let told = trace_lines(&seen);
        let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["one", "request", "of", "10.77.0.201:4001,"]);
        let routes: Vec<_> = lines[1..lines.len() - 1].iter().map(|line| (line[2], line[4])).collect();
        assert_eq!(routes, [(new, vip), (balancer, own), (own, balancer), (vip, new)]);
    }
}
