//! Ways of mode dsr in which a server has the VIP, beside the one in which it rewrites its answers: the destination MAC alone, and
//! tunnels. Servers take packets out of these by a small program of the kernel at tc, for not every kernel has devices for tunnels.

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use convey_lab::{INTERFACE, Lab, Role, VIP};

use crate::site::SERVERS;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/bench.bpf.o"));

/// How packets get to servers: a value of the key `dsr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// What the tunnels are compared with: all but the tunnel is the same.
    L2,
    IpInIp,
    Gue,
}

impl Delivery {
    /// convey with it, in the table.
    pub(crate) fn peer_name(self) -> &'static str {
        match self {
            Delivery::L2 => "convey, l2",
            Delivery::IpInIp => "convey, IP in IP",
            Delivery::Gue => "convey, GUE",
        }
    }

    /// The line of the backend.
    pub(crate) fn config(self) -> &'static str {
        match self {
            Delivery::L2 => "dsr = \"l2\"",
            Delivery::IpInIp => "dsr = \"ipip\"",
            Delivery::Gue => "dsr = \"gue\"",
        }
    }
}

/// Servers that have the VIP, until they are told.
pub(crate) struct VipServers {
    /// The ends of their tunnels, which are gone when dropped.
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

/// Gives servers the VIP, of which they tell nobody, or takes it away.
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
