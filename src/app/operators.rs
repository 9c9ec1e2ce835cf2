//! Endpoints for operators: the statistics address and the control socket.

use std::future::pending;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use convey_admin::StatsSource;
use convey_control::OperatorRequest;
use log::warn;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::control_socket::{BoundSocket, ControlSocket, NotBound, log_missing};
use super::statistics::{Bound, Statistics};
use super::upgrade::{AdminInUse, AdminSockets, Handed, HandedControl, Taken};

/// Interval between attempts to bind a control socket that another process holds.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Bound endpoints. Clients can connect, but get no answer yet.
pub(super) struct BoundAdmin {
    statistics: Bound,
    control: Result<Option<BoundSocket>, NotBound>,
}

impl BoundAdmin {
    /// Binds the statistics address, or uses the socket that another process has handed over.
    pub(super) async fn new(
        listen: SocketAddr,
        control: Result<Option<BoundSocket>, NotBound>,
        handed: Option<&mut Handed>,
    ) -> anyhow::Result<BoundAdmin> {
        Ok(BoundAdmin { statistics: Bound::new(listen, handed).await?, control })
    }

    /// Reports which sockets this process uses, so that the previous process may give them up.
    pub(super) fn in_use(&self) -> AdminInUse {
        AdminInUse { statistics: self.statistics.is_handed(), control: matches!(self.control, Ok(Some(_))) }
    }

    /// Starts to answer clients. While another process holds the control socket, retries to bind it
    /// at `named`. Must be called within the runtime.
    pub(super) fn serve(
        self,
        source: StatsSource,
        requests: mpsc::Sender<OperatorRequest>,
        named: Option<PathBuf>,
    ) -> anyhow::Result<Admin> {
        let routes =
            convey_admin::routes(source, requests).context("cannot start a thread for statistics")?;
        let statistics = self.statistics.serve(routes.clone());
        let mut admin = Admin { statistics, control: None, retry: None };
        match self.control {
            Err(missing) if missing.is_taken => {
                log_missing(&missing);
                let mut every = interval(RETRY_EVERY);
                every.set_missed_tick_behavior(MissedTickBehavior::Delay);
                admin.retry = Some(Retry { every, named, routes });
            }
            bound => admin.control = served(bound, routes),
        }
        Ok(admin)
    }
}

/// Endpoints that answer clients.
pub(super) struct Admin {
    pub(super) statistics: Statistics,
    /// Control socket; `None` if it is turned off or not available.
    pub(super) control: Option<ControlSocket>,
    retry: Option<Retry>,
}

/// Pending attempts to bind the control socket.
struct Retry {
    every: Interval,
    named: Option<PathBuf>,
    routes: Router,
}

impl Admin {
    /// Logs the path of the control socket.
    pub(super) fn log_path(&self) {
        self.control.iter().for_each(ControlSocket::log_path);
    }

    /// Makes one attempt, at the next tick, to bind the control socket that another process held.
    /// Never returns if there is nothing to retry.
    pub(super) async fn retry_control(&mut self) {
        let Some(retry) = &mut self.retry else { return pending().await };
        retry.every.tick().await;
        let bound = BoundSocket::where_nobody_listens(retry.named.as_deref());
        if bound.as_ref().is_err_and(|missing| missing.is_taken) {
            return;
        }
        if bound.as_ref().is_err_and(|missing| missing.is_denied) {
            self.retry = None;
            return warn!(
                "convey cannot take over the control socket, because it has dropped its privileges (privileges.user): restart convey once \
                 the other process has stopped, or choose a path that this user may write to (--socket)"
            );
        }
        if let Some(Retry { routes, .. }) = self.retry.take() {
            self.control = served(bound, routes);
            self.log_path();
        }
    }

    /// Duplicates the sockets for another process.
    pub(super) fn sockets(&self) -> AdminSockets {
        let control = self.control.as_ref().and_then(ControlSocket::socket);
        AdminSockets { statistics: self.statistics.socket(), control }
    }

    /// Leaves the sockets to the process that serves from now on. Closes the statistics socket even
    /// if that process uses another address: a later process may need the address of this socket,
    /// and could not ask this process for it.
    pub(super) async fn close(&mut self, taken: &Taken) {
        self.statistics.close().await;
        self.retry = None;
        // If the other process has not taken the control socket, it is closed and its file is
        // removed. Commands must reach the process that serves.
        if let Some(mut control) = self.control.take()
            && taken.control
        {
            control.close().await;
        }
    }
}

/// Returns the control socket of the previous process. If an older version has handed none over,
/// this process binds the socket.
pub(super) fn handed_or_bound(
    handed: Option<&mut Handed>,
    bound: Result<Option<BoundSocket>, NotBound>,
    named: Option<&Path>,
) -> Result<Option<BoundSocket>, NotBound> {
    let Some(handed) = handed.filter(|handed| handed.is_upgrade()) else { return bound };
    match handed.admin.control.take() {
        Some(HandedControl { path, socket }) => Ok(Some(BoundSocket::handed(path, socket))),
        None => BoundSocket::new(named, None),
    }
}

/// Starts the control socket. Logs a failure, because convey serves clients without a control
/// socket too. `None` if there is no control socket.
fn served(bound: Result<Option<BoundSocket>, NotBound>, routes: Router) -> Option<ControlSocket> {
    let served = bound.and_then(|bound| {
        let served = bound.map(|bound| bound.serve(routes)).transpose();
        served.map_err(|error| NotBound { why: error.to_string(), is_taken: false, is_denied: false })
    });
    served.inspect_err(log_missing).ok().flatten()
}
