//! What a reload applies of a file, and what waits for a restart. The one place that decides it. Pure.

use std::collections::HashMap;

use super::diff::differences;
use super::file::Frontend;
use super::{Config, Loaded};
use convey_model::{Mode, PacketSettings};

/// What a reload does, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// What takes effect at once: one line for each frontend and backend that changed, one for each table of
    /// timeouts.
    pub changes: Vec<String>,
    /// What waits for a restart, one line each.
    pub needs_restart: Vec<String>,
}

impl Loaded {
    /// The file as far as a process that runs `running` can apply it, and what that changes. These need a restart: the
    /// mode of a frontend, the privileges, where statistics are served, and the settings of packet modes but for timeouts of flows.
    pub fn reload(self, running: &Config) -> (Loaded, Diff) {
        let wanted = self.config.clone();
        let kept = wanted.frontends.iter().chain(&running.frontends);
        let modes: HashMap<&str, Mode> =
            kept.map(|frontend| (frontend.name.as_str(), frontend.mode)).collect();
        // Defaults of backends go by the modes that run.
        let mode_of = |frontend: &Frontend| modes.get(&*frontend.name).copied().unwrap_or_default();
        let config = self.source.file.config(mode_of);
        let timeouts = config.passthrough.timeouts;
        let passthrough = PacketSettings { timeouts, ..running.passthrough.clone() };
        let privileges = running.privileges.clone();
        let applied = Config { privileges, stats: running.stats, passthrough, ..config };
        let restarted = Config {
            frontends: wanted.frontends,
            privileges: wanted.privileges,
            stats: wanted.stats,
            passthrough: wanted.passthrough,
            ..applied.clone()
        };
        let changes = differences(running, &applied);
        let needs_restart = differences(&applied, &restarted);
        (Loaded { config: applied, ..self }, Diff { changes, needs_restart })
    }
}
