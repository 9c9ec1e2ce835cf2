//! Variants of mode dsr in which the server has the VIP: rewriting of the destination MAC alone,
//! and tunnels. Servers decapsulate with a small tc program, as not every kernel has tunnel
//! devices.

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use convey_lab::{INTERFACE, Lab, Role, VIP};

use crate::site::SERVERS;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/bench.bpf.o"));

/// Delivery of packets to servers: a value of the key `dsr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Baseline for the tunnels: equal but for the tunnel.
    L2,
    IpInIp,
    Gue,
}

impl Delivery {
    /// Name of convey with this delivery in the table.
    pub(crate) fn peer_name(self) -> &'static str {
        match self {
            Delivery::L2 => "convey, l2",
            Delivery::IpInIp => "convey, IP in IP",
            Delivery::Gue => "convey, GUE",
        }
    }

    /// Line of the backend's configuration.
    pub(crate) fn config(self) -> &'static str {
        match self {
            Delivery::L2 => "dsr = \"l2\"",
            Delivery::IpInIp => "dsr = \"ipip\"",
            Delivery::Gue => "dsr = \"gue\"",
        }
    }
}

/// Servers that have the VIP until this is dropped.
pub(crate) struct VipServers {
    /// Tunnel programs of the servers, which are removed when dropped.
    _tunnel_ends: Vec<Ebpf>,
}

impl VipServers {
    pub(crate) fn start(lab: &Lab, delivery: Delivery) -> Result<VipServers> {
        set_vip(lab, "up")?;
        let behind_tunnels = SERVERS.into_iter().filter(|_| delivery != Delivery::L2);
        let tunnel_ends = behind_tunnels.map(|server| tunnel_end(lab, server)).collect::<Result<_>>()?;
        Ok(VipServers { _tunnel_ends: tunnel_ends })
    }

    pub(crate) fn stop(self, lab: &Lab) -> Result<()> {
        set_vip(lab, "down")
    }
}

/// Adds the VIP to servers, without ARP for it, or removes it.
fn set_vip(lab: &Lab, way: &str) -> Result<()> {
    let (vip, script) = (format!("VIP={VIP}"), concat!(env!("CARGO_MANIFEST_DIR"), "/tc/dsr-server-l2.sh"));
    for server in SERVERS {
        lab.run(server, "env", &[&vip, "sh", script, way]).context("the VIP of servers")?;
    }
    Ok(())
}

fn tunnel_end(lab: &Lab, server: Role) -> Result<Ebpf> {
    let mut loaded = EbpfLoader::new().load(OBJECT)?;
    let program = loaded.program_mut("bench_open").context("no such program")?;
    let program: &mut SchedClassifier = program.try_into()?;
    program.load()?;
    lab.enter(server, || program.attach(INTERFACE, TcAttachType::Ingress))??;
    Ok(loaded)
}
