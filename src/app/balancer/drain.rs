//! Drain at the end of a process: open connections may finish.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::pending;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::Duration;

use convey_model::Endpoint;
use convey_snapshot::stats::Counter;
use log::{error, info, warn};
use tokio::sync::{mpsc, oneshot};

use super::{
    Admin, Asked, Control, LogFiles, Paths, Request, RunningBalancer, SignalAction, Signals, requests,
};
use crate::app::socket_store;
use crate::app::upgrade::SuccessorProcess;

/// Number of SIGTERM, by which service managers end processes, including processes that remain
/// after the main process has ended.
pub(super) const SIGTERM: u8 = 15;

impl RunningBalancer {
    /// Asks the service manager to keep the TCP listening sockets if it is about to restart convey.
    /// Returns the endpoints of these sockets.
    pub(super) async fn keep_sockets(&self) -> BTreeSet<Endpoint> {
        if !socket_store::is_restart() {
            return BTreeSet::new();
        }
        let listening = self.task.data_path.listening().await;
        let statistics = self.admin.statistics.socket().map(|handed| handed.socket);
        let sockets: Vec<BorrowedFd<'_>> =
            listening.values().flatten().chain(&statistics).map(AsFd::as_fd).collect();
        match self.manager.store_sockets(&sockets) {
            Ok(()) => {
                info!(
                    "stopping: the service manager keeps {} listening sockets, so new clients wait for the next start",
                    sockets.len()
                );
                listening.into_keys().collect()
            }
            Err(error) => {
                warn!(
                    "the service manager cannot keep the listening sockets, so new clients are refused: {error}"
                );
                BTreeSet::new()
            }
        }
    }

    /// Drains: connections have `timeouts.drain` to finish. After an upgrade this time begins with
    /// a signal to stop. `places` are the endpoints whose sockets another process or the service
    /// manager holds. A further signal ends the process immediately, with the exit code that a
    /// shell expects from a program killed by that signal. Returns the exit code.
    pub(super) async fn drain(
        self,
        places: BTreeSet<Endpoint>,
        successor: Handover<'_>,
        signals: &mut Signals,
    ) -> ExitCode {
        let RunningBalancer { task, events, reload, admin, upgrade_requests, manager, log, .. } = self;
        let (published, totals) = (task.snapshot.clone(), task.snapshot.load().totals.clone());
        let open = task.data_path.open_connections();
        let open = || open(&totals);
        let outlasting = task.data_path.outlasting_connections();
        let patience = Cell::new(published.load().timeouts.drain);
        let is_succeeded = matches!(successor, Handover::Serves { .. });
        let waits = matches!(successor, Handover::Serves { is_stop_requested: false, .. });
        let (limit, limited) = oneshot::channel();
        let begin_limit = || {
            // A reload may have changed the limit.
            patience.set(published.load().timeouts.drain);
            info!("stopping: {} open connections have {:?} to finish", open(), patience.get());
            manager.is_stopping(open(), patience.get());
            let _ = limit.send(patience.get());
        };
        let is_stop_requested = matches!(successor, Handover::Serves { is_stop_requested: true, .. });
        let mut ending = Ending {
            signals,
            reload,
            upgrade_requests,
            admin,
            log,
            successor,
            has_child_ended: false,
            is_stop_requested,
        };
        let cut_before = totals.sum(Counter::Cut);
        let told = async {
            if waits {
                info!("stopping: {} open connections continue until they end", open());
                ending.stop_requested().await?;
            }
            begin_limit();
            ending.hurry_requested(is_succeeded).await
        };
        let second = async {
            let code = told.await.map_or_else(|code| code, |signal| 128 + signal);
            (code, open(), outlasting(&published.load()))
        };
        let stop_requested = async {
            match limited.await {
                Ok(patience) => patience,
                Err(_) => pending().await,
            }
        };
        let outlasting = tokio::select! {
            // Prefer the first branch, so that its log line with the number of open connections
            // comes first.
            biased;
            // The number was taken before this branch runs. By now the drain is dropped, and
            // connections are being cut.
            (code, open, outlasting) = second => {
                warn!("stopped immediately: {} connections were cut", open - outlasting);
                log_outlasting(outlasting);
                return ExitCode::from(code);
            }
            outlasting = Paths::stop(task, events, places, stop_requested) => outlasting,
        };
        log_end(totals.sum(Counter::Cut) - cut_before, outlasting, patience.get());
        ExitCode::SUCCESS
    }
}

