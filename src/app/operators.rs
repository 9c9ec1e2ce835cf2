//! Where operators ask: the statistics address and the control socket.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use axum::Router;
use tokio::sync::mpsc;

use super::control_socket::{BoundSocket, ControlSocket, tell_of_none};
use super::statistics::{Bound, Statistics};
use super::upgrade::{AdminInUse, AdminSockets, Handed, Taken};
use crate::admin::{self, StatsSource};
use crate::control::OperatorRequest;

/// Both are bound: clients that ask wait.
pub(super) struct BoundAdmin {
    statistics: Bound,
    control: Result<Option<BoundSocket>, String>,
}

impl BoundAdmin {
    /// Binds the address, unless another process has handed its socket over.
    pub(super) async fn new(
        listen: SocketAddr,
        control: Result<Option<BoundSocket>, String>,
        handed: Option<&mut Handed>,
    ) -> anyhow::Result<BoundAdmin> {
        Ok(BoundAdmin { statistics: Bound::new(listen, handed).await?, control })
    }

    /// What another process need not have any more.
    pub(super) fn in_use(&self) -> AdminInUse {
        AdminInUse { statistics: self.statistics.is_handed(), control: matches!(self.control, Ok(Some(_))) }
    }

    /// Answers from now on. To be called in the runtime.
    pub(super) fn serve(
        self,
        source: StatsSource,
        requests: mpsc::Sender<OperatorRequest>,
    ) -> anyhow::Result<Admin> {
        let routes = admin::routes(source, requests).context("no thread for statistics")?;
        let statistics = self.statistics.serve(routes.clone());
        Ok(Admin { statistics, control: served(self.control, routes) })
    }
}

/// Both answer.
pub(super) struct Admin {
    pub(super) statistics: Statistics,
    /// `None`: nobody wants it, or it cannot be had.
    pub(super) control: Option<ControlSocket>,
}

impl Admin {
    /// Says where the control socket is.
    pub(super) fn tell(&self) {
        self.control.iter().for_each(ControlSocket::tell);
    }

    /// The sockets once more, for another process.
    pub(super) fn sockets(&self) -> AdminSockets {
        let control = self.control.as_ref().and_then(ControlSocket::socket);
        AdminSockets { statistics: self.statistics.socket(), control }
    }

    /// Gives up what another process has taken.
    pub(super) async fn give_up(&mut self, taken: &Taken) {
        if taken.statistics {
            self.statistics.give_up().await;
        }
        if taken.control
            && let Some(mut control) = self.control.take()
        {
            control.give_up().await;
        }
    }
}

/// The control socket of the process that hands over. One that is of an older version has none: then it is bound here.
pub(super) fn handed_or_bound(
    handed: Option<&mut Handed>,
    bound: Result<Option<BoundSocket>, String>,
    named: Option<&Path>,
) -> Result<Option<BoundSocket>, String> {
    let Some(handed) = handed.filter(|handed| handed.is_upgrade()) else { return bound };
    match handed.admin.control.take() {
        Some((path, socket)) => Ok(Some(BoundSocket::handed(path, socket))),
        None => BoundSocket::new(named, None),
    }
}

/// Without a control socket convey serves clients all the same.
fn served(bound: Result<Option<BoundSocket>, String>, routes: Router) -> Option<ControlSocket> {
    let served = bound.and_then(|bound| {
        bound.map(|bound| bound.serve(routes)).transpose().map_err(|error| error.to_string())
    });
    served.inspect_err(|why| tell_of_none(why)).ok().flatten()
}
