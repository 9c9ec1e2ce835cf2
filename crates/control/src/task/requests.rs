//! What operators ask for while the program runs: see [`OperatorRequest`].

use tokio::sync::oneshot;

use super::{DataPath, Reading, Task};
use crate::EventLevel::Info;
use crate::{EventKind, Unsteerable};
use convey_config::Diff;
use convey_model::{AddedServer, LogLevel, Overlay, OverlayValue, SaidLogLevel, Target};

/// Something that an operator asks for.
#[derive(Debug)]
pub struct OperatorRequest {
    /// What.
    pub what: Requested,
    /// Who asks, in words for an operator.
    pub by: String,
    /// Hears what has become of it. Nobody need listen.
    pub answer: Answer,
}

/// The subject of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// This holds from now on, whatever the file says.
    Set(Target, OverlayValue),
    /// What was said of this target holds no longer; of any, without one.
    Reset(Option<Target>),
    /// This server serves from now on, although the file does not have it.
    Add(Target, AddedServer),
    /// This server serves no longer.
    Remove(Target),
    /// The log says so much, or as much as the command line and the file say.
    LogLevel(Option<LogLevel>),
    /// The file is read again.
    Reload,
}

/// Where the answer goes.
pub(super) type Answer = oneshot::Sender<Outcome>;

/// What has become of a request.
pub type Outcome = Result<Done, RequestRefusal>;

/// A request that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Whether anything is other than before.
    Set {
        /// False if it held already.
        has_changed: bool,
    },
    /// The server serves.
    Added {
        /// Whether nothing had been said of it before.
        is_new: bool,
        /// What is odd about it: words for an operator.
        warnings: Vec<String>,
    },
    /// What no longer holds, of servers and of the log.
    Reset(Vec<Overlay>, Option<SaidLogLevel>),
    /// What the file has changed.
    Reloaded(Diff),
}

/// A request that was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// There is no such thing: words for an operator.
    #[error("{0}")]
    Unknown(String),
    /// It means nothing, or there is no room for it: words for an operator.
    #[error("{0}")]
    Refused(String),
    /// Not now: words for an operator.
    #[error("{0}")]
    Later(String),
    /// What is wrong with the file, a line for each problem.
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

/// What an operator has said, as the object of a sentence.
pub(super) fn as_noun(value: &OverlayValue) -> String {
    match value {
        OverlayValue::State(state) => format!("the state {}", state.name()),
        OverlayValue::Weight(weight) => format!("the weight {weight}"),
        OverlayValue::Added(server) => format!("the added server at {server}"),
        OverlayValue::Removed => "the removal".to_owned(),
    }
}

impl<D: DataPath> Task<D> {
    /// The answer to a request that changes the state, which another process takes over or has.
    pub(super) fn while_another_has_the_state(&self) -> RequestRefusal {
        let why = match self.state.is_stopping() {
            true => "another process serves now",
            false => "an upgrade is under way: try again once it has ended",
        };
        RequestRefusal::Later(why.to_owned())
    }

    /// Does what is asked, or has it done.
    pub(super) async fn on_request(&mut self, request: OperatorRequest, reading: &mut Reading) {
        let OperatorRequest { what, by, answer } = request;
        let outcome = match what {
            // The new process reads the file itself, and has been sent the rest of the state.
            _ if self.handing_over => Err(self.while_another_has_the_state()),
            Requested::Reload => {
                self.log_event(EventKind::Operator, Info, &format!("reloading, as {by} has asked for"));
                self.notify_reload();
                return reading.begin_for(answer, &self.file);
            }
            Requested::Set(target, value) => self.steer(target, value, by),
            Requested::Add(target, server) => self.add(target, server, by).await,
            Requested::Remove(target) => self.remove(target, by).await,
            Requested::LogLevel(level) => Ok(Done::Set { has_changed: self.set_log_level(level, by) }),
            Requested::Reset(target) => {
                let log_level = self.state.log_level().filter(|_| target.is_none()).cloned();
                if log_level.is_some() {
                    self.set_log_level(None, by.clone());
                }
                Ok(Done::Reset(self.take_back(target.as_ref(), &by).await, log_level))
            }
        };
        let _ = answer.send(outcome);
    }

    fn set_log_level(&mut self, level: Option<LogLevel>, by: String) -> bool {
        let line = match level {
            Some(level) => format!("log level {}, as {by} has said", level.name()),
            None => format!("the log level is that of the file or the command line, as {by} has said"),
        };
        let has_changed = self.state.set_log_level(level, by, (self.now)());
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
        }
        has_changed
    }

    fn steer(&mut self, target: Target, value: OverlayValue, by: String) -> Outcome {
        let line = format!("{target}: {value}, as {by} has said");
        let has_changed = self.state.steer(target, value, by, (self.now)())?;
        if has_changed {
            self.log_event(EventKind::Operator, Info, &line);
            self.schedule.set(self.state.probes());
        }
        Ok(Done::Set { has_changed })
    }

    async fn take_back(&mut self, target: Option<&Target>, by: &str) -> Vec<Overlay> {
        let gone = self.state.reset(target, (self.now)());
        for overlay in &gone {
            let line = format!("{}: {by} has taken back {}", overlay.target, as_noun(&overlay.value));
            self.log_event(EventKind::Operator, Info, &line);
        }
        self.run_without(&gone).await;
        self.schedule.set(self.state.probes());
        gone
    }
}
