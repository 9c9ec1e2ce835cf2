//! Decides which changes of a file a reload applies, and which need a restart. The decision depends
//! only on the old and the new file. Pure. `app::restart` decides about settings that depend on the
//! host at the start, such as SNAT addresses.

use std::collections::HashMap;

use super::diff::differences;
use super::tables::ParsedFrontend;
use super::tables::passthrough::PassthroughKeys;
use super::tables::privileges::PrivilegeKeys;
use super::tables::stats;
use super::{Config, Loaded};
use convey_model::{FrontendConfig, Mode};

/// Effects of a reload, as text for the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// Changes that take effect immediately: one line for each changed frontend and backend, and
    /// one for each changed table of timeouts.
    pub changes: Vec<String>,
    /// Changes that need a restart, one line each.
    pub needs_restart: Vec<String>,
}

impl Loaded {
    /// Configuration from the file without the changes that a process that runs `running` cannot
    /// apply, and the differences to `running`. These changes need a restart: the mode of a
    /// frontend (except between `proxy` and `http`), privileges, the statistics address, `workers`, and
    /// settings of packet modes other than flow timeouts.
    pub fn reload(self, running: &Config) -> (Loaded, Diff) {
        let wanted = self.config.clone();
        let mut modes: HashMap<&str, Mode> =
            wanted.frontends.iter().map(|frontend| (frontend.name.as_str(), frontend.mode)).collect();
        for FrontendConfig { name, mode: before, .. } in &running.frontends {
            if let Some(mode) = modes.get_mut(name.as_str()).filter(|mode| needs_restart(*before, **mode)) {
                *mode = *before;
            }
        }
        // Defaults of backends depend on the running modes.
        let mode_of = |frontend: &ParsedFrontend| modes.get(&*frontend.name).copied().unwrap_or_default();
        let config = self.source.file.config(mode_of);
        let passthrough = PassthroughKeys::reloaded(config.passthrough, &running.passthrough);
        let privileges = PrivilegeKeys::reloaded(config.privileges, &running.privileges);
        let stats = stats::reloaded(config.stats, &running.stats);
        let applied = Config { privileges, stats, passthrough, workers: running.workers, ..config };
        let restarted = Config {
            frontends: wanted.frontends,
            privileges: wanted.privileges,
            stats: wanted.stats,
            passthrough: wanted.passthrough,
            workers: wanted.workers,
            ..applied.clone()
        };
        let changes = differences(running, &applied);
        let needs_restart = differences(&applied, &restarted);
        (Loaded { config: applied, ..self }, Diff { changes, needs_restart })
    }

    /// Reload in a process that drains `running`. Of the frontends in the file, the result has only
    /// those that are running, with their running listen addresses, so that the process opens no
    /// listener.
    pub fn reload_draining(self, running: &Config) -> (Loaded, Diff) {
        let (mut loaded, _) = self.reload(running);
        let frontends = std::mem::take(&mut loaded.config.frontends);
        let kept = frontends.into_iter().filter_map(|frontend| {
            let id = |one: &FrontendConfig| (one.name.clone(), one.mode, one.protocol);
            let before = running.frontends.iter().find(|before| id(before) == id(&frontend))?;
            Some(FrontendConfig { listen: before.listen.clone(), ..frontend })
        });
        loaded.config.frontends = kept.collect();
        let changes = differences(running, &loaded.config);
        (loaded, Diff { changes, needs_restart: Vec::new() })
    }
}

/// Whether a change of a frontend's mode needs a restart. A change between proxied modes does not,
/// because they use the same sockets.
fn needs_restart(before: Mode, after: Mode) -> bool {
    !(before.is_proxied() && after.is_proxied())
}

#[cfg(test)]
mod tests {
    use crate::parse;
    use convey_model::Listen;

    #[test]
    fn draining_process_keeps_its_frontends_and_their_addresses() {
        let text = |frontends: &[(&str, &str, &str)]| {
            let frontends = frontends.iter().map(|(name, addr, more)| {
                format!("[frontends.{name}]\nlisten_addr = '{addr}'\nbackend = 'a'\n{more}\n")
            });
            frontends.collect::<String>() + "[backends.a.servers.x]\naddr = '10.0.1.1:80'\n"
        };
        let before =
            text(&[("gone", "10.0.0.1:79", ""), ("web", "10.0.0.1:80", ""), ("dns", "10.0.0.1:53", "")]);
        let after = text(&[
            ("dns", "10.0.0.1:53", "protocol = 'udp'"),
            ("new", "10.0.0.1:79", ""),
            ("web", "10.0.0.1:81", "access.deny = '10.9.0.0/16'"),
        ]);
        let running = parse("config.toml", &before).unwrap().config;
        let (loaded, diff) = parse("config.toml", &after).unwrap().reload_draining(&running);
        let [web] = &loaded.config.frontends[..] else { panic!("{:?}", loaded.config.frontends) };
        let places: Vec<_> = web.listen.iter().map(Listen::ports).collect();
        assert_eq!((&*web.name, places), ("web", vec![80..=80]));
        assert!(!web.access.is_open());
        let changes = [
            "frontend dns: removed",
            "frontend gone: removed",
            "frontend web: access networks: 1 added and 0 removed",
        ];
        assert_eq!((diff.changes, diff.needs_restart), (changes.map(str::to_owned).to_vec(), vec![]));
    }
}
