//! Frontends, their routes and their certificates. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Counts, Label, RequestReport, TimesReport, TrafficReport, WallTime, nullable};

/// Frontend of the running configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Frontend")]
pub struct FrontendReport {
    /// Mode of forwarding.
    pub mode: Label,
    /// Protocol between clients and the frontend.
    pub protocol: Label,
    /// Addresses that clients connect to.
    pub listen_addr: Vec<String>,
    /// Backend of the frontend; with routes, the backend of requests and connections that match no
    /// route. Empty without such a backend.
    pub backend: String,
    /// Routes; the default route comes last. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteReport>,
    /// Reason why the frontend cannot serve. Left out if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// Backends that cannot serve, each with the reason. The frontend may be ready through other
    /// backends. Left out if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unserved: BTreeMap<String, String>,
    /// Limit of concurrent connections; null: no limit.
    #[serde(deserialize_with = "nullable")]
    pub max_connections: Option<u32>,
    /// Connections that wait for a free slot of the frontend, or of their client's quota (proxy
    /// mode). The kernel's accept queue does not count.
    pub waiting_connections: u32,
    /// Traffic of the frontend.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Connections that ended otherwise than by a close of both sides, by reason.
    pub ended: Counts,
    /// Dropped datagrams (UDP in proxy mode), by reason.
    pub drops: Counts,
    /// Connections, datagrams and (packet modes) packets of denied clients, by reason.
    pub refused: Counts,
    /// TLS handshakes of clients. Left out if clients use no TLS with convey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
    /// Requests of the frontend. Mode http only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations from the head of a request to the last byte of its response. Mode http only; an
    /// older server leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<TimesReport>,
    /// Number of times that a source was not counted because the table was full.
    pub uncounted_sources: u64,
    /// Number of times that accepting paused because descriptors or memory ran out.
    pub accept_backoffs: u64,
}

impl FrontendReport {
    /// Names of the backends of the frontend and of its routes.
    pub fn backends(&self) -> Vec<&str> {
        let of_routes = self.routes.iter().flat_map(RouteReport::backends);
        let mut names: Vec<&str> = Vec::new();
        for name in [&*self.backend].into_iter().chain(of_routes).filter(|name| !name.is_empty()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl RouteReport {
    /// Names of the backends of the route.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.backend.as_deref().into_iter().chain(self.split.keys().map(String::as_str))
    }
}

/// Route of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Route")]
pub struct RouteReport {
    /// Host and path, or host and protocol; `default` for the default route.
    pub name: String,
    /// Backend of the route. Left out if the route has several backends, or another action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Backends that share the requests of the route, each with its weight. Left out if the route
    /// has one backend, or another action.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub split: BTreeMap<String, u32>,
    /// Target of redirects. Left out if the route has another action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Label>,
    /// Status of the fixed response. Left out if the route has another action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub respond: Option<u16>,
    /// Finished requests of the route (mode http).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations from the head of a request to the last byte of its response (mode http).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<TimesReport>,
    /// Connections of the route (proxy mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_connections: Option<u64>,
    /// Open connections of the route (proxy mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_connections: Option<u64>,
}

/// TLS handshakes of clients, and the certificates of the frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Tls")]
pub struct TlsReport {
    /// Full handshakes, which began a session.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Certificates in the order of the configuration; clients that send no server name get the
    /// first.
    pub certificates: Vec<CertificateReport>,
    /// Reason why clients accept no certificate. Left out if one is valid now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Certificate of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Certificate")]
pub struct CertificateReport {
    /// File of the certificate chain.
    pub path: String,
    /// Names of the certificate.
    pub names: Vec<String>,
    /// Issuer of the certificate.
    pub issuer: String,
    /// Start of its validity.
    pub not_before: WallTime,
    /// End of its validity.
    pub not_after: WallTime,
}
