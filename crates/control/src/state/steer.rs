//! Changes that operators make to servers and to the log level at run time. Pure.

use super::ControlState;
use crate::http_overlays::HttpOverlays;
use crate::overlays::Overlays;
use convey_config::{did_you_mean, listed};
use convey_model::{LogLevel, Overlay, OverlayValue, SaidLogLevel, ServerKey, Target, Timestamp};

/// Reason why a change by an operator was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsteerable {
    /// The backend or server does not exist; operator-facing message.
    #[error("{0}")]
    Unknown(String),
    /// The change is invalid, or there are too many changes; operator-facing message.
    #[error("{0}")]
    Refused(String),
}

impl ControlState {
    /// Sets the state or the weight of a target, which overrides the file. Returns whether a stored
    /// overlay changed. `take_update` returns a snapshot with the change.
    ///
    /// # Errors
    /// The backend or server does not exist, the target cannot have a weight because it is a
    /// backend, or there are too many changes.
    pub fn steer(
        &mut self,
        target: Target,
        value: OverlayValue,
        by: String,
        now: Timestamp,
    ) -> Result<bool, Unsteerable> {
        self.find(&target).map_err(Unsteerable::Unknown)?;
        if target.server.is_none() && matches!(value, OverlayValue::Weight(_)) {
            return Err(Unsteerable::Refused(format!("{target} has no weight: only servers have one")));
        }
        let out = self.in_maintenance();
        let overlay = Overlay { target, value, since: now, by, superseded: false };
        let has_changed = self.operators.overlays_mut().set(overlay).map_err(Unsteerable::Refused)?;
        if has_changed {
            self.has_been_steered(out, now);
        }
        Ok(has_changed)
    }

    /// Removes and returns the overlays of a target and of its parts; with `None`, the overlays of
    /// all targets. `take_update` returns a snapshot with the change.
    pub fn reset(&mut self, target: Option<&Target>, now: Timestamp) -> Vec<Overlay> {
        let out = self.in_maintenance();
        let gone = self.operators.overlays_mut().reset(target);
        if !gone.is_empty() {
            self.has_been_steered(out, now);
        }
        gone
    }

    /// Sets the log level; `None`: the level of the command line and the file applies again.
    /// Returns whether the level changed. `take_update` returns a snapshot with the change.
    pub fn set_log_level(&mut self, level: Option<LogLevel>, by: String, now: Timestamp) -> bool {
        let has_changed = self.operators.set_log_level(level, by, now);
        self.is_stale |= has_changed;
        has_changed
    }

    /// Log level that an operator set; `None`: no operator set one.
    pub fn log_level(&self) -> Option<&SaidLogLevel> {
        self.operators.log_level()
    }

    /// Overlays of servers and backends.
    pub(crate) fn overlays(&self) -> &Overlays {
        self.operators.overlays()
    }

    /// Overlays of mode `http`.
    pub(crate) fn http_overlays(&self) -> &HttpOverlays {
        self.operators.http()
    }

    /// Mutable overlays, to add or remove servers. The caller then has to apply the resulting
    /// configuration.
    pub(crate) fn overlays_mut(&mut self) -> &mut Overlays {
        self.operators.overlays_mut()
    }

    fn in_maintenance(&self) -> Vec<ServerKey> {
        let view = self.view();
        let servers = self.servers.iter().map(|(server, _)| server);
        servers.filter(|server| view.is_in_maintenance(server)).cloned().collect()
    }

    /// Resets the servers of `out` that are no longer in maintenance; `out` are the servers that
    /// were in maintenance before the change. The reset servers start like new servers, because
    /// their health is unknown.
    fn has_been_steered(&mut self, mut out: Vec<ServerKey>, now: Timestamp) {
        out.retain(|server| !self.view().is_in_maintenance(server));
        for server in out {
            if let Some(entry) = self.servers.get_mut(&server) {
                entry.reset(now);
            }
            self.restart(&server, now);
        }
        self.is_stale = true;
        self.resolve_again(now);
    }

    /// Whether the target is the last server that the configuration has for its backend.
    pub(crate) fn is_last(&self, target: &Target) -> bool {
        let backend = self.config.as_ref().and_then(|config| config.backend(&target.backend));
        backend.is_some_and(|backend| {
            let written = backend.servers.iter().map(|server| &server.name);
            let mut all = written.chain(backend.named.iter().map(|named| &named.name));
            backend.discovery.is_none() && all.all(|name| Some(name) == target.server.as_ref())
        })
    }

    /// Whether the target is the last server of its backend that has an address now.
    pub(crate) fn is_last_with_address(&self, target: &Target) -> bool {
        let servers = self.pools.get(&target.backend).map(|pool| &pool.servers);
        servers.is_some_and(|servers| {
            let mut names = servers.iter().map(|server| &server.config.name);
            !servers.is_empty() && names.all(|name| target.includes(&target.backend, name))
        })
    }

    /// Checks that a target exists.
    ///
    /// # Errors
    /// Operator-facing message: the backend does not exist, or has no server of this name.
    pub(crate) fn find(&self, target: &Target) -> Result<(), String> {
        let config = self.config.as_ref().ok_or("no configuration is loaded")?;
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

pub(super) fn unknown(what: &str, name: &str, names: Vec<&str>) -> String {
    let meant = did_you_mean(name, names.iter().copied());
    let existing = if names.is_empty() { "none".to_owned() } else { listed(names.iter(), MAX_NAMES) };
    format!("no {what} is called {name:?}{meant} (existing: {existing})")
}

/// Maximum number of names in an error message. A backend may have thousands of servers.
const MAX_NAMES: usize = 8;
