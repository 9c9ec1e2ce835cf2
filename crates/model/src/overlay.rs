//! Runtime overrides of servers, which take precedence over the file.

use std::fmt;

use crate::{ServerSettings, Timestamp};

/// Administrative state of a server, in HAProxy's terms. States are in ascending order of strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub enum AdminState {
    /// The server serves by its weight and health.
    #[default]
    Ready,
    /// The server gets no new connections. Open connections and health checks continue.
    Drain,
    /// The server counts as down, without health checks. `on_down` decides about open connections.
    Maint,
}

impl AdminState {
    /// All states.
    pub const ALL: [AdminState; 3] = [AdminState::Ready, AdminState::Drain, AdminState::Maint];

    /// Name of the state.
    pub fn name(self) -> &'static str {
        match self {
            AdminState::Ready => "ready",
            AdminState::Drain => "drain",
            AdminState::Maint => "maint",
        }
    }
}

/// Backend or server that an override applies to, by names in the file. The name of a server with a
/// host name selects all addresses of the host name; `NAME/ADDRESS` selects one of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Name of the backend.
    pub backend: String,
    /// Name of the server; `None`: all servers of the backend, including servers that are added
    /// later.
    pub server: Option<String>,
}

impl Target {
    /// Target of all servers of a backend.
    pub fn backend(name: &str) -> Target {
        Target { backend: name.to_owned(), server: None }
    }

    /// Target of one server.
    pub fn server(backend: &str, server: &str) -> Target {
        Target { backend: backend.to_owned(), server: Some(server.to_owned()) }
    }

    /// Whether the target includes this server.
    pub fn includes(&self, backend: &str, server: &str) -> bool {
        let is_of = |name: &str| {
            server == name || server.strip_prefix(name).is_some_and(|address| address.starts_with('/'))
        };
        self.backend == backend && self.server.as_deref().is_none_or(is_of)
    }
}

impl fmt::Display for Target {
    /// Formats as `server BACKEND/SERVER` or `backend BACKEND`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(f, "server {}/{server}", self.backend),
            None => write!(f, "backend {}", self.backend),
        }
    }
}

/// Server that was added at runtime and is not in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedServer {
    /// Address or host name, as in a file.
    pub addr: String,
    /// Settings of the server.
    pub settings: ServerSettings,
}

/// Value of a runtime override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayValue {
    /// Administrative state.
    State(AdminState),
    /// Share of new connections relative to the other servers; 0 takes the server out of rotation.
    Weight(u16),
    /// Added server: it serves although it is not in the file.
    Added(AddedServer),
    /// Removed server: it does not serve although it is in the file.
    Removed,
}

impl fmt::Display for AddedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerSettings { weight, backup, max_connections } = self.settings;
        f.write_str(&self.addr)?;
        if weight != ServerSettings::default().weight {
            write!(f, ", weight {weight}")?;
        }
        if backup {
            f.write_str(", backup")?;
        }
        max_connections.map_or(Ok(()), |most| write!(f, ", {most} connections at most"))
    }
}

impl fmt::Display for OverlayValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverlayValue::State(state) => f.write_str(state.name()),
            OverlayValue::Weight(weight) => write!(f, "weight {weight}"),
            OverlayValue::Added(server) => write!(f, "added at {server}"),
            OverlayValue::Removed => f.write_str("removed"),
        }
    }
}

/// Runtime override. It lasts until an operator clears it or convey stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Target of the override.
    pub target: Target,
    /// Value of the override.
    pub value: OverlayValue,
    /// Time at which the override was set.
    pub since: Timestamp,
    /// Operator-facing name of the person or program that set it.
    pub by: String,
    /// Whether the file has superseded the override: the file now has a server of the same name, no
    /// longer has the target, or conflicts with the override.
    pub superseded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_its_addresses_and_for_no_other_name() {
        let app = Target::server("web", "app");
        assert!(app.includes("web", "app") && app.includes("web", "app/10.0.0.3"));
        assert!(!app.includes("web", "apple") && !app.includes("mail", "app"));
        let one = Target::server("web", "app/10.0.0.3");
        assert!(one.includes("web", "app/10.0.0.3") && !one.includes("web", "app/10.0.0.30"));
        assert!(
            Target::backend("web").includes("web", "app") && !Target::backend("web").includes("mail", "a")
        );
    }
}
