//! Embeds convey in another program: frontends in modes `proxy` and `http`, their servers and
//! health checks, from a configuration.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let balancer = convey_embed::EmbeddedBalancer::builder(
//!     r#"
//!     [frontends.web]
//!     listen_addr = "127.0.0.1:0"
//!     mode = "http"
//!     backend = "app"
//!
//!     [backends.app.servers.a]
//!     addr = "127.0.0.1:9001"
//!     "#,
//! )
//! .start()
//! .await;
//! # assert!(balancer.is_err(), "port 0 is nobody's");
//! # Ok(()) }
//! ```
//!
//! An embedded balancer has no features that need a process of their own: signals, privileges, the
//! log, statistics, upgrades, packet modes, and servers of Kubernetes. Log messages go to the crate
//! `log`.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod control;
mod data_path;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use convey_control::{Done, OperatorRequest, RequestRefusal, Requested};
use convey_http::{HttpServer, stack::DecideRequest};
use convey_model::{AddedServer, ServerSettings, Target};
use convey_proxy::HttpMode;
use tokio::sync::{mpsc, oneshot};

use control::ControlThread;

/// Running balancer. Dropping it cuts open connections.
#[derive(Debug)]
pub struct EmbeddedBalancer {
    requests: mpsc::Sender<OperatorRequest>,
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

/// Builder of a balancer.
#[derive(Debug)]
pub struct BalancerBuilder {
    config: String,
    http: Arc<dyn HttpMode>,
}

/// Reason why a balancer cannot start, or why it refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    /// Errors in the configuration, one line each.
    #[error("{}", .0.join("; "))]
    Config(Vec<String>),
    /// The balancer cannot run here. The text is an operator-facing reason.
    #[error("{0}")]
    Start(String),
    /// The balancer refused the request.
    #[error(transparent)]
    Refused(#[from] RequestRefusal),
    /// The balancer has stopped.
    #[error("the balancer has stopped")]
    Stopped,
}

impl EmbeddedBalancer {
    /// Begins to build a balancer with this configuration, in the format of `config.toml`.
    pub fn builder(config: &str) -> BalancerBuilder {
        BalancerBuilder { config: config.to_owned(), http: HttpServer::usual() }
    }

    /// Adds a server to a backend. New connections and requests may use it immediately. Returns
    /// whether the server is new.
    ///
    /// # Errors
    /// The backend does not exist, or the address is invalid.
    pub async fn add_server(&self, backend: &str, name: &str, addr: &str) -> Result<bool, BalancerError> {
        let server = AddedServer { addr: addr.to_owned(), settings: ServerSettings::default() };
        match self.ask(Requested::Add(target(backend, name), server)).await? {
            Done::Added { is_new, .. } => Ok(is_new),
            _ => Ok(false),
        }
    }

    /// Removes a server. Its open connections are not cut.
    ///
    /// # Errors
    /// The server does not exist.
    pub async fn remove_server(&self, backend: &str, name: &str) -> Result<(), BalancerError> {
        self.ask(Requested::Remove(target(backend, name))).await.map(drop)
    }

    /// Stops accepting connections, and waits at most `within` for open connections to end. Then
    /// cuts the remaining connections.
    pub async fn stop(mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(within);
        }
        if let Some(thread) = self.thread.take() {
            let _ = convey_config::files::aside(move || thread.join()).await;
        }
    }

    async fn ask(&self, what: Requested) -> Result<Done, BalancerError> {
        let (answer, answered) = oneshot::channel();
        let request = OperatorRequest { what, by: "the program".to_owned(), answer };
        self.requests.send(request).await.map_err(|_| BalancerError::Stopped)?;
        Ok(answered.await.map_err(|_| BalancerError::Stopped)??)
    }
}

impl BalancerBuilder {
    /// Sets the services that decide about requests, such as [`convey_http::stack::usual`] within a
    /// custom layer.
    ///
    /// A stack should contain [`convey_http::stack::check_access`], as
    /// [`convey_http::stack::usual`] does. Only this service checks the clients behind trusted
    /// proxies: the access lists (`access`) admit all connections of a trusted proxy. Without the
    /// service, every client that a trusted proxy names is admitted.
    #[must_use]
    pub fn stack(self, stack: impl DecideRequest) -> BalancerBuilder {
        BalancerBuilder { http: Arc::new(HttpServer::new(stack)), ..self }
    }

    /// Starts the balancer in its own threads: one worker for each core, and a control thread.
    /// Returns once the balancer serves clients.
    ///
    /// # Errors
    /// The configuration is invalid, or the balancer cannot listen on an address.
    pub async fn start(self) -> Result<EmbeddedBalancer, BalancerError> {
        let (started, is_started) = oneshot::channel();
        let (stop, stops) = oneshot::channel();
        let (requests, asked) = mpsc::channel(16);
        let thread = std::thread::Builder::new()
            .name("convey-control".to_owned())
            .spawn(move || ControlThread::run(self.config, self.http, asked, started, stops))
            .map_err(|error| BalancerError::Start(error.to_string()))?;
        is_started.await.map_err(|_| BalancerError::Stopped)??;
        Ok(EmbeddedBalancer { requests, stop: Some(stop), thread: Some(thread) })
    }
}

fn target(backend: &str, server: &str) -> Target {
    Target { backend: backend.to_owned(), server: Some(server.to_owned()) }
}
