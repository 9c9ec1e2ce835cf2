//! Tests of client shares: all clients open as many connections as they can get.

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use convey_snapshot::fixture;

const MANY: Left = left(1_000_000);

/// Room for so many further connections.
const fn left(connections: u64) -> Left {
    Left { connections, local_ports: 1_000_000, is_ample: false }
}

fn new_clients() -> WorkerClients {
    WorkerClients::new(Arc::default(), 0, 1_000)
}

/// A frontend with these limits.
fn frontend(most: Option<u32>, per_client: Option<u32>, trusted: &[&str]) -> Frontend {
    let pool = fixture::pool("pool", vec![]);
    let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
    let mut frontend = Arc::into_inner(frontend).unwrap();
    frontend.config.max_connections = most;
    frontend.config.max_connections_per_client = per_client;
    frontend.config.trusted_clients = trusted.iter().map(|network| network.parse().unwrap()).collect();
    frontend
}

/// Number of connections that each client gets, in a process with `most` connections, if all
/// clients open as many as they can.
fn taken(most: u64, frontend: &Frontend, clients: &[&str]) -> Vec<u64> {
    let (all, mut open) = (Arc::default(), Vec::new());
    // Several workers accept the connections.
    let workers = [0, 1, 17].map(|worker| WorkerClients::new(Arc::clone(&all), worker, 1_000));
    let mut taken = vec![0; clients.len()];
    loop {
        let before = open.len();
        for (client, taken) in clients.iter().zip(&mut taken) {
            let free = most - open.len() as u64;
            if free > 0
                && let Some(counted) =
                    workers[open.len() % 3].count(client.parse().unwrap(), frontend, left(free))
            {
                frontend.live.slots.try_take(None);
                open.push(counted);
                *taken += 1;
            }
        }
        if open.len() == before {
            return taken;
        }
    }
}

