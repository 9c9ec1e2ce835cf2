//! Arguments of the commands that change servers, backends and routes of the running convey.

use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use convey_config::check_server_address;
use convey_model::{AddedServer, AdminState, HttpTarget, ServerSettings, Target};

use super::duration::duration;
use crate::operator::{Change, Wanted};

/// Options of commands that wait for the end of connections.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Wait {
    /// Wait until no connection is left, and print the number of open connections
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this time
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "wait", value_parser = duration)]
    timeout: Duration,
}

/// Commands on a server.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum ServerCommand {
    /// Stop sending new connections to a server; open connections and health checks continue
    Drain {
        /// Backend and name of the server; NAME/ADDRESS is one address of a host name
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
        /// Time to wait for the end of the server's connections.
        #[command(flatten)]
        wait: Wait,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
    /// Put a server back into rotation, subject to its weight and health
    Ready {
        /// Backend and name of the server
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
    },
    /// Put a server into maintenance: it counts as down, and convey does not check it
    Maint {
        /// Backend and name of the server
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
    /// Add a server that is not in the file, or change an added one
    ///
    /// The server stays through reloads and upgrades, until `convey reset`, `convey server remove`
    /// or the end of convey. If the file gets a server of that name, the file takes precedence.
    Add {
        /// Backend and name of the server
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
        /// Address of the server: IP:PORT; in modes proxy and http also NAME:PORT or unix:/PATH
        #[arg(value_name = "ADDR", value_parser = server_addr)]
        addr: String,
        /// Share of new connections, relative to the other servers
        #[arg(long, value_name = "N", default_value_t = ServerSettings::default().weight)]
        weight: u16,
        /// Use the server only while no other server is usable
        #[arg(long)]
        backup: bool,
        /// Maximum number of open connections
        #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
        max_connections: Option<u32>,
    },
    /// Remove a server; its open connections continue, in packet modes for timeouts.drain
    ///
    /// `convey reset` restores a server of the file.
    Remove {
        /// Backend and name of the server
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
    /// Change the weight of a server, which determines its share of new connections
    Weight {
        /// Backend and name of the server
        #[arg(value_name = "BACKEND/SERVER", value_parser = server)]
        server: Target,
        /// Weight relative to the other servers; 0 takes the server out of rotation
        #[arg(value_name = "WEIGHT")]
        weight: u16,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
}

/// Commands on all servers of a backend, including future ones.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum BackendCommand {
    /// Stop sending new connections to all servers of a backend; open connections continue
    Drain {
        /// Name of the backend
        #[arg(value_name = "BACKEND")]
        backend: String,
        /// Time to wait for the end of the servers' connections.
        #[command(flatten)]
        wait: Wait,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
    /// Put all servers of a backend back into rotation, subject to their weights and health
    Ready {
        /// Name of the backend
        #[arg(value_name = "BACKEND")]
        backend: String,
    },
    /// Put all servers of a backend into maintenance: they count as down, and convey does not check
    /// them
    Maint {
        /// Name of the backend
        #[arg(value_name = "BACKEND")]
        backend: String,
        /// Continue even if this withdraws an announced address
        #[arg(long)]
        force: bool,
    },
}

/// Commands on a route of mode http.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum RouteCommand {
    /// Change the shares of requests that the backends of a route get
    ///
    /// For example `convey route weight web/checkout v2=5`. Backends without a new weight keep
    /// theirs. The change applies from the next request on, and ends no request.
    Weight {
        /// Frontend, and name of the route
        #[arg(value_name = "FRONTEND/ROUTE", value_parser = route)]
        route: HttpTarget,
        /// Backends of the route, each with its weight; 0: no requests
        #[arg(value_name = "BACKEND=WEIGHT", required = true, value_parser = weight)]
        weights: Vec<(String, u32)>,
    },
    /// Undo the changes of a route, so that the file applies again
    Reset {
        /// Frontend, and name of the route
        #[arg(value_name = "FRONTEND/ROUTE", value_parser = route)]
        route: HttpTarget,
    },
}

impl RouteCommand {
    /// Change that the command requests.
    pub fn change(&self) -> Change {
        match self.clone() {
            RouteCommand::Weight { route, weights } => Wanted::RouteWeights(route, weights).into(),
            RouteCommand::Reset { route } => Wanted::ResetHttp(route).into(),
        }
    }
}

impl ServerCommand {
    /// Change that the command requests.
    pub fn change(&self) -> Change {
        Change { wanted: self.wanted(), is_forced: self.is_forced() }
    }

    fn wanted(&self) -> Wanted {
        match self.clone() {
            ServerCommand::Drain { server, .. } => Wanted::State(server, AdminState::Drain),
            ServerCommand::Ready { server } => Wanted::State(server, AdminState::Ready),
            ServerCommand::Maint { server, .. } => Wanted::State(server, AdminState::Maint),
            ServerCommand::Weight { server, weight, .. } => Wanted::Weight(server, weight),
            ServerCommand::Add { server, addr, weight, backup, max_connections } => {
                let settings = ServerSettings { weight, backup, max_connections };
                Wanted::Add(server, AddedServer { addr, settings })
            }
            ServerCommand::Remove { server, .. } => Wanted::Remove(server),
        }
    }

    fn is_forced(&self) -> bool {
        match self {
            ServerCommand::Drain { force, .. }
            | ServerCommand::Maint { force, .. }
            | ServerCommand::Remove { force, .. }
            | ServerCommand::Weight { force, .. } => *force,
            ServerCommand::Ready { .. } | ServerCommand::Add { .. } => false,
        }
    }

    /// Time to wait for the end of connections; `None` does not wait.
    pub fn patience(&self) -> Option<Duration> {
        match self {
            ServerCommand::Drain { wait, .. } => wait.wait.then_some(wait.timeout),
            _ => None,
        }
    }
}

impl BackendCommand {
    fn is_forced(&self) -> bool {
        match self {
            BackendCommand::Drain { force, .. } | BackendCommand::Maint { force, .. } => *force,
            BackendCommand::Ready { .. } => false,
        }
    }

    /// Time to wait for the end of connections; `None` does not wait.
    pub fn patience(&self) -> Option<Duration> {
        match self {
            BackendCommand::Drain { wait, .. } => wait.wait.then_some(wait.timeout),
            _ => None,
        }
    }

    /// Change that the command requests.
    pub fn change(&self) -> Change {
        Change { wanted: self.wanted(), is_forced: self.is_forced() }
    }

    fn wanted(&self) -> Wanted {
        let (backend, state) = match self {
            BackendCommand::Drain { backend, .. } => (backend, AdminState::Drain),
            BackendCommand::Ready { backend } => (backend, AdminState::Ready),
            BackendCommand::Maint { backend, .. } => (backend, AdminState::Maint),
        };
        Wanted::State(Target::backend(backend), state)
    }
}

fn server_addr(text: &str) -> Result<String, String> {
    check_server_address(text).map(|()| text.to_owned())
}

pub(super) fn server(text: &str) -> Result<Target, String> {
    match target(text)? {
        Target { server: None, .. } => Err("expected: BACKEND/SERVER, such as web/a".to_owned()),
        target => Ok(target),
    }
}

/// Parses `FRONTEND/ROUTE`. The name of a route may contain slashes.
fn route(text: &str) -> Result<HttpTarget, String> {
    split_route(text).ok_or_else(|| "expected: FRONTEND/ROUTE, such as web/checkout".to_owned())
}

/// Route `FRONTEND/ROUTE`; `None`: the text is something else.
pub(super) fn split_route(text: &str) -> Option<HttpTarget> {
    let (frontend, route) = text.split_once('/')?;
    (!frontend.is_empty() && !route.is_empty()).then(|| HttpTarget::route(frontend, route))
}

/// Parses `BACKEND=WEIGHT`.
fn weight(text: &str) -> Result<(String, u32), String> {
    let parts = text.rsplit_once('=').filter(|(backend, _)| !backend.is_empty());
    let weight = parts.and_then(|(backend, weight)| Some((backend.to_owned(), weight.parse().ok()?)));
    weight.ok_or_else(|| "expected: BACKEND=WEIGHT, such as v2=5".to_owned())
}

/// Parses `BACKEND` or `BACKEND/SERVER`.
pub(super) fn target(text: &str) -> Result<Target, String> {
    let (backend, server) =
        text.split_once('/').map_or((text, None), |(backend, server)| (backend, Some(server)));
    if backend.is_empty() || server == Some("") {
        return Err("expected: BACKEND or BACKEND/SERVER, such as web/a".to_owned());
    }
    Ok(Target { backend: backend.to_owned(), server: server.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_argument_is_frontend_and_name_that_may_have_slashes() {
        assert_eq!(route("web/checkout"), Ok(HttpTarget::route("web", "checkout")));
        assert_eq!(route("web/*/v1"), Ok(HttpTarget::route("web", "*/v1")));
        assert!(["web", "web/", "/a", ""].iter().all(|wrong| route(wrong).is_err()));
    }

    #[test]
    fn weight_argument_is_a_backend_with_a_number() {
        assert_eq!(weight("v2=5"), Ok(("v2".to_owned(), 5)));
        assert_eq!(weight("a=b=0"), Ok(("a=b".to_owned(), 0)));
        assert!(["v2", "=5", "v2=", "v2=x", "v2=-1", "v2=5%"].iter().all(|wrong| weight(wrong).is_err()));
    }

    #[test]
    fn server_argument_is_backend_and_name_with_optional_address() {
        assert_eq!(server("web/a"), Ok(Target::server("web", "a")));
        assert_eq!(server("web/app/10.0.0.3"), Ok(Target::server("web", "app/10.0.0.3")));
        assert_eq!(target("web"), Ok(Target::backend("web")));
        for wrong in ["web", "web/", "/a", ""] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }
}
