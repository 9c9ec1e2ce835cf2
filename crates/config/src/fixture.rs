//! Hand-made configurations for tests of other crates.

use crate::{Config, Stats};
use convey_model::{BackendConfig, FrontendConfig, PacketSettings, fixture};

/// Configuration with these frontends and backends, both sorted by name. Statistics are at
/// 127.0.0.1:7000.
pub fn config(frontends: Vec<FrontendConfig>, backends: Vec<BackendConfig>) -> Config {
    Config {
        frontends,
        backends,
        workers: None,
        log: Default::default(),
        access_log: Default::default(),
        privileges: Default::default(),
        acme: None,
        announce: None,
        stats: Stats { listen: ([127, 0, 0, 1], 7000).into(), token: None },
        timeouts: fixture::timeouts(),
        passthrough: PacketSettings::default(),
        dns: crate::DnsConfig::default(),
    }
}
