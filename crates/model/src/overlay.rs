//! What operators say of servers while the program runs, which goes before what the file says.

use std::fmt;

use crate::{ServerSettings, Timestamp};

/// Whether a server may serve, as an operator has said: HAProxy's words. What is later in the order is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub enum AdminState {
    /// As its weight and its health say.
    #[default]
    Ready,
    /// It gets no new connections. Open ones go on, and so do its checks.
    Drain,
    /// It counts as down, and is not checked. `on_down` says what becomes of open connections.
    Maint,
}

impl AdminState {
    /// All of them.
    pub const ALL: [AdminState; 3] = [AdminState::Ready, AdminState::Drain, AdminState::Maint];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            AdminState::Ready => "ready",
            AdminState::Drain => "drain",
            AdminState::Maint => "maint",
        }
    }
}

/// A backend, or a server of it, by their names in the file. The name of a server that has a host name stands for all of its
/// addresses; `NAME/ADDRESS` is one of these.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The backend.
    pub backend: String,
    /// Its server; `None`: all of them, also those that are yet to come.
    pub server: Option<String>,
}

impl Target {
    /// All servers of a backend.
    pub fn backend(name: &str) -> Target {
        Target { backend: name.to_owned(), server: None }
    }

    /// One server.
    pub fn server(backend: &str, server: &str) -> Target {
        Target { backend: backend.to_owned(), server: Some(server.to_owned()) }
    }

    /// Whether it stands for this server.
    pub fn includes(&self, backend: &str, server: &str) -> bool {
        let is_of = |name: &str| {
            server == name || server.strip_prefix(name).is_some_and(|address| address.starts_with('/'))
        };
        self.backend == backend && self.server.as_deref().is_none_or(is_of)
    }
}

impl fmt::Display for Target {
    /// `server BACKEND/SERVER` or `backend BACKEND`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(f, "server {}/{server}", self.backend),
            None => write!(f, "backend {}", self.backend),
        }
    }
}

/// A server that the file does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedServer {
    /// Its address or its name, as a file would have it.
    pub addr: String,
    /// How it is used.
    pub settings: ServerSettings,
}

/// What is said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayValue {
    /// Whether it may serve.
    State(AdminState),
    /// Share of new connections relative to the other servers; 0 takes none.
    Weight(u16),
    /// The file does not have it, and it serves all the same.
    Added(AddedServer),
    /// The file has it, and it does not serve.
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

/// A change that was made while the program runs. It lasts until it is taken back, or the program ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Of what.
    pub target: Target,
    /// To what.
    pub value: OverlayValue,
    /// When.
    pub since: Timestamp,
    /// By whom, in words for an operator.
    pub by: String,
    /// Whether the file goes before it: it has a server of that name by now, has it no more, or does not go together with it.
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
