//! The forwarding core of the packet modes. Pure: frames and the time in, verdicts out.
//!
//! A [`Plan`] defines what is forwarded. The driver of a [`Forwarder`] passes it each frame, the
//! plan and the time, executes the [`Verdict`], and calls [`Forwarder::handle_timeout`] from time
//! to time. Tests therefore need no network:
//!
//! ```
//! use std::net::SocketAddr;
//! use std::sync::Arc;
//!
//! use convey_forward::plan::{Picked, Plan, PlannedFrontend, PlannedPool, PlannedServer, ServerPicker};
//! use convey_forward::{Forwarder, Frame, Settings, Verdict, View};
//! use convey_model::{Interface, NextHops, Protocol, Timestamp};
//! use convey_wire::{TestPacket, parse};
//!
//! /// Always the first.
//! struct First;
//!
//! impl ServerPicker for First {
//!     fn pick(&self, _client: SocketAddr, _vip: SocketAddr) -> Picked {
//!         Picked::Server(0)
//!     }
//!     fn hash(&self, _client: SocketAddr, _vip: SocketAddr) -> u64 {
//!         0
//!     }
//! }
//!
//! let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
//! let network = NextHops::on_link(eth0, &[([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1])]);
//!
//! let servers = vec![Arc::new(PlannedServer::new(1, "10.0.0.1:8080".parse().unwrap()))];
//! let pool = Arc::new(PlannedPool::new(servers, Arc::new(First)));
//! let vip = "192.0.2.1:80".parse().unwrap();
//! let web = PlannedFrontend::new(1, View::ClientSide, Protocol::Tcp, vip, pool);
//! let plan = Plan::new(1, vec![Arc::new(web)], Arc::new(network));
//!
//! let mut forwarder = Forwarder::new(Settings::alone(1_000, 7));
//! let mut syn = TestPacket::from("203.0.113.9:4242").to("192.0.2.1:80").syn().bytes();
//! let headers = parse(&syn);
//! let verdict = forwarder.handle_frame(&mut Frame::new(&mut syn, &headers), &plan, Timestamp(0));
//! assert!(matches!(verdict, Verdict::Transmit(_)));
//! assert_eq!(parse(&syn).unwrap().key.destination(), "10.0.0.1:8080".parse().unwrap());
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]
#![cfg_attr(not(feature = "test-util"), allow(unreachable_pub, reason = "tests of other crates reach it"))]

mod addr_port;
mod black_hole;
mod cache;
mod clients;
mod cut;
mod dispatch;
mod flow;
mod flows;
mod forwarder;
mod fragments;
mod handover;
mod handshake;
mod hop_use;
mod ids;
mod index;
mod journal;
mod limiter;
mod list;
mod loops;
mod nat_ports;
pub mod plan;
mod port_pools;
mod port_ranges;
mod port_split;
mod queues;
mod reservation;
mod snat_choice;
mod state;
mod table_quota;
mod tcp_sequence;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod traced;
mod verdict;
mod wheel;
mod workers;

pub use addr_port::AddrPort;
pub use black_hole::{PathMtuSuspicion, UnansweredSegment};
pub use cache::{CachedActivity, CachedRoute, FlowCache, Progress};
pub use cut::{Cut, cut, number_segments};
pub use dispatch::Dispatch;
pub use flow::ForwardingMethod;
use flow::{Flow, NewFlow};
use flows::{FlowId, FlowTable, Full};
pub use forwarder::{
    ClientShare, FlowInfo, Forwarder, ForwarderEvents, Inquiry, Restored, Settings, VisitBudget,
};
pub use fragments::{FirstFragment, Fragments, Later};
pub use handover::{CacheEvent, KnownFlow, TableRow, Unreadable, decode, encode};
pub use handshake::{HandshakeEvent, HandshakeStep};
pub use hop_use::HopUse;
pub use ids::IpIds;
pub use journal::FlowRecord;
pub use loops::Loops;
pub use nat_ports::NatPorts;
pub use plan::{Plan, TunnelUsers};
pub use port_split::PortSplit;
pub use reservation::Reservation;
pub use snat_choice::{ServerSnat, SnatAddresses, SnatChoice, unused_snat_addresses};
pub use state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};
pub use table_quota::TrafficKind;
pub use traced::{lost_frame, not_sent, waits_for_next_hop};
pub use verdict::{Ended, FlowEnd, FlowOwners, Forwarded, Frame, PacketRole, Verdict};
pub use workers::WorkerPeers;
