//! Dispatch of frames to workers: all packets of a flow, in both directions, go to the worker that
//! holds the flow.

use std::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::PortSplit;
use convey_model::{Addr, FlowKey};

/// Choice of the worker for a packet: a pure function of the packet's key and a seed.
#[derive(Debug, Clone)]
pub struct Dispatch {
    workers: u16,
    /// SNAT addresses and the workers' ports; `None` if no replies come back (DSR).
    replies: Option<(Vec<Addr>, PortSplit)>,
    seed: u64,
}

impl Dispatch {
    /// Creates the dispatch for `workers` workers, at least one.
    pub fn new(workers: u16, replies: Option<(&[IpAddr], PortSplit)>) -> Dispatch {
        let replies =
            replies.map(|(addresses, split)| (addresses.iter().map(|ip| (*ip).into()).collect(), split));
        Dispatch { workers, replies, seed: 0 }
    }

    /// Sets a secret seed for the hash of clients, so that an attacker cannot aim a flood at one
    /// worker.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Dispatch {
        Dispatch { seed, ..self }
    }

    /// Worker for packets with this key: the owner of the SNAT port for a reply, otherwise a worker
    /// chosen by hash of the client's tuple.
    #[inline]
    pub fn worker(&self, key: &FlowKey) -> u16 {
        if self.workers == 1 {
            return 0;
        }
        if let Some((addresses, split)) = &self.replies
            && let Some(owner) = split.owner(key.dst_port)
            && addresses.contains(&key.dst)
        {
            return owner;
        }
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(key.src.bytes());
        bytes[16..18].copy_from_slice(&key.src_port.to_be_bytes());
        bytes[18..].copy_from_slice(&key.dst_port.to_be_bytes());
        // The high bits are used here because the low bits select places in other hash tables.
        ((u128::from(xxh3_64_with_seed(&bytes, self.seed)) * u128::from(self.workers)) >> 64) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(src: &str, dst: &str) -> FlowKey {
        FlowKey::tcp(src.parse().unwrap(), dst.parse().unwrap())
    }

    #[test]
    fn replies_go_to_the_worker_whose_port_they_come_back_to() {
        let snat: IpAddr = "10.0.0.1".parse().unwrap();
        let split = PortSplit::new(33768..=61000, 4);
        let dispatch = Dispatch::new(4, Some((&[snat], split.clone())));
        for worker in 0..4 {
            for port in [*split.ports(worker).start(), *split.ports(worker).end()] {
                assert_eq!(dispatch.worker(&key("10.0.1.1:80", &format!("10.0.0.1:{port}"))), worker);
            }
        }
    }

    #[test]
    fn clients_spread_over_the_workers_whatever_port_the_vip_has() {
        let snat: IpAddr = "10.0.0.1".parse().unwrap();
        let dispatch = Dispatch::new(4, Some((&[snat], PortSplit::new(33768..=61000, 4))));
        let mut shares = [0; 4];
        for port in 1..=4000 {
            let key = key(&format!("192.0.2.7:{port}"), "10.0.0.100:40000");
            shares[usize::from(dispatch.worker(&key))] += 1;
            assert_eq!(dispatch.worker(&key), dispatch.worker(&key.clone()));
        }
        assert!(shares.iter().all(|share| (850..1150).contains(share)), "{shares:?}");
    }

    #[test]
    fn clients_of_one_worker_spread_over_all_of_another_seed() {
        let [one, other] = [1, 2].map(|seed| Dispatch::new(4, None).with_seed(seed));
        let clients = (1..=20_000).map(|port| key(&format!("192.0.2.7:{port}"), "10.0.0.100:80"));
        let mut shares = [0; 4];
        for key in clients.filter(|key| one.worker(key) == 0) {
            shares[usize::from(other.worker(&key))] += 1;
        }
        assert!(shares.iter().all(|share| (1_000..1_500).contains(share)), "{shares:?}");
    }
}
