//! Lost large packets.

use super::*;
use convey_snapshot::stats::Counter;

fn at(seconds: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_secs(seconds))
}

#[test]
fn path_mtu_black_hole_is_logged_again_after_ten_minutes() {
    let mut state = ControlState::new(1);
    let snapshot = state.configure(two_servers(), at(0));
    assert_eq!(state.check_path_mtu("pool", at(1)), Vec::<String>::new());
    let live = &snapshot.pools[0].servers[0].live;
    live.note_lost_len(1500);
    let count = |counter| live.traffic.add(0, counter, 1);
    count(Counter::PathMtuToServer);
    let lines = state.check_path_mtu("pool", at(2));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.starts_with("packets of 1500 bytes do not reach server "), "{line}");
    assert!(
        line.contains("/a (") && line.contains("(seen on 1 connection)") && line.contains("convey doctor"),
        "{line}"
    );
    (3..10).for_each(|_| count(Counter::PathMtuToServer));
    assert_eq!(state.check_path_mtu("pool", at(3)), Vec::<String>::new());
    count(Counter::PathMtuToClient);
    let lines = state.check_path_mtu("pool", at(4));
    assert!(lines.len() == 1 && lines[0].contains("do not reach clients"), "{lines:?}");
    let lines = state.check_path_mtu("pool", at(603));
    assert!(lines.len() == 1 && lines[0].contains("(seen on 7 connections)"), "{lines:?}");
    assert_eq!(state.check_path_mtu("pool", at(2_000)), Vec::<String>::new(), "it is over");
}
