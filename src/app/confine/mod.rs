//! What convey gives up at its start, for as long as it runs: the rights of root, and what the kernel need not let it do.
//!
//! All of it happens before the first thread starts, since each thread inherits it from the one that starts it. What needs a
//! privilege later, in a reload too, is kept: ports below 1024 in proxy mode, packet sockets and BPF in packet modes.

mod files;
mod syscalls;
mod user;

use log::{info, warn};

use self::user::User;
use super::upgrade;
use crate::config::{Config, Privileges};
use crate::control::File;
use crate::model::Mode;

/// What was given up, to be told once there is a log.
#[derive(Debug, Default)]
#[must_use]
pub struct Confined {
    /// What the file said then; `None` if nothing was to be given up, or the file could not be read.
    by: Option<Privileges>,
    given_up: Vec<String>,
    /// What this kernel or this user cannot give up, a line each.
    kept: Vec<String>,
    /// Whether it may read and write certain folders alone.
    pub(super) has_landlock: bool,
}

impl Confined {
    /// Gives up what the file says. To be called while the process has one thread. A file that cannot be read is left to the
    /// start, which says why.
    ///
    /// # Errors
    /// The user that the file names does not exist, or root cannot become that user: words for an operator.
    pub(super) fn by(file: &File) -> Result<Confined, String> {
        let mut confined = Confined::default();
        let Ok(loaded) = file.load() else { return Ok(confined) };
        let config = loaded.config;
        confined.by = Some(config.privileges.clone());
        let Privileges { user, no_new_privileges, seccomp, landlock } = &config.privileges;
        if let Some(name) = user {
            confined.note(become_user(name, &config)?);
        }
        if *no_new_privileges {
            let done = rustix::thread::set_no_new_privs(true);
            confined.note(
                done.map(|()| "no new privileges".to_owned())
                    .map_err(|error| format!("programs that convey starts may gain privileges: {error}")),
            );
        }
        if *landlock {
            let done = files::restrict(file, &config).or_else(unless_inherited);
            confined.has_landlock = done.is_ok();
            confined.note(done.map(|()| "Landlock".to_owned()));
        }
        if *seccomp {
            let packets = config.frontends_where(Mode::forwards_packets).next().is_some();
            let done = syscalls::restrict(packets).or_else(unless_inherited);
            confined.note(done.map(|()| "seccomp".to_owned()));
        }
        Ok(confined)
    }

    /// Fails if this is not what the file says now: it may have been half written, or have changed meanwhile.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        if self.by.as_ref() == Some(&config.privileges) {
            return Ok(());
        }
        Err("the configuration has changed while convey was starting, and privileges with it: start it again"
            .to_owned())
    }

    /// Tells of it.
    pub(super) fn tell(&self) {
        self.kept.iter().for_each(|line| warn!("{line}"));
        if !self.given_up.is_empty() {
            info!("privileges: {}", self.given_up.join(", "));
        }
    }

    fn note(&mut self, done: Result<String, String>) {
        match done {
            Ok(what) => self.given_up.push(what),
            Err(why) => self.kept.push(why),
        }
    }
}

/// A process inherits both from the one that it upgrades. After many upgrades the kernel takes no more of them (16 of Landlock).
fn unless_inherited(why: String) -> Result<(), String> {
    if upgrade::is_under_way() { Ok(()) } else { Err(why) }
}

/// Becomes the user that the file names. The inner error is none of the start's business.
fn become_user(name: &str, config: &Config) -> Result<Result<String, String>, String> {
    let user = User::find(name)?;
    if user.is_current() {
        return Ok(Ok(format!("user {name}")));
    }
    if !User::is_root() {
        return Ok(Err(format!(
            "convey stays the user that has started it: only root can become {name} (privileges.user)"
        )));
    }
    let needed = user::needed(config);
    let held = user
        .become_it(needed)
        .map_err(|error| format!("cannot become the user {name} (privileges.user): {error:#}"))?;
    let capabilities = user::names(held);
    Ok(Ok(format!("user {name} with {capabilities}")))
}
