//! Flows through tunnels.

use convey_forward::testing::Flow;
use convey_model::DsrKind;
use convey_wire::Envelope;

use super::balancer::{BalancerSetup, TestBalancer};

/// Tunnels of all kinds and all combinations of families, with one server.
pub(crate) fn tunnels() -> Vec<BalancerSetup> {
    let [ipip, gue] = [DsrKind::Ipip, DsrKind::Gue].map(|dsr| BalancerSetup::dsr(1, 100).tunneled(dsr));
    let families =
        |setup: BalancerSetup| [setup, setup.over_ipv6(), setup.mixed(), setup.over_ipv6().mixed()];
    [ipip, gue].into_iter().flat_map(families).flat_map(|setup| [setup, setup.udp()]).collect()
}

/// Returns a frame as it is forwarded: encapsulated, if it goes through a tunnel.
pub(crate) fn within(mut frame: Vec<u8>, envelope: Option<Envelope>) -> Vec<u8> {
    if let Some(envelope) = envelope {
        // The rest is padding.
        frame.truncate(convey_wire::parse(&frame).unwrap().end);
        convey_wire::enclose(&mut frame, 14, &envelope);
    }
    frame
}

/// Tunnel of a flow's packets to its server.
pub(crate) fn envelope(core: &TestBalancer, flow: &Flow) -> Option<Envelope> {
    let tunnel = core.plan.tunnels.get(&flow.server_id())?;
    Some(Envelope::new(tunnel, &flow.client()))
}
