//! Several balancers with the same configuration choose the same server for a flow, no matter which
//! history they have.

use std::collections::BTreeMap;

use convey_model::Algorithm;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const SERVERS: usize = 8;

/// History of a node before it gets the common configuration: its start, probes and a reload.
#[derive(Debug, Clone)]
struct Past {
    /// Index of the first server in the node's first file. The other servers follow in order.
    first: usize,
    /// Number of servers in the node's first file.
    began_with: usize,
    /// Outcomes of probes before the common configuration: a server, and whether it answered.
    probes: Vec<(Index, bool)>,
    /// Time of the node's start, in seconds.
    begun: u64,
}

fn pasts() -> impl Strategy<Value = Past> {
    let probes = prop::collection::vec((any::<Index>(), any::<bool>()), 0..10);
    (0..SERVERS, 1..=SERVERS, probes, 0..1_000_u64).prop_map(|(first, began_with, probes, begun)| Past {
        first,
        began_with,
        probes,
        begun,
    })
}

/// Servers of different weights, in order, starting with server `first`.
fn servers(first: usize) -> Vec<ServerConfig> {
    let mut servers: Vec<ServerConfig> = (0..SERVERS)
        .map(|number| {
            let mut server = server(&format!("s{number}"), &format!("10.0.0.{}:80", 2 + number));
            server.settings.weight = 1 + number as u16 % 3;
            server
        })
        .collect();
    servers.rotate_left(first);
    servers
}

/// Snapshot of a node with a history, after probes have found the servers that are set in `up` up
/// and all other servers down.
fn node(algorithm: Algorithm, past: &Past, up: &[bool]) -> Arc<Snapshot> {
    let with = |servers| {
        let mut config = config(servers);
        config.backends[0].algorithm = algorithm;
        config
    };
    let all = with(servers(past.first));
    let mut at = past.begun * 1_000_000_000;
    let mut tick = || {
        at += 1_000_000;
        Timestamp(at)
    };
    let mut state = ControlState::new(1);
    state.configure(with(servers(past.first).split_off(SERVERS - past.began_with)), tick());
    state.configure(all.clone(), tick());
    for (index, success) in &past.probes {
        state.on_probe(&key_of(&all, index.index(SERVERS)), *success, "the past".into(), tick());
        state.take_update();
    }
    for (index, server) in all.backends[0].servers.iter().enumerate() {
        let number: usize = server.name[1..].parse().unwrap();
        state.on_probe(&key_of(&all, index), up[number], "the present".into(), tick());
    }
    state.configure(all, tick())
}

/// Server that each of 200 clients gets.
fn choices(snapshot: &Snapshot) -> BTreeMap<SocketAddr, Option<String>> {
    let vip: SocketAddr = VIP.parse().unwrap();
    let pool = &snapshot.listener(&Endpoint::tcp(vip)).unwrap().pool;
    let client = |number: u16| SocketAddr::from(([203, 0, 113, number as u8], 40_000 + 7 * number));
    let server = |client| match pool.pick(client, vip, &[]) {
        Pick::Server(index) => Some(pool.servers[index].config.name.clone()),
        Pick::Busy | Pick::Nobody => None,
    };
    (0..200).map(client).map(|client| (client, server(client))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nodes_with_the_same_servers_up_choose_the_same_for_every_flow(
        algorithm in prop::sample::select(vec![Algorithm::Maglev, Algorithm::Ring]),
        pasts in prop::collection::vec(pasts(), 2..5),
        up in prop::collection::vec(any::<bool>(), SERVERS),
    ) {
        let nodes: Vec<_> = pasts.iter().map(|past| choices(&node(algorithm, past, &up))).collect();
        for node in &nodes[1..] {
            prop_assert_eq!(node, &nodes[0]);
        }
        for name in nodes[0].values() {
            let meets = name.as_ref().map(|name| name[1..].parse::<usize>().unwrap());
            prop_assert!(meets.map_or(!up.contains(&true), |number| up[number]), "{:?} is down", name);
        }
    }
}
