//! Privileges that convey drops at its start: the rights of root, and access to system calls and
//! files that it does not need.
//!
//! convey drops them before it starts its first thread, because each thread inherits the
//! restrictions of the thread that starts it. convey keeps the privileges that it needs later,
//! including those for a reload: ports below 1024 in proxy mode, packet sockets and BPF in packet
//! modes.

mod capability;
mod files;
mod rehearsal;
mod service_unit;
mod syscalls;
mod user;

use std::error::Error;

use log::{info, warn};
use rustix::io::Errno;

pub(super) use self::rehearsal::{Rehearsed, rehearse};

use convey_config::{Config, Privileges};
use convey_control::ConfigFile;
use convey_dataplane::net::ReservedPorts;
use convey_model::Mode;

use self::capability::Needed;
use self::user::User;
use super::state_folder::FileOwner;
use super::{acme, limits, upgrade};

/// User and group that this process will switch to. `None` if it is not root, or if the
/// configuration names no existing user.
pub(super) fn owner(config: &Config) -> Option<FileOwner> {
    let user = User::find(config.privileges.user.as_deref()?).ok()?;
    User::is_root().then(|| user.owner())
}

/// Privileges that were dropped. convey logs them later, once the log is open.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Confined {
    given_up: Vec<String>,
    /// Privileges that this kernel or this user cannot drop, one per line.
    kept: Vec<String>,
    /// Whether Landlock restricts the process to certain folders.
    pub(super) has_landlock: bool,
}

impl Confined {
    /// Drops the privileges that the configuration selects. Must be called while the process has
    /// one thread.
    ///
    /// # Errors
    /// The configured user does not exist, or this process cannot become that user: operator-facing
    /// message.
    pub(super) fn by(file: &ConfigFile, config: &Config) -> Result<Confined, String> {
        if config.frontends_where(Mode::forwards_packets).next().is_some() {
            limits::raise_locked_memory();
            // Landlock rules cannot name a folder that does not exist yet. If this user may not
            // create the folder, convey will not write there either.
            let _ = ReservedPorts::make_directory();
        }
        if let Some(user) = config.privileges.user.as_deref().map(User::find).transpose()?
            && User::is_root()
        {
            user.prepare().map_err(|error| format!("/run/convey: {error}"))?;
        }
        acme::make_folder(config, owner(config))?;
        let confined = Confined::this_thread(file, config)?;
        acme::obstacle(config).map_or(Ok(confined), Err)
    }

    /// Drops the configured privileges of this thread and of the threads that it starts.
    fn this_thread(file: &ConfigFile, config: &Config) -> Result<Confined, String> {
        let mut confined = Confined::default();
        let Privileges { user, drop_capabilities, no_new_privileges, seccomp, landlock } = &config.privileges;
        let needed = Needed::by(config);
        match user {
            Some(name) => confined.note(become_user(name, needed, *drop_capabilities)?),
            None if *drop_capabilities => confined.note(needed.keep()),
            None => {}
        }
        if *no_new_privileges {
            let done = rustix::thread::set_no_new_privs(true);
            confined.note(done.map(|()| "no new privileges".to_owned()).map_err(|error| {
                format!("cannot keep programs that convey starts from gaining privileges: {error}")
            }));
        }
        if *landlock {
            // The kernel allows at most 16 nested rulesets (landlock(7)).
            let done = files::restrict(file, config).or_else(unless_inherited(Errno::TOOBIG));
            confined.has_landlock = done.is_ok();
            confined.note(done.map(|()| "Landlock".to_owned()));
        }
        if *seccomp {
            let packets = config.frontends_where(Mode::forwards_packets).next().is_some();
            // All seccomp filters of a process together have at most 32,768 instructions
            // (seccomp(2)).
            let done = syscalls::restrict(packets).or_else(unless_inherited(Errno::NOMEM));
            confined.note(done.map(|()| "seccomp".to_owned()));
        }
        Ok(confined)
    }

    /// Logs the dropped and the kept privileges.
    pub(super) fn log_privileges(&self) {
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

/// A privilege that convey keeps, with the reason.
#[derive(Debug)]
struct KeptPrivilege {
    /// Operator-facing message.
    why: String,
    /// The kernel's error, if a system call failed.
    errno: Option<Errno>,
}

impl KeptPrivilege {
    fn because(what: &str, error: &(dyn Error + 'static)) -> KeptPrivilege {
        KeptPrivilege { why: format!("{what}: {error}"), errno: errno(error) }
    }
}

/// The error number of the innermost cause of an error.
fn errno(error: &(dyn Error + 'static)) -> Option<Errno> {
    let own = error.downcast_ref().and_then(Errno::from_io_error);
    own.or_else(|| errno(error.source()?))
}

/// Accepts the error `too_many` during an upgrade. A process inherits Landlock rulesets and seccomp
/// filters from the process that it upgrades, so the kernel refuses further ones after many
/// upgrades. Any other error means that the restriction is missing, and is returned as a message.
fn unless_inherited(too_many: Errno) -> impl FnOnce(KeptPrivilege) -> Result<(), String> {
    move |kept| {
        if upgrade::is_under_way() && kept.errno == Some(too_many) { Ok(()) } else { Err(kept.why) }
    }
}

/// Switches to the configured user. Returns a description for the log. The outer error stops the
/// start; the inner error only becomes a warning.
fn become_user(name: &str, needed: Needed, drops: bool) -> Result<Result<String, String>, String> {
    let user = User::find(name)?;
    if user.is_current() {
        return Ok(match drops {
            true => needed.keep().map(|capabilities| format!("user {name} with {capabilities}")),
            false => Ok(format!("user {name}")),
        });
    }
    if !User::is_root() {
        return Ok(Err(format!(
            "convey runs as the user that started it: only root can switch to {name} (privileges.user)"
        )));
    }
    let held = user
        .become_it(needed.by_modes())
        .map_err(|error| format!("cannot switch to the user {name} (privileges.user): {error:#}"))?;
    Ok(Ok(format!("user {name} with {}", capability::names(held))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_errno_is_found_below_the_words() {
        let error = Outer(Errno::TOOBIG.into());
        assert_eq!(errno(&error), Some(Errno::TOOBIG));
        assert_eq!(errno(&Outer(std::io::Error::other("no call"))), None);
    }

    #[test]
    fn an_error_without_an_upgrade_is_never_taken_for_an_inherited_filter() {
        for errno in [Errno::NOMEM, Errno::PERM] {
            let kept = KeptPrivilege::because("all calls", &Outer(errno.into()));
            assert_eq!(unless_inherited(Errno::NOMEM)(kept), Err("all calls: outer".to_owned()));
        }
    }
}
