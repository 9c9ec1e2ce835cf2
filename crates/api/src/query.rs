//! Query parameters of requests. Pure.

use serde::Deserialize;

/// Parameters of a list of flows. All of them together restrict the list.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowParameters {
    /// Only flows of clients at these addresses: `IP[/LEN][:PORT]`.
    pub client: Option<String>,
    /// Only flows to this server: `BACKEND/SERVER`.
    pub server: Option<String>,
    /// Only flows of this frontend.
    pub frontend: Option<String>,
    /// Only flows to servers of this backend.
    pub backend: Option<String>,
    /// Only flows in this state.
    pub state: Option<String>,
    /// Only flows that began at least this long ago, such as `90s`.
    pub older_than: Option<String>,
    /// Only flows that have been silent for at least this long.
    pub idle: Option<String>,
    /// Only flows with at least this many bytes.
    pub min_bytes: Option<u64>,
    /// Maximum number of flows, or groups, in the answer; 100 without it.
    #[cfg_attr(test, schemars(with = "Option<u64>", range(max = 10_000)))]
    pub limit: Option<usize>,
    /// Order of the flows.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::sorts())))]
    pub sort: Option<String>,
    /// Count flows by this property, and list none.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::groupings())))]
    pub count_by: Option<String>,
}

/// Parameters of a list of events.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EventParameters {
    /// Number of the first event.
    #[serde(default)]
    pub since: u64,
}

/// Parameters of an explanation.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainParameters {
    /// Address of the client; with its port if the choice depends on the port.
    pub client: String,
    /// Name of the frontend, its name with a port, or an address that it listens on.
    pub frontend: String,
    /// Requested URL, such as `http://api.example.com/v1`: the backend is the one of its route. In
    /// proxy mode its host is the TLS server name.
    pub url: Option<String>,
    /// Method of the request, by default `GET`.
    pub method: Option<String>,
    /// Headers of the request beside `Host`, each as `NAME: VALUE`, with a line feed between them.
    pub headers: Option<String>,
}

/// Parameters of a removal of overrides: those of one backend or of one frontend, or without either
/// all of the program.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverlayParameters {
    /// Only overrides of this backend and its servers, and the maintenance of the backend.
    pub backend: Option<String>,
    /// Only overrides of this server of the backend.
    pub server: Option<String>,
    /// Only overrides of this frontend and its routes.
    pub frontend: Option<String>,
    /// Only overrides of this route of the frontend.
    pub route: Option<String>,
}

/// Parameters of a removal of a server.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemovalParameters {
    /// Whether the removal may withdraw announced addresses, or leave a backend of `ready_needs`
    /// without servers. Without it convey refuses such a removal (409).
    #[serde(default)]
    pub force: bool,
}

/// Parameters of a trace.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TraceParameters {
    /// Only these clients: `IP[/LEN][:PORT]`.
    pub client: Option<String>,
    /// Only this frontend.
    pub frontend: Option<String>,
    /// Only this server, from its choice on: `BACKEND/SERVER`.
    pub server: Option<String>,
    /// Only drops, refusals and early ends: `any`, or the label of a reason.
    pub drops: Option<String>,
    /// Only requests with this method.
    pub method: Option<String>,
    /// Only requests for this host, or for hosts below a domain: `*.example.com`.
    pub host: Option<String>,
    /// Only requests whose path and query begin with this text.
    pub path: Option<String>,
    /// Only requests of this route.
    pub route: Option<String>,
    /// Only requests whose response has this status, or a status of this class: `404`, `5xx`.
    pub status: Option<String>,
    /// One in this many connections or flows, with all of its events.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub sample: Option<u32>,
    /// Maximum number of events a second; 1,000 without it.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub rate: Option<u32>,
    /// Ends after this many events.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub count: Option<u64>,
    /// Ends after this time, such as `30s`.
    pub timeout: Option<String>,
    /// Whether the first 256 bytes of frames are added, in base64.
    #[serde(default)]
    pub frames: bool,
}
