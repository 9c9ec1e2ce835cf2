//! Configurations made by hand, for tests of crates that are given one.

use crate::{Config, Stats};
use convey_model::{BackendConfig, FrontendConfig, PacketSettings, fixture};

/// A configuration with these frontends and backends, both sorted by name. Its statistics are served at 127.0.0.1:7000.
pub fn config(frontends: Vec<FrontendConfig>, backends: Vec<BackendConfig>) -> Config {
    Config {
        frontends,
        backends,
        log: Default::default(),
        access_log: Default::default(),
        privileges: Default::default(),
        acme: None,
        announce: None,
        stats: Stats { listen: ([127, 0, 0, 1], 7000).into(), token: None },
        timeouts: fixture::timeouts(),
        passthrough: PacketSettings::default(),
        name_servers: vec![],
        allow_local: false,
    }
}
