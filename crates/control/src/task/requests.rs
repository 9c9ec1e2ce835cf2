//! Requests of operators at run time (see [`OperatorRequest`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{DataPath, Reading, Task};
use crate::EventLevel::Info;
use crate::{EventKind, Unsteerable};
use convey_config::Diff;
use convey_model::{
    AddedServer, HttpOverlay, HttpOverlayValue, HttpTarget, LogLevel, Maintenance, Overlay, OverlayValue,
    SaidLogLevel, Target,
};

/// Request of an operator to the control task.
#[derive(Debug)]
pub struct OperatorRequest {
    /// Change or action that the operator requests.
    pub what: Requested,
    /// Name of the operator who made the request, for log lines.
    pub by: String,
    /// Sender of the outcome. The requester may have dropped the receiver.
    pub answer: Answer,
}

/// Change or action that an operator requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// Set the state or the weight of a target, which overrides the file.
    Set(Target, OverlayValue),
    /// Set weights of a route's backends, which override the file.
    SetWeights(HttpTarget, BTreeMap<String, u32>),
    /// Put a frontend, a route or a backend into maintenance.
    SetMaintenance(HttpTarget, Arc<Maintenance>),
    /// End a maintenance.
    EndMaintenance(HttpTarget),
    /// Remove overrides.
    Reset(ResetScope),
    /// Add a server that is not in the file.
    Add(Target, AddedServer),
    /// Remove a server.
    Remove(Target),
    /// Set the log level; `None`: the level of the command line and the file applies again.
    LogLevel(Option<LogLevel>),
    /// Reload the configuration file.
    Reload,
}

/// Overrides to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetScope {
    /// All overrides, also of the log level.
    All,
    /// Overrides of a backend with its servers and its maintenance, or of one server.
    Servers(Target),
    /// Overrides of a frontend with its routes, or of one route.
    Http(HttpTarget),
}

/// Overrides that were removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovedOverlays {
    /// Overrides of servers and backends.
    pub servers: Vec<Overlay>,
    /// Overrides of mode `http`.
    pub http: Vec<HttpOverlay>,
    /// Log level, if an operator had set one.
    pub log_level: Option<SaidLogLevel>,
}

/// Sender for the outcome of a request.
pub(super) type Answer = oneshot::Sender<Outcome>;

/// Outcome of a request.
pub type Outcome = Result<Done, RequestRefusal>;

/// Result of a request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The change was applied.
    Set {
        /// Whether the request changed anything; false if the value was set already.
        has_changed: bool,
    },
    /// The server was added.
    Added {
        /// Whether the target is new; false if the target had an override already.
        is_new: bool,
        /// Operator-facing warnings about the server.
        warnings: Vec<String>,
    },
    /// The overrides were removed.
    Reset(RemovedOverlays),
    /// Differences between the old and the new file.
    Reloaded(Diff),
}

/// Reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// The target does not exist; operator-facing message.
    #[error("{0}")]
    Unknown(String),
    /// The request is invalid, or a limit is reached; operator-facing message.
    #[error("{0}")]
    Refused(String),
    /// The request may succeed later; operator-facing message.
    #[error("{0}")]
    Later(String),
    /// Problems in the file, one line each.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
}

impl From<Unsteerable> for RequestRefusal {
    fn from(unsteerable: Unsteerable) -> RequestRefusal {
        match unsteerable {
            Unsteerable::Unknown(why) => RequestRefusal::Unknown(why),
            Unsteerable::Refused(why) => RequestRefusal::Refused(why),
        }
    }
}

/// Value of an overlay as a noun phrase, for log lines.
pub(super) fn as_noun(value: &OverlayValue) -> String {
    match value {
        OverlayValue::State(state) => format!("state {}", state.name()),
        OverlayValue::Weight(weight) => format!("weight {weight}"),
        OverlayValue::Added(server) => format!("added server at {server}"),
        OverlayValue::Removed => "removal".to_owned(),
    }
}

impl<D: DataPath> Task<D> {
    /// Refusal of a request that changes the state, while another process takes over the state or
    /// after that process has taken over.
    pub(super) fn while_another_has_the_state(&self) -> RequestRefusal {
        let why = match self.state.is_stopping() {
            true => "a new process has taken over; send the request again",
            false => "an upgrade is under way: try again once it has ended",
        };
        RequestRefusal::Later(why.to_owned())
    }

