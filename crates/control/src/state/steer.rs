//! What operators say of servers while the program runs. Pure.

use super::{ControlState, ServerEntry};
use crate::overlays::Overlays;
use convey_config::{did_you_mean, listed};
use convey_model::{
    AdminState, BackendConfig, LogLevel, Overlay, OverlayValue, SaidLogLevel, ServerKey, Target, Timestamp,
};

/// Why a change was not made.
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
        let has_changed = self.overlays.set(overlay).map_err(Unsteerable::Refused)?;
        if has_changed {
            self.has_been_steered(out, now);
        }
        Ok(has_changed)
    }

    /// Takes back what was said of a target and its parts; of all without one. Returns it. Nothing is published before
    /// `take_update`.
    pub fn reset(&mut self, target: Option<&Target>, now: Timestamp) -> Vec<Overlay> {
        let out = self.in_maintenance();
        let gone = self.overlays.reset(target);
        if !gone.is_empty() {
            self.has_been_steered(out, now);
        }
        gone
    }

    /// Has the log say so much; without a level as the command line and the file say. Returns whether that is other than before.
    /// Nothing is published before `take_update`.
    pub fn set_log_level(&mut self, level: Option<LogLevel>, by: String, now: Timestamp) -> bool {
        let has_changed = self.log_level.as_ref().map(|said| said.level) != level;
        if has_changed {
            self.log_level = level.map(|level| SaidLogLevel { level, since: now, by });
            self.is_stale = true;
        }
        has_changed
    }

    /// What was said of the log.
    pub fn log_level(&self) -> Option<&SaidLogLevel> {
        self.log_level.as_ref()
    }

    /// All that was said of servers.
    pub(crate) fn overlays(&self) -> &Overlays {
        &self.overlays
    }

    /// The same, to change which servers there are. The configuration that follows from it is the caller's affair.
    pub(crate) fn overlays_mut(&mut self) -> &mut Overlays {
        &mut self.overlays
    }

    /// Whether this server may serve, as an operator or its source has said: the stronger word counts.
    pub(super) fn admin_state(&self, server: &ServerKey) -> AdminState {
        let said = self.overlays.state_of(&server.backend, &server.server);
        let drains = self.discovered_draining.contains(server);
        let of_source = if drains { AdminState::Drain } else { AdminState::Ready };
        said.map_or(AdminState::Ready, |(state, _)| state).max(of_source)
    }

    /// Has servers the weights that operators have said.
    pub(super) fn apply_weights(&self, backends: &mut [BackendConfig]) {
        for backend in backends {
            for server in &mut backend.servers {
                if let Some(weight) = self.overlays.weight_of(&backend.name, &server.name) {
                    server.settings.weight = weight;
                }
            }
        }
    }

    fn in_maintenance(&self) -> Vec<ServerKey> {
        self.servers.keys().filter(|server| self.admin_state(server) == AdminState::Maint).cloned().collect()
    }

    /// Servers that come back begin as new ones do: nobody knows what has become of them.
    fn has_been_steered(&mut self, mut out: Vec<ServerKey>, now: Timestamp) {
        out.retain(|server| self.admin_state(server) != AdminState::Maint);
        for server in out {
            if let Some(entry) = self.servers.get_mut(&server) {
                *entry = ServerEntry::new(entry.live.clone(), entry.check.clone(), now);
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
        let servers = self.pools.get(&target.backend).map(|entry| &entry.pool.servers);
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
        let resolved = self.pools.get(&target.backend).into_iter().flat_map(|entry| &entry.pool.servers);
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
