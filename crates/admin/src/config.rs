//! Report on the configuration and its reloads, for `/stats`. Pure.

use std::time::{Duration, SystemTime};

use convey_api::{ConfigReport, ListReport};
use convey_config::ListSettings;
use convey_control::ConfigLoad;

/// Report of a configuration load. `started` is the wall-clock time of `Timestamp(0)`.
pub(super) fn config_report(load: ConfigLoad, started: SystemTime) -> ConfigReport {
    let ConfigLoad {
        file,
        mode,
        list,
        hash,
        succeeded_at,
        tried_at,
        errors,
        successes,
        failures,
        refused_certificates,
    } = load;
    ConfigReport {
        file: file.display().to_string(),
        default_mode: mode.map(|mode| mode.name().into()),
        list: list.map(|ListSettings { listen, stats }| ListReport { listen, stats }),
        hash,
        loaded: (started + Duration::from_nanos(succeeded_at.0)).into(),
        last_reload_successful: errors.is_empty(),
        last_reload: (started + Duration::from_nanos(tried_at.0)).into(),
        errors,
        reloads: successes,
        reload_failures: failures,
        refused_certificates: refused_certificates.iter().map(|path| path.display().to_string()).collect(),
    }
}
