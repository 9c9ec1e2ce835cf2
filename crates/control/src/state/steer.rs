//! Changes of servers and of the log by operators while the program runs. Pure.

use super::ControlState;
use crate::overlays::Overlays;
use convey_config::{did_you_mean, listed};
use convey_model::{LogLevel, Overlay, OverlayValue, SaidLogLevel, ServerKey, Target, Timestamp};

/// Reason why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsteerable {
    /// There is no such backend or server: words for an operator.
    #[error("{0}")]
    Unknown(String),
    /// It means nothing, or there are too many changes: words for an operator.
    #[error("{0}")]
    Refused(String),
}

impl ControlState {
    /// Has this hold from now on, whatever the file says. Returns whether anything is other than before. Nothing is published
    /// before `take_update`.
    ///
    /// # Errors
    /// There is no such backend or server, only servers have a weight, or there are too many changes.
    pub fn steer(
        &mut self,
        target: Target,
        value: OverlayValue,
        by: String,
        now: Timestamp,
    ) -> Result<bool, Unsteerable> {
        self.find(&target).map_err(Unsteerable::Unknown)?;
        if target.server.is_none() && matches!(value, OverlayValue::Weight(_)) {
            return Err(Unsteerable::Refused(format!("{target}: only a server has a weight")));
        }
        let out = self.in_maintenance();
        let overlay = Overlay { target, value, since: now, by, superseded: false };
        let has_changed = self.operators.overlays_mut().set(overlay).map_err(Unsteerable::Refused)?;
        if has_changed {
            self.has_been_steered(out, now);
        }
        Ok(has_changed)
    }

    /// Takes back what was said of a target and its parts; of all without one. Returns it. Nothing is published before
    /// `take_update`.
    pub fn reset(&mut self, target: Option<&Target>, now: Timestamp) -> Vec<Overlay> {
        let out = self.in_maintenance();
        let gone = self.operators.overlays_mut().reset(target);
        if !gone.is_empty() {
            self.has_been_steered(out, now);
        }
        gone
    }

    /// Has the log say so much; without a level as the command line and the file say. Returns whether that is other than before.
    /// Nothing is published before `take_update`.
    pub fn set_log_level(&mut self, level: Option<LogLevel>, by: String, now: Timestamp) -> bool {
        let has_changed = self.operators.set_log_level(level, by, now);
        self.is_stale |= has_changed;
        has_changed
    }

    /// What was said of the log.
    pub fn log_level(&self) -> Option<&SaidLogLevel> {
        self.operators.log_level()
    }

    /// All that was said of servers.
    pub(crate) fn overlays(&self) -> &Overlays {
        self.operators.overlays()
    }

    /// The same, to change which servers there are. The configuration that follows from it is the caller's affair.
    pub(crate) fn overlays_mut(&mut self) -> &mut Overlays {
        self.operators.overlays_mut()
    }

    fn in_maintenance(&self) -> Vec<ServerKey> {
        let view = self.view();
        let servers = self.servers.iter().map(|(server, _)| server);
        servers.filter(|server| view.is_in_maintenance(server)).cloned().collect()
    }

    /// Servers that come back begin as new ones do: nobody knows what has become of them.
    fn has_been_steered(&mut self, mut out: Vec<ServerKey>, now: Timestamp) {
        out.retain(|server| !self.view().is_in_maintenance(server));
        for server in out {
            if let Some(entry) = self.servers.get_mut(&server) {
                entry.reset(now);
            }
            self.begin_anew(&server, now);
        }
        self.is_stale = true;
        self.resolve_again(now);
    }

    /// Whether its backend has no other server, as configured.
    pub(crate) fn is_last(&self, target: &Target) -> bool {
        let backend = self.config.as_ref().and_then(|config| config.backend(&target.backend));
        backend.is_some_and(|backend| {
            let written = backend.servers.iter().map(|server| &server.name);
            let mut all = written.chain(backend.named.iter().map(|named| &named.name));
            backend.discovery.is_none() && all.all(|name| Some(name) == target.server.as_ref())
        })
    }

    /// Whether no other server of the target's backend has an address now.
    pub(crate) fn is_last_with_address(&self, target: &Target) -> bool {
        let servers = self.pools.get(&target.backend).map(|pool| &pool.servers);
        servers.is_some_and(|servers| {
            let mut names = servers.iter().map(|server| &server.config.name);
            !servers.is_empty() && names.all(|name| target.includes(&target.backend, name))
        })
    }

    /// # Errors
    /// Neither the file nor a name has it: words for an operator.
    pub(crate) fn find(&self, target: &Target) -> Result<(), String> {
        let config = self.config.as_ref().ok_or("nothing is configured")?;
        let Some(backend) = config.backend(&target.backend) else {
            let names = config.backends.iter().map(|backend| backend.name.as_str());
            return Err(unknown("backend", &target.backend, names.collect()));
        };
        let Some(server) = &target.server else { return Ok(()) };
        let written = backend.servers.iter().map(|server| server.name.as_str());
        let named = backend.named.iter().map(|named| named.name.as_str());
        let resolved = self.pools.get(&target.backend).into_iter().flat_map(|pool| &pool.servers);
        let mut names: Vec<&str> =
            written.chain(named).chain(resolved.map(|server| server.config.name.as_str())).collect();
        if names.contains(&server.as_str()) {
            return Ok(());
        }
        names.sort_unstable();
        names.dedup();
        Err(unknown(&format!("server of backend {}", target.backend), server, names))
    }
}

fn unknown(what: &str, name: &str, names: Vec<&str>) -> String {
    let meant = did_you_mean(name, names.iter().copied());
    let there_are = if names.is_empty() { "none".to_owned() } else { listed(names.iter(), MAX_NAMES) };
    format!("no {what} is called {name:?}{meant} (there are: {there_are})")
}

/// Names of an error are no more: a backend may have thousands.
const MAX_NAMES: usize = 8;
