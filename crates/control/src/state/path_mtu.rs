//! Detection of servers that lose large packets, to the server or to its clients (packet modes).
//! Pure.

use std::time::Duration;

use super::{ControlState, key};
use convey_model::{ServerKey, Timestamp};
use convey_pacing::LogLimit;
use convey_snapshot::ServerLive;
use convey_snapshot::stats::Counter;

/// Minimum time between two log lines about one server and direction.
const LOG_PERIOD: Duration = Duration::from_secs(600);

/// Counts of lost large packets of a server at the last check, and log limits: for packets to the
/// server, and for packets to its clients.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathMtuRow([PathMtuWay; 2]);

#[derive(Debug, Clone, Copy)]
struct PathMtuWay {
    counted: u64,
    log_limit: LogLimit<Timestamp>,
}

impl Default for PathMtuWay {
    fn default() -> PathMtuWay {
        PathMtuWay { counted: 0, log_limit: LogLimit::once_in(LOG_PERIOD) }
    }
}

impl ControlState {
    /// Records that a server has answered a probe.
    pub(crate) fn note_answer(&self, server: &ServerKey, now: Timestamp) {
        if let Some(entry) = self.servers.get(server) {
            entry.live().note_answer(now);
        }
    }

    /// Returns operator-facing messages about servers of a backend whose large packets are lost, on
    /// the way to the server or to clients. Call it about once a second.
    pub(crate) fn check_path_mtu(&mut self, name: &str, now: Timestamp) -> Vec<String> {
        let Some(backend) = self.pools.config(name) else { return Vec::new() };
        let look = |server| {
            let key = key(&backend, server);
            let entry = self.servers.get_mut(&key)?;
            let [to_server, to_client] = entry.count_lost_packets(now);
            let len = entry.live().lost_len();
            Some([
                to_server.map(|flows| to_server_line(&key, flows, len)),
                to_client.map(|flows| to_client_line(&key, flows, len)),
            ])
        };
        backend.servers.iter().filter_map(look).flatten().flatten().collect()
    }
}

impl PathMtuRow {
    /// Returns the numbers of connections to log that lose large packets: first to the server, then
    /// to clients. `None`: do not log a line for this direction.
    pub(super) fn advance(&mut self, live: &ServerLive, now: Timestamp) -> [Option<u64>; 2] {
        let [to_server, to_client] = &mut self.0;
        [
            to_server.advance(live.traffic.sum(Counter::PathMtuToServer), now),
            to_client.advance(live.traffic.sum(Counter::PathMtuToClient), now),
        ]
    }
}

impl PathMtuWay {
    fn advance(&mut self, counted: u64, now: Timestamp) -> Option<u64> {
        if counted == self.counted {
            return None;
        }
        self.log_limit.admit(now)?;
        Some(counted - std::mem::replace(&mut self.counted, counted))
    }
}

fn to_server_line(server: &ServerKey, flows: u64, len: u32) -> String {
    format!(
        "packets of {len} bytes do not reach server {server} (seen on {}), but smaller packets do: a hop probably drops large \
         packets without an ICMP error; fix the hop, or set the path MTU on the route to the server (`convey doctor` measures it)",
        connections(flows)
    )
}

fn to_client_line(server: &ServerKey, flows: u64, len: u32) -> String {
    format!(
        "packets of {len} bytes from server {server} do not reach clients (seen on {}), but smaller packets do: a hop probably \
         drops large packets without an ICMP error; fix the hop, or set a smaller MTU on the route to these clients",
        connections(flows)
    )
}

fn connections(flows: u64) -> String {
    if flows == 1 { "1 connection".to_owned() } else { format!("{flows} connections") }
}