/// Process that replaces a process that is ending.
pub(super) enum Handover<'a> {
    /// There is no such process, or this process has no handle of it.
    None,
    /// Another process has taken over. The other process is a child of this one (`child`) unless a
    /// service manager supervises it. `is_stop_requested` is true if this process was asked to stop
    /// meanwhile.
    Serves { child: &'a mut Option<SuccessorProcess>, is_stop_requested: bool },
}

impl Handover<'_> {
    fn child(&mut self) -> Option<&mut SuccessorProcess> {
        match self {
            Handover::None => None,
            Handover::Serves { child, .. } => child.as_mut(),
        }
    }

    /// Waits until the child has ended. Returns its exit code. Never returns if there is no child.
    async fn end(&mut self) -> u8 {
        match self.child() {
            Some(child) => child.end().await,
            None => pending().await,
        }
    }
}

/// Waits until the child of this process has ended. Passes signals on to the child, and returns its
/// exit code.
pub(super) async fn outlive(mut child: SuccessorProcess, signals: &mut Signals, log: &LogFiles) -> u8 {
    info!("process {} has taken over; this process exits when that process exits", child.process());
    log.end_access_log();
    loop {
        tokio::select! {
            code = child.end() => return code,
            action = signals.next() => {
                if action == SignalAction::Reopen {
                    log.reopen();
                }
                child.pass_on(action.signal());
            }
        }
    }
}

/// Signals and requests of a process that is stopping.
struct Ending<'a> {
    signals: &'a mut Signals,
    reload: mpsc::Sender<()>,
    upgrade_requests: Option<Control>,
    admin: Admin,
    log: LogFiles,
    successor: Handover<'a>,
    has_child_ended: bool,
    /// Whether this process, and its child with it, was asked to stop.
    is_stop_requested: bool,
}

impl Ending<'_> {
    /// Waits for a signal that ends the process immediately. Returns the signal's number. The error
    /// is the exit code of a child that has failed. SIGTERM is ignored if another process has
    /// succeeded this one (`is_succeeded`): when the main process has ended, systemd sends a second
    /// SIGTERM to all processes that remain.
    async fn hurry_requested(&mut self, is_succeeded: bool) -> Result<u8, u8> {
        loop {
            let signal = self.stop_requested().await?;
            if !is_succeeded || signal != SIGTERM {
                return Ok(signal);
            }
            info!("stopping: another SIGTERM has no effect; SIGINT or SIGQUIT ends this process immediately");
        }
    }

    /// Waits for a signal to stop. Returns the signal's number. The error is the exit code of a
    /// child that has failed.
    async fn stop_requested(&mut self) -> Result<u8, u8> {
        loop {
            tokio::select! {
                action = self.signals.next() => {
                    let is_stop_repeated = self.is_stop_requested && action == SignalAction::Stop(SIGTERM);
                    if let Some(child) = self.successor.child()
                        && !is_stop_repeated
                    {
                        child.pass_on(action.signal());
                    }
                    match action {
                        SignalAction::Stop(signal) => {
                            self.is_stop_requested = true;
                            return Ok(signal);
                        }
                        SignalAction::Reopen => self.log.reopen(),
                        SignalAction::Reload => _ = self.reload.try_send(()),
                        SignalAction::Upgrade if self.successor.child().is_some() => {}
                        SignalAction::Upgrade => warn!("no upgrade: this process is stopping"),
                    }
                },
                code = self.successor.end(), if !self.has_child_ended => {
                    self.has_child_ended = true;
                    if code == 0 && self.is_stop_requested {
                        continue;
                    }
                    if code == 0 {
                        // Only the child was asked to stop.
                        self.is_stop_requested = true;
                        return Ok(SIGTERM);
                    }
                    error!("the new process has ended with exit code {code}, so this process ends, too");
                    return Err(code);
                }
                Request { what, answer } = requests(&mut self.upgrade_requests) => {
                    let _ = answer.send(match what {
                        Asked::Upgrade => Err("this process is stopping".to_owned()),
                        Asked::Release => {
                            self.admin.statistics.close().await;
                            Ok("this process no longer serves statistics".to_owned())
                        }
                    });
                }
            }
        }
    }
}

/// Logs how many connections were cut after the drain time, and how many continue without this
/// process.
fn log_end(cut: u64, outlasting: u64, patience: Duration) {
    match cut {
        0 if outlasting == 0 => info!("stopped: every connection had ended"),
        0 => info!("stopped"),
        cut => warn!("stopped: {cut} connections were cut after {patience:?}"),
    }
    log_outlasting(outlasting);
}

fn log_outlasting(outlasting: u64) {
    if outlasting > 0 {
        info!(
            "{outlasting} connections in dsr mode continue once convey starts again, or on another balancer"
        );
    }
}
