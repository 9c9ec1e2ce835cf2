//! Shared vocabulary of all crates: frontends, backends and servers of a validated configuration,
//! and counts that several crates share, such as connections per source. Pure.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod access;
mod acme;
mod affinity;
mod algorithm;
mod announce;
mod backend;
mod body_pattern;
mod client;
mod discovery;
mod draining;
mod error_pages;
mod files_config;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod flow;
mod flow_list;
mod flow_timeouts;
mod frontend;
mod grpc_check;
mod health_check;
mod http;
mod http_check;
mod http_limits;
mod http_overlay;
mod http_version;
mod ipsec;
mod limits;
mod listen;
mod log_level;
mod maintenance;
mod mode;
mod names;
mod network;
mod next_hops;
mod offload;
mod one_line;
mod outlier;
mod overlay;
mod own_timeouts;
mod packet;
mod path_mtus;
mod prefix;
mod probe_via;
mod proxy_version;
mod quic;
mod reason;
mod request_rate;
mod route;
mod routing_rules;
mod server;
mod server_endpoints;
mod server_ip;
mod server_key;
mod server_source;
mod shortage;
mod slots;
mod sni;
mod sources;
mod timeouts;
mod timestamp;
mod tls;
mod total_requests;
mod tunnel;
mod unix_socket;

pub use access::{Access, AccessFile, NetworkSet};
pub use acme::{AcmeChallenge, AcmeConfig, ExternalAccount};
pub use affinity::{AffinityConfig, AffinityKey, SameSite};
pub use algorithm::{Algorithm, HashKey, HashOn, WHOLE};
pub use announce::AnnounceConfig;
pub use backend::BackendConfig;
pub use body_pattern::BodyPattern;
pub use client::{ALWAYS_FITS, ClientNetwork, client_of, fits, networks_of};
pub use discovery::{
    DiscoveredServer, DiscoveryConfig, DiscoverySource, DiscoveryState, KubernetesCluster, KubernetesService,
    ServicePort, SourceSettings,
};
pub use draining::DrainingEndpoints;
pub use error_pages::{ErrorPage, ErrorPages};
pub use files_config::{CacheRule, FilesConfig};
pub use flow::{Addr, Endpoint, FlowKey, NextHop, Protocol, Rewrite, TCP, UDP};
pub use flow_list::{
    ClientFilter, FlowActivity, FlowAnswer, FlowFacts, FlowFilter, FlowGroup, FlowGrouping, FlowKind,
    FlowListing, FlowQuery, FlowServer, FlowSort, FlowsUnavailable, ListedFlow, ListedFlowId,
};
pub use flow_timeouts::FlowTimeouts;
pub use frontend::FrontendConfig;
pub use grpc_check::GrpcCheck;
pub use health_check::{CheckTls, CheckedRequests, HealthCheck, ProbeKind};
pub use http::{HeaderRules, HttpConfig};
pub use http_check::{HttpCheck, TlsCheck};
pub use http_limits::HttpLimits;
pub use http_overlay::{HttpOverlay, HttpOverlayValue, HttpTarget, override_weights};
pub use http_version::HttpVersion;
pub use ipsec::{IpsecEffect, IpsecPolicy};
pub use limits::{Limits, OverLimit};
pub use listen::{Listen, ListenError, overlap};
pub use log_level::{LogLevel, SaidLogLevel};
pub use maintenance::{Maintenance, MaintenancePage};
pub use mode::Mode;
pub use names::{DnsRecords, Lookup, LookupFault, Missing};
pub use network::{
    Interface, InterfaceAddress, Neighbour, NeighbourKey, NetworkTables, Route, RouteHop, WantedNeighbour,
};
pub use next_hops::{NextHops, PathEnds, Unreachable};
pub use offload::{CacheOutcome, Layer, Nic, Offload};
pub use one_line::{changes_line, one_line};
pub use outlier::OutlierDetection;
pub use overlay::{AddedServer, AdminState, Overlay, OverlayValue, Target};
pub use own_timeouts::OwnTimeouts;
pub use packet::{DsrKind, OnDown, PacketSettings};
pub use path_mtus::{NarrowPath, PathMtus};
pub use prefix::Prefix;
pub use probe_via::ProbeVia;
pub use proxy_version::ProxyVersion;
pub use quic::QuicConfig;
pub use reason::DropReason;
pub use request_rate::{RequestRate, TotalRate};
pub use route::{FixedReply, RouteAction, RouteCompression, RouteConfig, RouteLimits};
pub use routing_rules::{RoutingRule, RuleAction};
pub use server::{NamedServer, ServerAddr, ServerConfig, ServerSettings, is_service};
pub use server_endpoints::ServerEndpoints;
pub use server_ip::{is_local, is_of_one_machine};
pub use server_key::{ConnectFailures, ServerKey};
pub use server_source::ServerSource;
pub use shortage::{Handshakes, Shortage};
pub use slots::{Slots, TakenSlot};
pub use sni::SniRouteConfig;
pub use sources::{CountedSource, Excess, Sources};
pub use timeouts::Timeouts;
pub use timestamp::Timestamp;
pub use tls::{Authorities, BackendTls, CertificatePair, ClientCa, FrontendTls, SecretBytes, TlsVersion};
pub use total_requests::TotalRequests;
pub use tunnel::{Encapsulation, Tunnel, TunnelConfig};
pub use unix_socket::{MAX_UNIX_PATH, UnixSocket, UnixSocketError, server_text};
