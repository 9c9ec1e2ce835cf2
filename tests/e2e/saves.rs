//! Saves of the configuration and of the files that it names, however slowly they are written.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, binary, fetch, run, tests, wait_for,
};

tests!("saves":
    file_written_in_pieces_is_read_when_whole,
    confined_process_watches_files_that_a_reload_names [Need::Kernel(5, 13, "Landlock"), Need::Other(not_root)],
    files_are_polled_where_inotify_is_used_up [UNSHARE, Need::Other(not_root)],
    file_mounted_by_itself_is_read_when_its_writer_closes_it [UNSHARE, Need::Other(not_root)],
    file_of_a_lower_layer_is_polled [UNSHARE, Need::Other(not_root)],
);

const UNSHARE: Need = Need::Tool("unshare", "util-linux");

/// The user `nobody`.
const NOBODY: u32 = 65_534;

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

/// Writes a file in place, with a pause in which polling would read the half before `middle`.
fn save_in_pieces(path: &Path, text: &str, middle: &str) {
    let half = text.find(middle).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(&text.as_bytes()[..half]).unwrap();
    thread::sleep(Duration::from_millis(1_200));
    file.write_all(&text.as_bytes()[half..]).unwrap();
}

/// Whether inotify watches a folder for the process.
fn is_watched(balancer: &BalancerProcess, folder: &Path) -> bool {
    let inode = format!(" ino:{:x} ", fs::metadata(folder).unwrap().ino());
    let entries = fs::read_dir(balancer.proc("fdinfo")).unwrap().flatten();
    let mut infos = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    infos.any(|info| info.lines().any(|line| line.starts_with("inotify ") && line.contains(&inode)))
}

fn file_written_in_pieces_is_read_when_whole() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let second = format!("[frontends.second]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n", lab.second_vip());
    let with = |weight: u64| {
        Setup::new(&lab).server("a", lab.server(1), &format!("weight = {weight}")).and(&second).to_string()
    };
    let balancer = BalancerProcess::start(&lab, &with(1));
    let saved = |weight: u64| {
        save_in_pieces(&balancer.config(), &with(weight), "[frontends.second]");
        balancer.wait_for_stat("/backends/pool/servers/a/weight", weight);
        assert_eq!(fetch(lab.second_vip(), "/").unwrap(), (200, "a".to_owned()));
        assert!(!balancer.log().contains("reload: frontend second"), "half of the file was read");
    };
    saved(2);
    saved(3);
    let ran = run(balancer.command().arg("upgrade"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    saved(4);
}

fn confined_process_watches_files_that_a_reload_names() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let confined = "[privileges]\nuser = \"nobody\"\nlandlock = true\nseccomp = true\n";
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(confined);
    let lists = lab.directory().join("lists");
    fs::create_dir(&lists).unwrap();
    chown(lab.directory(), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log("Landlock, seccomp");
    wait_for("the folder of the file to be watched", || is_watched(&balancer, lab.directory()).then_some(()));
    assert!(!is_watched(&balancer, &lists));

    let list = lists.join("denied");
    fs::write(&list, "192.0.2.0/24\n").unwrap();
    balancer.save(&setup.and("[frontends.web.access]\ndeny = \"@lists/denied\"\n"));
    wait_for("the folder of the list to be watched", || is_watched(&balancer, &lists).then_some(()));
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    save_in_pieces(&list, "192.0.2.0/24\n127.0.0.0/8\n", "127");
    wait_for("clients to be denied", || fetch(lab.vip(), "/").is_err().then_some(()));
    fs::write(lists.join("new"), "192.0.2.0/24\n").unwrap();
    fs::rename(lists.join("new"), &list).unwrap();
    wait_for("clients to be served", || (fetch(lab.vip(), "/").ok()?.1 == "a").then_some(()));
    assert!(!balancer.log().contains("cannot watch"));
}

fn files_are_polled_where_inotify_is_used_up() {
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let lab = Loopback::new();
        let _a = TcpServer::named("a", lab.server(1));
        let with = |weight: u64| Setup::new(&lab).server("a", lab.server(1), &format!("weight = {weight}"));
        let mut command = Command::new("unshare");
        let script = format!("echo 0 >/proc/sys/user/{limit} && exec \"$0\" \"$@\"");
        command.args(["--user", "--map-root-user", "sh", "-c", &script]).arg(binary().get_program());
        let balancer = BalancerProcess::start_with(&lab, &with(1), command);
        balancer.wait_for_log("inotify cannot watch some files (");
        for weight in 2..5 {
            balancer.save_in_place(&with(weight));
            balancer.wait_for_stat("/backends/pool/servers/a/weight", weight);
        }
    }
}

/// convey in a mount namespace of its own, after a mount.
fn after_mount(mount: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &script]).arg(binary().get_program());
    command
}

fn file_mounted_by_itself_is_read_when_its_writer_closes_it() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let second = format!("[frontends.second]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n", lab.second_vip());
    let with = |weight: u64| {
        Setup::new(&lab).server("a", lab.server(1), &format!("weight = {weight}")).and(&second).to_string()
    };
    let outside = lab.directory().join("outside");
    fs::create_dir(&outside).unwrap();
    let file = outside.join("config.toml");
    fs::write(&file, with(1)).unwrap();
    let mount = "mount --bind outside/config.toml config.toml";
    let balancer = BalancerProcess::start_with(&lab, &with(1), after_mount(mount));
    wait_for("the file to be watched", || is_watched(&balancer, &file).then_some(()));
    for weight in 2..4 {
        save_in_pieces(&file, &with(weight), "[frontends.second]");
        balancer.wait_for_stat("/backends/pool/servers/a/weight", weight);
        assert!(!balancer.log().contains("reload: frontend second"), "half of the file was read");
    }
}

fn file_of_a_lower_layer_is_polled() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let with =
        |weight: u64| Setup::new(&lab).server("a", lab.server(1), &format!("weight = {weight}")).to_string();
    for folder in ["lower", "merged"] {
        fs::create_dir(lab.directory().join(folder)).unwrap();
    }
    // An overlay of two lower layers is a read-only file system.
    let mount = "mkdir empty && mount -t overlay overlay -o lowerdir=lower:empty merged";
    fs::write(lab.directory().join("lower/convey.toml"), with(1)).unwrap();
    let mut command = after_mount(mount);
    command.args(["--config", "merged/convey.toml"]);
    let balancer = BalancerProcess::start_with(&lab, &with(1), command);
    for weight in 2..4 {
        fs::write(lab.directory().join("lower/convey.toml"), with(weight)).unwrap();
        balancer.wait_for_stat("/backends/pool/servers/a/weight", weight);
    }
}
