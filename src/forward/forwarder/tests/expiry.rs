//! How long flows are kept whose sides are silent, or whose client does not exist.

use std::time::Duration;

use super::lab::{Family, Lab, Size};
use crate::forward::FlowState;

told_over_both_families! {
    handshakes_that_nobody_finishes_are_forgotten_although_servers_repeat_their_answer,
    a_client_that_repeats_its_syn_is_waited_for,
}

/// When Linux sends its answer to a SYN that nobody finishes, in seconds (`tcp_synack_retries = 5`).
const ANSWERS: [u64; 6] = [0, 1, 3, 7, 15, 31];

fn handshakes_that_nobody_finishes_are_forgotten_although_servers_repeat_their_answer(family: Family) {
    for half_open in [5, 60] {
        let mut lab = Lab::passthrough_of(family, Size { capacity: 2_000, ports: 2_000 });
        lab.change(|world| world.flow_timeouts.half_open = Duration::from_secs(half_open));
        let syns: Vec<_> = (0..1_000).map(|n| lab.send(lab.client(n).syn().seq(100))).collect();
        for second in 0..half_open + 35 {
            if ANSWERS.contains(&second) {
                for syn in &syns {
                    lab.handle(&syn.reply().syn().seq(500).ack(101));
                }
            }
            lab.wait(Duration::from_secs(1));
            lab.ended();
        }
        let flows = lab.forwarder.flows();
        let kept = (flows.len(), lab.frontend_slots(), lab.forwarder.snat_ports_in_use());
        assert_eq!(kept, (0, 0, 0), "half_open is {half_open} s");
        assert_eq!(lab.kernel.as_ref().map_or(0, |kernel| kernel.len()), 0);
    }
}

fn a_client_that_repeats_its_syn_is_waited_for(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        for _ in 0..3 {
            lab.wait(Duration::from_secs(32));
            assert_eq!(lab.send(lab.client(1).syn().seq(100)).route(), syn.route());
        }
        assert_eq!((lab.opened, lab.forwarder.flows().count(FlowState::SynSent)), (1, 1));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        assert_eq!(lab.forwarder.flows().count(FlowState::Established), 1);
    }
}