    /// Runs a request. A reload only begins here, and sends its outcome later.
    pub(super) async fn on_request(&mut self, request: OperatorRequest, reading: &mut Reading) {
        let OperatorRequest { what, by, answer } = request;
        let outcome = match what {
            // The new process reads the file itself, and has already received the rest of the
            // state.
            _ if self.handing_over => Err(self.while_another_has_the_state()),
            Requested::Reload => {
                self.log_event(EventKind::Operator, Info, &format!("reload requested by {by}"));
                self.notify_reload();
                return reading.begin_for(answer, &self.file);
            }
            Requested::Set(target, value) => self.steer(target, value, by),
            Requested::Add(target, server) => self.add(target, server, by).await,
            Requested::Remove(target) => self.remove(target, by).await,
            Requested::LogLevel(level) => Ok(Done::Set { has_changed: self.set_log_level(level, by) }),
            Requested::SetWeights(target, weights) => self.set_weights(target, weights, by),
            Requested::SetMaintenance(target, maintenance) => self.set_maintenance(target, maintenance, by),
            Requested::EndMaintenance(target) => self.end_maintenance(&target, &by),
            Requested::Reset(scope) => Ok(Done::Reset(self.take_back(&scope, &by).await)),
        };
        let _ = answer.send(outcome);
    }

    fn set_log_level(&mut self, level: Option<LogLevel>, by: String) -> bool {
        let line = match level {
            Some(level) => format!("log level {} (by {by})", level.name()),
            None => format!("log level reset to the value of the command line or the file (by {by})"),
        };
        let has_changed = self.state.set_log_level(level, by, (self.now)());
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
        }
        has_changed
    }

    fn steer(&mut self, target: Target, value: OverlayValue, by: String) -> Outcome {
        let line = format!("{target}: {value} (by {by})");
        let has_changed = self.state.steer(target, value, by, (self.now)())?;
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
            self.schedule.set(self.state.probes());
        }
        Ok(Done::Set { has_changed })
    }

    fn set_weights(&mut self, target: HttpTarget, weights: BTreeMap<String, u32>, by: String) -> Outcome {
        let line = format!("{target}: {} (by {by})", HttpOverlayValue::Weights(weights.clone()));
        let has_changed = self.state.set_weights(target, weights, by, (self.now)())?;
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
        }
        Ok(Done::Set { has_changed })
    }

    fn set_maintenance(&mut self, target: HttpTarget, maintenance: Arc<Maintenance>, by: String) -> Outcome {
        let line = format!("{target}: {maintenance} (by {by})");
        let has_changed = self.state.set_maintenance(target, maintenance, by, (self.now)())?;
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
        }
        Ok(Done::Set { has_changed })
    }

    fn end_maintenance(&mut self, target: &HttpTarget, by: &str) -> Outcome {
        let has_changed = self.state.end_maintenance(target, (self.now)())?;
        if has_changed {
            self.log_event(EventKind::Operator, Info, &format!("{target}: maintenance ended (by {by})"));
        }
        Ok(Done::Set { has_changed })
    }

    async fn take_back(&mut self, scope: &ResetScope, by: &str) -> RemovedOverlays {
        let gone = match scope {
            ResetScope::All => {
                let log_level = self.state.log_level().cloned();
                if log_level.is_some() {
                    self.set_log_level(None, by.to_owned());
                }
                let servers = self.state.reset(None, (self.now)());
                RemovedOverlays { servers, http: self.state.reset_http(None, (self.now)()), log_level }
            }
            ResetScope::Servers(target) => {
                let servers = self.state.reset(Some(target), (self.now)());
                let backend = HttpTarget::Backend(target.backend.clone());
                let http = match target.server {
                    None => self.state.reset_http(Some(&backend), (self.now)()),
                    Some(_) => Vec::new(),
                };
                RemovedOverlays { servers, http, log_level: None }
            }
            ResetScope::Http(target) => {
                let http = self.state.reset_http(Some(target), (self.now)());
                RemovedOverlays { http, ..RemovedOverlays::default() }
            }
        };
        let of_servers = gone.servers.iter().map(|one| (one.target.to_string(), as_noun(&one.value)));
        let of_http = gone.http.iter().map(|one| (one.target.to_string(), one.value.to_string()));
        for (target, what) in of_servers.chain(of_http) {
            let line = format!("{target}: runtime override cleared: {what} (by {by})");
            self.log_event(EventKind::Operator, Info, &line);
        }
        self.run_without(&gone.servers).await;
        self.schedule.set(self.state.probes());
        gone
    }
}
