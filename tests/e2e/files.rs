//! The configuration file is replaced by something else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use convey_testkit::{BalancerProcess, Loopback, Ran, Setup, TcpServer, binary, fetch, run, tests, wait_for};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

tests!("files":
    a_configuration_that_becomes_a_fifo_or_a_device_stalls_nothing,
    a_list_that_becomes_a_fifo_stalls_nothing,
    check_and_start_refuse_special_files_and_too_long_ones,
    a_directory_that_is_swapped_by_its_link_makes_no_noise,
);

fn a_configuration_that_becomes_a_fifo_or_a_device_stalls_nothing() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let setup = |n| Setup::new(&lab).server("a", lab.server(n), "").to_string();
    let mut balancer = BalancerProcess::start(&lab, &setup(1));
    let memory = balancer.memory();
    for (kind, swap) in
        [("FIFO", &fifo as &dyn Fn(&Path)), ("device", &|path| symlink("/dev/zero", path).unwrap())]
    {
        let new = lab.directory().join("new");
        swap(&new);
        fs::rename(&new, balancer.config()).unwrap();
        balancer.signal(Signal::HUP);
        let line = balancer.wait_for_log(&format!("it is a {kind}, not a regular file"));
        assert!(line.contains("cannot read config.toml"), "{line}");
        balancer.wait_for_log("config.toml not reloaded: the running configuration stays");
        assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
        assert_eq!(balancer.page("/healthz").0, 200);
    }
    assert!(balancer.memory() < memory + (64 << 20), "{} bytes", balancer.memory());
    balancer.save(&setup(2));
    balancer.wait_for_log("reload: ");
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "b");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
}

fn a_list_that_becomes_a_fifo_stalls_nothing() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let mut balancer = BalancerProcess::start_with_list(&lab, &lab.server(1).to_string());
    let new = lab.directory().join("new");
    fifo(&new);
    fs::rename(&new, balancer.config()).unwrap();
    balancer.wait_for_log("cannot read hosts.txt: it is a FIFO, not a regular file");
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
}

fn check_and_start_refuse_special_files_and_too_long_ones() {
    let lab = Loopback::new();
    let path = lab.directory().join("odd");
    let refused = |why: &str| {
        for ran in [convey(&path, &["check"]), convey(&path, &[])] {
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
            assert!(ran.stderr.contains(&format!("cannot read {}: it is {why}", path.display())), "{ran:?}");
        }
        fs::remove_file(&path).unwrap();
    };
    fifo(&path);
    refused("a FIFO, not a regular file");
    symlink("/dev/zero", &path).unwrap();
    refused("a device, not a regular file");
    fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    refused("longer than 16 MiB, the maximum");
}

fn a_directory_that_is_swapped_by_its_link_makes_no_noise() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    // Like a Kubernetes volume: the file is a link into a directory that is itself a link, and the
    // old directory is removed.
    let volume = lab.directory().join("volume");
    let put = |version: &str, n| {
        fs::create_dir_all(volume.join(version)).unwrap();
        fs::write(volume.join(version).join("config.toml"), setup(&lab, n)).unwrap();
        symlink(version, volume.join("..new")).unwrap();
        fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
    };
    put("1", 1);
    symlink("..data/config.toml", volume.join("config.toml")).unwrap();
    let mut command = binary();
    command.args(["--config", "volume/config.toml"]);
    let balancer = BalancerProcess::start_with(&lab, &"", command);
    for (loaded, version, n) in [(1, "2", 2), (2, "3", 1), (3, "4", 2)] {
        put(version, n);
        fs::remove_dir_all(volume.join((version.parse::<u8>().unwrap() - 1).to_string())).unwrap();
        wait_for("the swap to be followed", || {
            (balancer.log().matches(" reload: ").count() == loaded).then_some(())
        });
    }
    assert!(!balancer.log().contains("watch"), "{}", balancer.log());
}

fn setup(lab: &Loopback, n: u8) -> String {
    Setup::new(lab).server("a", lab.server(n), "").to_string()
}

fn fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

fn convey(path: &Path, command: &[&str]) -> Ran {
    run(binary().args(command).arg("--config").arg(path))
}