#[test]
fn greedy_client_leaves_a_share_for_others() {
    let open = frontend(None, None, &[]);
    assert_eq!(taken(9_000, &open, &["192.0.2.1"]), [8_001]);
    let several = taken(9_000, &open, &["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]);
    assert!(several.iter().all(|taken| (2_150..2_200).contains(taken)), "{several:?}");
    let limited = frontend(Some(900), None, &[]);
    assert_eq!(taken(100_000, &limited, &["192.0.2.1"]), [801]);
}

#[test]
fn small_limits_are_for_all_clients_together() {
    assert_eq!(taken(100_000, &frontend(Some(2), None, &[]), &["192.0.2.1"]), [16]);
}

#[test]
fn a_limit_for_each_client_goes_before_the_share_of_the_frontend() {
    let limited = frontend(Some(900), Some(3), &[]);
    assert_eq!(taken(9_000, &limited, &["192.0.2.1", "192.0.2.2"]), [3, 3]);
    assert_eq!(taken(9_000, &frontend(Some(900), Some(900), &[]), &["192.0.2.1"]), [900]);
}

#[test]
fn ipv6_addresses_of_one_network_are_one_client() {
    let limited = frontend(None, Some(3), &[]);
    let clients = ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:f::", "2001:db8:0:1::1"];
    assert_eq!(taken(9_000, &limited, &clients), [1, 1, 1, 3]);
}

#[test]
fn networks_of_many_clients_leave_something_to_others() {
    let client =
        |network: String| -> Vec<String> { (0..64).map(|n| format!("{network}{n:02x}::1")).collect() };
    for limits in [frontend(None, None, &[]), frontend(Some(9_000), None, &[])] {
        // A subscriber line (/56) has 256 clients (/64), of which 64 open connections. A site (/48)
        // has 256 lines.
        let line = client("2001:db8:0:".to_owned());
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let of_line: u64 = taken(9_000, &limits, &line).iter().sum();
        assert!((8_400..8_500).contains(&of_line), "16 of 17: {of_line}");
        let site: Vec<String> = (0..16).flat_map(|n| client(format!("2001:db8:0:{n:x}"))).collect();
        let site: Vec<&str> = site.iter().map(String::as_str).collect();
        let limits = match limits.config.max_connections {
            None => frontend(None, None, &[]),
            most => frontend(most, None, &[]),
        };
        let of_site: u64 = taken(9_000, &limits, &site).iter().sum();
        assert!((8_700..8_750).contains(&of_site), "32 of 33: {of_site}");
    }
    let own = frontend(None, Some(3), &[]);
    assert_eq!(taken(9_000, &own, &["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1"]), [3, 3, 3]);
}

#[test]
fn trusted_clients_are_not_counted() {
    let limited = frontend(Some(90), Some(3), &["10.0.0.0/8"]);
    assert_eq!(taken(50, &limited, &["10.1.2.3", "11.1.2.3"]), [47, 3]);
}

fn udp_frontend(most: Option<u32>) -> Frontend {
    let mut frontend = frontend(most, None, &[]);
    frontend.config.protocol = Protocol::Udp;
    frontend
}

/// Opens UDP sessions of a client at a frontend with the limit `most`: first `streams`, then
/// `questions`. Returns the sessions that the client gets.
fn sessions(
    all: &WorkerClients,
    frontend: &Frontend,
    client: [u8; 4],
    (streams, questions): (usize, usize),
    most: u64,
) -> Vec<Counted> {
    let live = &frontend.live;
    let mut open = Vec::new();
    for number in 0..streams + questions {
        let free = most - u64::from(live.slots.open() - live.questions.open());
        let Some(mut counted) = all.count(client.into(), frontend, left(free)) else { break };
        live.slots.try_take(None);
        if number < streams {
            counted.become_stream();
        } else {
            live.questions.try_take(None);
        }
        open.push(counted);
    }
    open
}

#[test]
fn questions_of_others_take_nothing_of_a_clients_share() {
    for most_here in [None, Some(900)] {
        let (all, udp) = (new_clients(), udp_frontend(most_here));
        let streams = sessions(&all, &udp, [192, 0, 2, 1], (20, 0), 900);
        let forged: Vec<_> =
            (0..220u8).map(|n| sessions(&all, &udp, [198, 51, 100, n], (0, 4), 900)).collect();
        assert_eq!((streams.len(), forged.iter().flatten().count()), (20, 880), "none is left");
        assert_eq!(sessions(&all, &udp, [192, 0, 2, 1], (10, 10), 900).len(), 20);
    }
}

#[test]
fn streams_of_others_and_a_clients_own_questions_leave_less_for_it() {
    let (all, udp) = (new_clients(), udp_frontend(None));
    let greedy = sessions(&all, &udp, [192, 0, 2, 1], (0, 2_000), 900);
    assert_eq!(greedy.len(), 801);
    assert!(all.has_many_questions([192, 0, 2, 1].into()));
    assert_eq!(sessions(&all, &udp, [192, 0, 2, 2], (2_000, 0), 900).len(), 801, "these push out the others");
    drop(greedy);
    let (all, udp) = (new_clients(), udp_frontend(None));
    let others = sessions(&all, &udp, [192, 0, 2, 1], (801, 0), 900);
    assert!(!all.has_many_questions([192, 0, 2, 1].into()));
    assert_eq!(sessions(&all, &udp, [192, 0, 2, 2], (0, 2_000), 900).len(), 89, "8 of 9 of the rest");
    drop(others);
    assert!(all.counts.are_empty());
}

/// Connection of a client at a frontend with limits. The connection waits, or is counted and may
/// have a slot.
struct Connection {
    client: IpAddr,
    counted: Counted,
    waiting: Option<Waiting>,
    has_slot: bool,
}

/// Model of the workers with their connections.
struct World {
    all: WorkerClients,
    frontend: Frontend,
    open: Vec<Connection>,
}

impl World {
    fn new(most: u32) -> World {
        World { all: new_clients(), frontend: frontend(Some(most), None, &[]), open: Vec::new() }
    }

    fn connect(&mut self, client: u8) {
        let client = [192, 0, 2, client].into();
        if let Some((counted, waiting)) =
            self.all.count_or_wait(client, &self.frontend, MANY, || MANY.connections)
        {
            self.open.push(Connection { client, counted, waiting, has_slot: false });
        }
        // A new connection that has to wait checks its turn once before it waits for calls.
        self.check_turn(self.open.len() - 1);
        self.check_called_ones();
    }

    fn end(&mut self, which: usize) {
        let Connection { client, counted, waiting, has_slot } = self.open.swap_remove(which);
        if has_slot {
            self.frontend.live.slots.release();
        }
        drop((waiting, counted));
        self.all.call_next(&self.frontend, client);
        self.check_called_ones();
    }

    /// Lets a waiting connection check whether it may continue.
    fn check_turn(&mut self, which: usize) {
        let Connection { client, counted, waiting, .. } = &mut self.open[which];
        if let Some(place) = waiting
            && self.all.count_waiting(&self.frontend, *client, counted, place)
        {
            *waiting = None;
            self.take_slots();
        }
    }

    fn take_slots(&mut self) {
        for connection in self.open.iter_mut().filter(|open| open.waiting.is_none() && !open.has_slot) {
            connection.has_slot = self.frontend.live.slots.try_take(self.frontend.config.max_connections);
            if connection.has_slot {
                self.all.call_next(&self.frontend, connection.client);
            }
        }
    }

    /// Lets called connections check their turn, until no connection is called.
    fn check_called_ones(&mut self) {
        self.take_slots();
        let is_called = |open: &Connection| {
            open.waiting.as_ref().is_some_and(|waiting| waiting.called().now_or_never().is_some())
        };
        while let Some(which) = self.open.iter().position(is_called) {
            self.check_turn(which);
        }
    }

    /// Whether the queue is stuck: a waiting connection could continue, but no call will come.
    fn is_stuck(&self) -> bool {
        let could = |open: &Connection| {
            let all = self.all.has_at(self.frontend.live.id, client_of(open.client));
            let is_first = open.waiting.as_ref().is_some_and(Waiting::is_first);
            is_first && has_room(&self.frontend, ClientUsage { all, questions: 0 })
        };
        let is_full = self.open.iter().any(|open| open.waiting.is_none() && !open.has_slot);
        !is_full && self.open.iter().any(could)
    }
}

proptest! {
    #[test]
    fn waiting_clients_are_called_once_there_is_room(
        most in 20..60u32,
        steps in prop::collection::vec((0..3u8, 1..4u8, any::<prop::sample::Index>()), 0..300),
    ) {
        let mut world = World::new(most);
        for (kind, client, which) in steps {
            if kind > 0 || world.open.is_empty() {
                world.connect(client);
            } else {
                world.end(which.index(world.open.len()));
            }
            prop_assert!(!world.is_stuck());
        }
        while !world.open.is_empty() {
            world.end(0);
            prop_assert!(!world.is_stuck());
        }
        prop_assert!(!world.all.some_wait());
    }
}

#[test]
fn a_client_that_leaves_may_come_again_and_nothing_is_remembered() {
    let (all, limited) = (new_clients(), frontend(None, Some(1), &[]));
    let count = || all.count("192.0.2.1".parse().unwrap(), &limited, left(100));
    let first = count().unwrap();
    assert!(count().is_none());
    drop(first);
    assert!(count().is_some());
    assert!(all.counts.are_empty());
}

#[test]
fn held_resources_leave_connections_to_others() {
    let (all, open, most) = (new_clients(), frontend(None, None, &[]), 900);
    let take_all = |client: &str| {
        let held = std::iter::from_fn(|| {
            all.hold(client.parse().unwrap(), &open, left(most - all.held_resources()))
        });
        held.collect::<Vec<_>>()
    };
    let (first, second) = (take_all("192.0.2.1"), take_all("192.0.2.2"));
    assert_eq!((first.len(), second.len()), (800, 89));
    assert_eq!(take_all("192.0.2.3").len(), 11);
    drop((first, second));
    assert_eq!(all.held_resources(), 0);
}

#[test]
fn connections_counted_without_a_check_count_in_later_checks() {
    let (all, open) = (Arc::default(), frontend(None, None, &[]));
    let [here, there] = [0, 1].map(|worker| WorkerClients::new(Arc::clone(&all), worker, 1_000));
    let [client, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
    let ample = Left { is_ample: true, ..MANY };
    let held: Vec<_> = (0..800).map(|_| here.count(client, &open, ample).unwrap()).collect();
    let may = |client, free| there.count(client, &open, left(free)).is_some();
    assert_eq!([may(client, 99), may(client, 100), may(other, 1)], [false, true, true]);
    drop(held);
    assert!(all.counts.are_empty());
}

#[test]
fn workers_that_compete_give_a_client_no_more_than_its_share() {
    let (all, open) = (Arc::default(), frontend(None, None, &[]));
    let client: IpAddr = "2001:db8::1".parse().unwrap();
    let workers: Vec<_> = (0..4).map(|worker| WorkerClients::new(Arc::clone(&all), worker, 1_000)).collect();
    let held: Vec<Counted> = std::thread::scope(|scope| {
        let compete = |worker: &WorkerClients| {
            (0..100).filter_map(|_| worker.count(client, &open, left(2))).collect::<Vec<_>>()
        };
        let running: Vec<_> = workers.iter().map(|worker| scope.spawn(move || compete(worker))).collect();
        running.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(held.len(), 17, "as long as it has at most eight times as many as are left");
}
