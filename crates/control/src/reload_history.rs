//! History of reloads: the running configuration, and the outcome of the last reload. Pure.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_64;

use convey_config::{AdminToken, Config, ListSettings};
use convey_model::{Mode, Timestamp};

use super::ConfigFile;

/// Running configuration and outcomes of reloads, for the statistics.
#[derive(Debug, Default)]
pub struct ReloadHistory(Mutex<Loads>);

#[derive(Debug, Default)]
struct Loads {
    load: ConfigLoad,
    /// Token of the running configuration, which admin requests need; `None`: no token is
    /// configured.
    token: Option<AdminToken>,
}

/// State of the history at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigLoad {
    /// Path of the configuration file; empty before a configuration runs.
    pub file: PathBuf,
    /// Default mode of frontends, from the command line.
    pub mode: Option<Mode>,
    /// Settings from the command line for a file that only lists servers.
    pub list: Option<ListSettings>,
    /// Hash of the running configuration, in hexadecimal. Hosts with the same version of convey and
    /// the same configuration have the same hash. Comments, the order of keys and explicit defaults
    /// do not change the hash. Empty before a configuration runs.
    pub hash: String,
    /// Time at which a configuration was last applied, at the start or by a reload.
    pub succeeded_at: Timestamp,
    /// Time at which the file was last read.
    pub tried_at: Timestamp,
    /// Reasons why the last reload was refused, one line each; empty if it succeeded.
    pub errors: Vec<String>,
    /// Number of successful reloads.
    pub successes: u64,
    /// Number of refused reloads.
    pub failures: u64,
    /// Certificate chains that the last reload refused. The previous certificates stay in use.
    pub refused_certificates: Vec<PathBuf>,
}

/// Maximum number of error lines that are kept after a refused reload.
const MAX_ERRORS: usize = 10;

/// Maximum number of refused certificates that are listed.
const MAX_REFUSED: usize = 100;

impl ReloadHistory {
    /// State of the history now.
    pub fn now(&self) -> ConfigLoad {
        self.lock().load.clone()
    }

    /// Token that admin requests need if they change something; `None`: no token is configured.
    pub fn token(&self) -> Option<AdminToken> {
        self.lock().token.clone()
    }

    /// Records the configuration with which convey starts.
    pub fn start(&self, file: &ConfigFile, config: &Config, now: Timestamp) {
        let load = ConfigLoad {
            file: file.absolute(),
            mode: file.mode,
            list: file.list,
            hash: hash(config),
            succeeded_at: now,
            tried_at: now,
            ..ConfigLoad::default()
        };
        *self.lock() = Loads { load, token: config.stats.token.clone() };
    }

    /// Records a successful reload: the configuration was applied, or had not changed.
    pub fn succeed(&self, config: &Config, now: Timestamp) {
        let Loads { load, token } = &mut *self.lock();
        *token = config.stats.token.clone();
        load.hash = hash(config);
        (load.succeeded_at, load.tried_at) = (now, now);
        load.errors.clear();
        load.successes += 1;
    }

    /// Records the certificates that the last reload refused.
    pub fn refuse_certificates(&self, chains: &[PathBuf]) {
        self.lock().load.refused_certificates = chains.iter().take(MAX_REFUSED).cloned().collect();
    }

    /// Records a refused reload.
    pub fn fail(&self, errors: &[String], now: Timestamp) {
        let Loads { load, .. } = &mut *self.lock();
        load.tried_at = now;
        load.errors = errors.iter().take(MAX_ERRORS).cloned().collect();
        load.failures += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Loads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hash of a configuration. It is stable, because `Debug` prints every field in a fixed order.
fn hash(config: &Config) -> String {
    format!("{:016x}", xxh3_64(format!("{config:?}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let servers = "backends.web.servers.a.addr = '10.0.0.2:80'\n";
        let frontend = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n";
        convey_config::parse("test.toml", &format!("{frontend}{servers}{text}")).unwrap().config
    }

    #[test]
    fn the_hash_is_of_what_runs_and_not_of_the_text() {
        assert_eq!(hash(&config("")), hash(&config("# a comment\n[timeouts]\nconnect = '5s'")));
        assert_ne!(hash(&config("")), hash(&config("[timeouts]\nconnect = 6")));
    }

    #[test]
    fn refused_reload_keeps_the_hash_and_its_errors_until_a_success() {
        let loads = ReloadHistory::default();
        loads.start(&ConfigFile::new("c.toml".into()), &config(""), Timestamp(1));
        let first = loads.now();
        assert_eq!((first.hash.len(), first.successes, first.failures), (16, 0, 0));
        let errors: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        loads.fail(&errors, Timestamp(2));
        let failed = loads.now();
        assert_eq!((failed.errors.len(), &failed.hash, failed.failures), (MAX_ERRORS, &first.hash, 1));
        assert_eq!((failed.succeeded_at, failed.tried_at), (Timestamp(1), Timestamp(2)));
        loads.succeed(&config("[timeouts]\nconnect = 6"), Timestamp(3));
        let second = loads.now();
        assert!(second.errors.is_empty() && second.hash != first.hash);
        assert_eq!((second.succeeded_at, second.tried_at, second.successes), (Timestamp(3), Timestamp(3), 1));
    }
}
