//! Rollout: all pods of a Service are replaced, one after the other, while clients send requests.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, fetch, wait_for};
use serde_json::Value;

use super::fake_api::Condition::{Ready, Terminating};
use super::fake_api::{FakeApi, endpoint};
use super::{setup, wait_for_servers};
use crate::http::client::Client;

/// Before the rollout, and after it.
const OLD: [&str; 4] = ["web-old-1", "web-old-2", "web-old-3", "web-old-4"];
const NEW: [&str; 4] = ["web-new-1", "web-new-2", "web-new-3", "web-new-4"];

pub(super) fn rollout_under_load_fails_no_connection() {
    replace_all("mode = \"proxy\"\n", a_connection_each, on_a_new_connection);
}

pub(super) fn rollout_under_load_fails_no_request() {
    replace_all("mode = \"http\"\n", on_kept_connections, on_a_kept_connection);
}

/// An [`Ask`] that keeps no connection.
pub(super) fn on_a_new_connection(_: &mut Option<Client>, vip: SocketAddr) -> u16 {
    fetch(vip, "/").map_or(0, |(status, _)| status)
}

/// An [`Ask`] on one HTTP connection.
pub(super) fn on_a_kept_connection(kept: &mut Option<Client>, vip: SocketAddr) -> u16 {
    let head = kept.get_or_insert_with(|| Client::new(vip)).get("shop.example", "/").head;
    // After `max_requests`.
    if head.to_ascii_lowercase().contains("connection: close") {
        *kept = None;
    }
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Starts a pod of this name. It ends when it is dropped.
pub(super) type StartPod = fn(&'static str, SocketAddr) -> Box<dyn Any>;

/// A [`StartPod`] for pods that answer one request on each connection.
pub(super) fn a_connection_each(name: &'static str, addr: SocketAddr) -> Box<dyn Any> {
    Box::new(TcpServer::named(name, addr))
}

/// A [`StartPod`] for pods that keep connections.
pub(super) fn on_kept_connections(name: &'static str, addr: SocketAddr) -> Box<dyn Any> {
    Box::new(TestHttpServer::named(name, addr))
}

/// Sends a request, perhaps on a kept connection, and returns the status of the answer.
pub(super) type Ask = fn(&mut Option<Client>, SocketAddr) -> u16;

/// Requests over and over, with a count of failures.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: JoinHandle<usize>,
}

impl Load {
    pub(super) fn start(fetch: Ask, vip: SocketAddr) -> Load {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, count) = (stop.clone(), asked.clone());
        let thread = thread::spawn(move || {
            let (mut kept, mut failed) = (None, 0);
            while !stopped.load(Ordering::Relaxed) {
                failed += usize::from(fetch(&mut kept, vip) != 200);
                count.fetch_add(1, Ordering::Relaxed);
            }
            failed
        });
        Load { stop, asked, thread }
    }

    /// Waits until each of them has received more answers.
    pub(super) fn wait_for_more(all: &[Load]) {
        let asked = |load: &Load| load.asked.load(Ordering::Relaxed);
        let before: Vec<usize> = all.iter().map(asked).collect();
        wait_for("answers to everybody", || {
            all.iter().zip(&before).all(|(load, before)| asked(load) >= before + 20).then_some(())
        });
    }

    /// Number of requests, and number of failures.
    pub(super) fn end(all: Vec<Load>) -> (usize, usize) {
        all.iter().for_each(|load| load.stop.store(true, Ordering::Relaxed));
        all.into_iter().fold((0, 0), |(asked, failed), load| {
            let more = load.thread.join().unwrap();
            (asked + load.asked.load(Ordering::Relaxed), failed + more)
        })
    }
}

fn replace_all(frontend: &str, start: StartPod, fetch: Ask) {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let at = |pod: &str| -> SocketAddr {
        let n = OLD.iter().chain(&NEW).position(|name| *name == pod).unwrap();
        lab.server(n as u8 + 1)
    };
    let mut pods: Vec<(&'static str, Box<dyn Any>)> =
        OLD.iter().map(|pod| (*pod, start(pod, at(pod)))).collect();
    let publish = |pods: &[(&'static str, Box<dyn Any>)], ends: Option<&str>| {
        let condition = |pod: &str| if ends == Some(pod) { Terminating } else { Ready };
        let all: Vec<Value> = pods.iter().map(|(pod, _)| endpoint(pod, at(pod), condition(pod))).collect();
        // Two slices, so that some pods move from one to the other.
        let (first, second) = all.split_at(all.len() / 2);
        api.apply("web-1", first);
        api.apply("web-2", second);
    };
    publish(&pods, None);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api).frontend(frontend));
    let load: Vec<Load> = (0..4).map(|_| Load::start(fetch, lab.vip())).collect();
    Load::wait_for_more(&load);
    for (old, new) in OLD.into_iter().zip(NEW) {
        pods.push((new, start(new, at(new))));
        publish(&pods, None);
        wait_for("the new pod to serve", || {
            let servers = &balancer.stats()["backends"]["pool"]["servers"];
            servers.get(new)?["total_connections"].as_u64().filter(|given| *given > 0)
        });
        publish(&pods, Some(old));
        balancer.wait_for_stat(&format!("/backends/pool/servers/{old}/state"), "drain");
        balancer.wait_for_stat(&format!("/backends/pool/servers/{old}/current_connections"), 0);
        // The pod ends, and its endpoint is removed afterwards.
        pods.retain(|(pod, _)| *pod != old);
        publish(&pods, None);
        Load::wait_for_more(&load);
    }
    wait_for_servers(&balancer, NEW);
    let (asked, failed) = Load::end(load);
    assert!(asked > 400, "{asked}");
    assert_eq!(failed, 0, "of {asked}");
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
}
