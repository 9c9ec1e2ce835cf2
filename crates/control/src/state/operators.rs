//! Changes that operators make to servers, to routes and to the log level at run time. Pure.

use crate::http_overlays::HttpOverlays;
use crate::overlays::Overlays;
use convey_model::{
    AdminState, BackendConfig, HttpOverlay, LogLevel, Overlay, SaidLogLevel, ServerKey, Timestamp,
};

/// Changes of operators, which take precedence over the file.
#[derive(Default)]
pub(super) struct OperatorChanges {
    overlays: Overlays,
    http: HttpOverlays,
    log_level: Option<SaidLogLevel>,
}

impl OperatorChanges {
    pub(super) fn overlays(&self) -> &Overlays {
        &self.overlays
    }

    pub(super) fn overlays_mut(&mut self) -> &mut Overlays {
        &mut self.overlays
    }

    pub(super) fn http(&self) -> &HttpOverlays {
        &self.http
    }

    pub(super) fn http_mut(&mut self) -> &mut HttpOverlays {
        &mut self.http
    }

    pub(super) fn log_level(&self) -> Option<&SaidLogLevel> {
        self.log_level.as_ref()
    }

    /// Sets the log level; `None`: the level of the command line and the file applies again.
    /// Returns whether the level changed.
    pub(super) fn set_log_level(&mut self, level: Option<LogLevel>, by: String, now: Timestamp) -> bool {
        let has_changed = self.log_level.as_ref().map(|set| set.level) != level;
        if has_changed {
            self.log_level = level.map(|level| SaidLogLevel { level, since: now, by });
        }
        has_changed
    }

    /// State that operators have set for a server, with the overlay; `None`: no operator set a
    /// state.
    pub(super) fn state_of(&self, server: &ServerKey) -> Option<(AdminState, &Overlay)> {
        self.overlays.state_of(&server.backend, &server.server)
    }

    /// Applies the weights that operators have set to servers, and maintenance of backends.
    pub(super) fn apply(&self, backends: &mut [BackendConfig]) {
        self.http.apply_to_backends(backends);
        for backend in backends {
            for server in &mut backend.servers {
                if let Some(weight) = self.overlays.weight_of(&backend.name, &server.name) {
                    server.settings.weight = weight;
                }
            }
        }
    }

    /// All changes, for the next process.
    pub(super) fn known(&self) -> (Vec<Overlay>, Vec<HttpOverlay>, Option<SaidLogLevel>) {
        let http = self.http.all().cloned().collect();
        (self.overlays.all().cloned().collect(), http, self.log_level.clone())
    }

    /// Starts with the changes of the previous process.
    pub(super) fn expect(
        &mut self,
        overlays: Vec<Overlay>,
        http: Vec<HttpOverlay>,
        log_level: Option<SaidLogLevel>,
    ) {
        self.overlays.expect(overlays);
        self.http.expect(http);
        self.log_level = log_level;
    }
}
