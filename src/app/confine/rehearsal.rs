//! Dry run of dropping privileges. It runs in a thread of its own, because Linux keeps privileges
//! per thread.

use std::thread;

use convey_config::Config;
use convey_control::ConfigFile;
use convey_model::Mode;
use rustix::thread::CapabilitySet;

use super::Confined;
use super::service_unit::ServiceUnit;
use super::user::User;
use crate::app::announce::PRIVILEGE;
use crate::app::{acme, logs, privileges};

/// Result of `convey check` for privileges.
#[derive(Debug, Default)]
pub(in crate::app) struct Rehearsed {
    /// Problems that prevent convey from starting, one per line.
    pub(in crate::app) obstacles: Vec<String>,
    /// Privileges that this kernel or this user cannot drop, one per line.
    pub(in crate::app) warnings: Vec<String>,
}

/// Drops the privileges in a temporary thread, and tries the reads and writes that convey does
/// later. If root runs the check, the thread uses the user and the capabilities of the systemd unit
/// that runs the file.
pub(in crate::app) fn rehearse(file: &ConfigFile, config: &Config) -> Rehearsed {
    let unit = User::is_root().then(|| ServiceUnit::of(&file.absolute())).flatten();
    let tried = thread::scope(|scope| {
        let actor = thread::Builder::new().name("check".to_owned());
        match actor.spawn_scoped(scope, || act(file, config, unit.as_ref())) {
            Ok(actor) => actor
                .join()
                .unwrap_or_else(|_| Err("the thread that checks files and privileges has failed".to_owned())),
            Err(error) => Err(format!("cannot start the thread that checks files and privileges: {error}")),
        }
    });
    match tried {
        Ok(rehearsed) => rehearsed,
        Err(why) => Rehearsed { obstacles: vec![why], warnings: Vec::new() },
    }
}

fn act(file: &ConfigFile, config: &Config, unit: Option<&ServiceUnit>) -> Result<Rehearsed, String> {
    let mut of_unit = unit.map(|unit| act_as(unit, config)).transpose()?.unwrap_or_default();
    let confined = Confined::this_thread(file, config)?;
    let mut obstacles = logs::obstacles(config);
    obstacles.extend(acme::obstacle(config));
    // At a start, every certificate must be usable; a reload may keep the previous one.
    let file = file.unloaded();
    if let Err(error) = file.load() {
        let problems = super::super::Failure::Config(error);
        let user = match (unit, &config.privileges.user) {
            (Some(unit), _) => format!(" as {}", unit.described()),
            (None, Some(user)) => format!(" as user {user}"),
            (None, None) => String::new(),
        };
        obstacles.push(format!("convey cannot read its configuration{user}: {problems}"));
    }
    let named: Vec<_> = file.lists.paths().into_iter().chain([file.absolute()]).collect();
    obstacles.extend(unit.iter().flat_map(|unit| unit.hidden(&named)));
    of_unit.obstacles.extend(obstacles);
    of_unit.warnings.extend(confined.kept);
    Ok(of_unit)
}

/// Makes this thread the user of the unit, with its capabilities. Returns problems and warnings for
/// capabilities that the configuration needs and the unit lacks.
fn act_as(unit: &ServiceUnit, config: &Config) -> Result<Rehearsed, String> {
    let user = User::find(&unit.user)?;
    user.become_it(unit.held).map_err(|error| format!("cannot switch to {}: {error:#}", unit.described()))?;
    convey_config::lower_rights().map_err(|error| error.to_string())?;
    let of_unit = |what: String| format!("as {}: {what}", unit.described());
    let packets = config.frontends_where(Mode::forwards_packets).next().is_some();
    let obstacle = packets.then(privileges::check).and_then(Result::err);
    let announces_none = config.announce.is_some() && !unit.held.contains(CapabilitySet::NET_ADMIN);
    let warning = announces_none.then(|| of_unit(format!("convey cannot announce addresses{PRIVILEGE}")));
    Ok(Rehearsed {
        obstacles: obstacle.into_iter().map(|why| of_unit(why.to_string())).collect(),
        warnings: warning.into_iter().collect(),
    })
}
