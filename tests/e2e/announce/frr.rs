//! A router that learns the addresses from FRR.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use convey_testkit::{Loopback, Need, Process, in_namespace, run, wait_for};

use super::router::{sends_clients_here_while_a_server_is_up, shipped};

/// Folder of FRR's daemons, which is not in `PATH`.
const DAEMONS: &str = "/usr/lib/frr";

pub(super) const FRR: Need = Need::Other(|| {
    let is_there = Path::new(DAEMONS).join("bgpd").is_file() && convey_testkit::tool("vtysh").is_some();
    (!is_there).then(|| "FRR is not installed (Debian package frr)".to_owned())
});

pub(super) fn a_router_hears_of_addresses_from_frr() {
    in_namespace("announce::a_router_hears_of_addresses_from_frr", "", || {
        sends_clients_here_while_a_server_is_up(frr);
    });
}

/// Starts the daemons of the shipped file, and lets `vtysh` load it as at the start of a host.
fn frr(lab: &Loopback) -> Vec<Process> {
    let state = lab.directory().join("frr");
    fs::create_dir(&state).unwrap();
    // The daemons drop root for this user.
    let ran = run(Command::new("chown").arg("frr:frr").arg(&state));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let zebra = state.join("zserv.api");
    let daemons: Vec<Process> = ["zebra", "bfdd", "bgpd"]
        .into_iter()
        .map(|name| {
            let mut command = Command::new(Path::new(DAEMONS).join(name));
            command.args(["-u", "frr", "-g", "frr", "-f", "/dev/null", "-A", "127.0.0.1"]);
            command.arg("-z").arg(&zebra).arg("-i").arg(state.join(name).with_extension("pid"));
            command.arg("--vty_socket").arg(&state).stdout(Stdio::null());
            if name == "bfdd" {
                command.arg("--bfdctl").arg(state.join("bfdd.sock"));
            }
            let daemon = Process::spawn(&mut command);
            let socket = state.join(name).with_extension("vty");
            // A daemon that finds no zebra retries only after ten seconds.
            wait_for(&format!("{name} to listen"), || (socket.exists() && zebra.exists()).then_some(()));
            daemon
        })
        .collect();
    let mut vtysh = Command::new("vtysh");
    let read = run(vtysh.arg("--vty_socket").arg(&state).arg("-f").arg(shipped("frr")));
    assert!(read.code == Some(0) && !read.stdout.contains('%'), "{read:?}");
    daemons
}
