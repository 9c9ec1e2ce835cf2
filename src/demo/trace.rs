//! Packets as several interfaces of a lab see them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use pnet_datalink::{Channel, Config};

use super::lab::{INTERFACE, Lab, Role};
use crate::wire::{self, Headers};

/// How long a capture waits for a frame before it asks whether it is over.
const PATIENCE: Duration = Duration::from_millis(50);

/// Most packets told.
const MOST: usize = 40;

/// Does `action` while capturing on the interfaces of `roles`; tells what TCP passed, in the order it was seen.
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
                        frames.next().map_err(drop).and_then(|f| wire::parse(f).map_err(drop))
                        && let Ok(mut seen) = seen.lock()
                    {
                        seen.push((*role, headers));
                    }
                }
            });
        }
        ready.wait();
        action();
        thread::sleep(PAUSE);
        over.store(true, Ordering::Relaxed);
    });
    let seen = seen.into_inner().unwrap_or_default();
    // Health checks pass too; what counts is the connection that both ends are seen of.
    // What comes before its first packet is left from an earlier one.
    let begins = |(role, headers): &(Role, Headers)| {
        matches!(role, Role::Client(_)) && headers.flags.syn() && !headers.flags.ack()
    };
    let Some(begin) = seen.iter().position(begins) else { return "nothing was captured\n".to_owned() };
    let seen = &seen[begin..];
    let client = seen[0].1.key.source();
    let mut told = format!("one request of {client}, packet by packet:\n");
    for (role, headers) in seen.iter().filter(|(role, headers)| belongs(*role, headers)).take(MOST) {
        told.push_str(&format!("  {}\n", line(*role, headers)));
    }
    told.push('\n');
    told
}

/// For the last packets to come through.
const PAUSE: Duration = Duration::from_millis(100);

fn open() -> Option<Box<dyn pnet_datalink::DataLinkReceiver>> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == INTERFACE)?;
    let config = Config { read_timeout: Some(PATIENCE), read_buffer_size: 1 << 17, ..Config::default() };
    match pnet_datalink::channel(&interface, config) {
        Ok(Channel::Ethernet(_, frames)) => Some(frames),
        _ => None,
    }
}

/// Health checks come from the balancer's own address and a port below the SNAT range.
fn belongs(role: Role, headers: &Headers) -> bool {
    let balancer = Role::Balancer.address();
    let probe = |addr: std::net::SocketAddr| addr.ip() == balancer && addr.port() < 33_768;
    matches!(role, Role::Client(_)) || !(probe(headers.key.source()) || probe(headers.key.destination()))
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
