//! A router that learns the addresses from BIRD.

use std::path::Path;
use std::process::{Command, Stdio};

use convey_testkit::{Loopback, Process, in_namespace};

use super::router::{sends_clients_here_while_a_server_is_up, shipped};

pub(super) fn a_router_sends_clients_here_while_a_server_is_up() {
    in_namespace("announce::a_router_sends_clients_here_while_a_server_is_up", "", || {
        sends_clients_here_while_a_server_is_up(|lab: &Loopback| {
            vec![bird(Command::new("bird"), &shipped("bird"), &lab.directory().join("here"))]
        });
    });
}

/// Starts BIRD with a configuration. The names of its socket and of its pid file begin with
/// `state`.
pub(super) fn bird(mut command: Command, config: &Path, state: &Path) -> Process {
    command.arg("-f").arg("-c").arg(config).arg("-s").arg(state.with_extension("ctl"));
    command.arg("-P").arg(state.with_extension("pid")).stdout(Stdio::null());
    Process::spawn(&mut command)
}
