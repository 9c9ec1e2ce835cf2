//! Forwarder in a test: frames and the time go in, verdicts come out, without network, privileges
//! or waiting. `cargo test -p convey-forward --example from_a_test` runs it.

fn main() {
    println!("run: cargo test -p convey-forward --example from_a_test");
}

#[cfg(test)]
mod tests {
    use convey_forward::{Forwarder, Frame, NatPorts, Plan, Settings, Verdict, View};
    use convey_model::{DropReason, FlowKey, Interface, NextHops, Protocol, Timestamp};
    use convey_wire::{TestPacket, parse};

    /// Passthrough from 192.0.2.1:80 to one server, with the SNAT address 10.0.0.254.
    struct Lab {
        forwarder: Forwarder,
        plan: Plan,
        now: Timestamp,
    }

    impl Lab {
        fn new() -> Lab {
            let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
            let [server, client] = [[10, 0, 0, 1], [203, 0, 113, 9]];
            let macs = [(server.into(), [2, 0, 0, 0, 0, 1]), (client.into(), [2, 0, 0, 0, 0, 2])];
            let (vip, network) = (([192, 0, 2, 1], 80).into(), NextHops::on_link(eth0, &macs));
            let servers = [(server, 8080).into()];
            let plan = Plan::balancing(View::BothSides, Protocol::Tcp, vip, &servers, network);
            let snat = std::net::IpAddr::from([10, 0, 0, 254]);
            let ports = Some(NatPorts::new(vec![snat.into()], 40_000..=40_999, 7));
            let forwarder = Forwarder::new(Settings { ports, ..Settings::alone(1_000, 7) });
            Lab { forwarder, plan, now: Timestamp(0) }
        }

        /// Handles a packet. Returns the key of the forwarded packet, or the verdict.
        fn forward(&mut self, packet: &TestPacket) -> Result<FlowKey, Verdict> {
            let mut bytes = packet.bytes();
            let headers = parse(&bytes);
            let mut frame = Frame::new(&mut bytes, &headers);
            match self.forwarder.handle_frame(&mut frame, &self.plan, self.now) {
                Verdict::Transmit(_) => Ok(parse(&bytes).unwrap().key),
                verdict => Err(verdict),
            }
        }
    }

    #[test]
    fn a_silent_connection_ends_and_both_sides_are_told() {
        let mut lab = Lab::new();
        let client = || TestPacket::from("203.0.113.9:4242").to("192.0.2.1:80");
        let to_server = lab.forward(&client().syn()).unwrap();
        assert_eq!(to_server.destination(), "10.0.0.1:8080".parse().unwrap());

        let server = || TestPacket::from(to_server.destination()).to(to_server.source());
        let to_client = lab.forward(&server().syn().ack(1)).unwrap();
        assert_eq!(to_client.source(), "192.0.2.1:80".parse().unwrap());
        assert_eq!(to_client.destination(), "203.0.113.9:4242".parse().unwrap());
        lab.forward(&client().seq(1).ack(1)).unwrap();

        // Virtual time: hours pass at once.
        lab.now = lab.now.after(lab.plan.flow_timeouts.established * 2);
        let mut resets = 0;
        while lab.forwarder.handle_timeout(&lab.plan, lab.now, |_frame, _interface| resets += 1) {}
        assert_eq!((lab.forwarder.open_flows(), resets), (0, 2));
        let late = lab.forward(&server().seq(1).ack(1));
        assert_eq!(late, Err(Verdict::Drop(DropReason::NoFlow)));
    }
}
