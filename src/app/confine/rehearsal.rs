//! What a start would give up, tried in a thread that ends: Linux keeps all of it by thread.

use std::thread;

use super::Confined;
use crate::app::{acme, logs};
use crate::config::Config;
use crate::control::ConfigFile;

/// What `convey check` says of privileges.
#[derive(Debug, Default)]
pub(in crate::app) struct Rehearsed {
    /// Problems that keep convey from starting, a line each.
    pub(in crate::app) obstacles: Vec<String>,
    /// Rights that this kernel or this user cannot give up, a line each.
    pub(in crate::app) warnings: Vec<String>,
}

/// Gives up in a thread what a start would, and reads and writes there what convey reads and writes later.
pub(in crate::app) fn rehearse(file: &ConfigFile, config: &Config) -> Rehearsed {
    let tried = thread::scope(|scope| {
        let actor = thread::Builder::new().name("check".to_owned());
        match actor.spawn_scoped(scope, || act(file, config)) {
            Ok(actor) => actor.join().unwrap_or_else(|_| Err("trying it out has failed".to_owned())),
            Err(error) => Err(format!("no thread to try it out: {error}")),
        }
    });
    match tried {
        Ok(rehearsed) => rehearsed,
        Err(why) => Rehearsed { obstacles: vec![why], warnings: Vec::new() },
    }
}

fn act(file: &ConfigFile, config: &Config) -> Result<Rehearsed, String> {
    let confined = Confined::this_thread(file, config)?;
    let mut obstacles = logs::obstacles(config);
    obstacles.extend(acme::obstacle(config));
    if let Err(error) = file.load() {
        let problems = super::super::Failure::Config(error);
        let user = config.privileges.user.as_deref();
        let user = user.map_or(String::new(), |user| format!(" as user {user}"));
        obstacles.push(format!("convey could not read its configuration{user}: {problems}"));
    }
    Ok(Rehearsed { obstacles, warnings: confined.kept })
}
