//! The Debian package on a machine of its own, with systemd as its first process: installed,
//! started, reloaded, upgraded and purged. `package.sh` has the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use convey_testkit::{Need, tool, trial};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::machine::{Machine, output};

/// Programs of the host for the package manager and the test, in addition to those of every
/// machine.
const PROGRAMS: [&str; 21] = [
    "curl",
    "deb-systemd-helper",
    "deb-systemd-invoke",
    "diff",
    "dpkg",
    "dpkg-deb",
    "dpkg-query",
    "dpkg-split",
    "ip",
    "journalctl",
    "ldconfig",
    "nft",
    "perl",
    "start-stop-daemon",
    "systemctl",
    "systemd-analyze",
    "systemd-sysusers",
    "tar",
    "tc",
    "unshare",
    "nsenter",
];

/// Folders and files of the host that these programs read.
const FILES: [&str; 5] = [
    "/lib/systemd/system/systemd-journald.service",
    "/lib/systemd/system/systemd-journald.socket",
    "/lib/systemd/system/systemd-journald-dev-log.socket",
    "/usr/lib/x86_64-linux-gnu/perl-base",
    "/usr/share/dpkg",
];

/// Packages that the convey package depends on. The machine's package manager considers them
/// installed.
const DEPENDENCIES: [&str; 3] = ["libc6", "libgcc-s1", "systemd"];

const LIMIT: Duration = Duration::from_secs(420);

pub(crate) fn trials() -> Vec<Trial> {
    let needs =
        [Need::Long, Need::Tool("cargo-deb", "none: cargo install cargo-deb"), Need::Tool("dpkg", "dpkg")];
    let lintian = Need::Tool("lintian", "lintian");
    vec![
        trial(
            "units_that_set_rules_set_them_again_after_whoever_replaces_all",
            Vec::new(),
            units_that_set_rules_set_them_again_after_whoever_replaces_all,
        ),
        trial("the_package_says_what_debian_expects", needs, the_package_says_what_debian_expects),
        trial(
            "lintian_finds_no_error_in_the_package",
            [&needs[..], &[lintian]].concat(),
            lintian_finds_no_error,
        ),
        trial(
            "the_package_is_installed_reloaded_upgraded_and_purged",
            [&needs[..], &[Need::Other(missing_machine)]].concat(),
            acceptance,
        ),
    ]
}

fn missing_machine() -> Option<String> {
    Machine::new().and_then(|_| Kernel::of_debian()).err()
}

fn the_package_says_what_debian_expects() {
    let folder = TempDir::new().unwrap();
    let deb = build(folder.path()).unwrap();
    let listed = output(Command::new("dpkg-deb").arg("-c").arg(&deb)).unwrap();
    for file in [
        "./etc/convey/config.toml",
        "./etc/convey/dsr-server.env",
        "./usr/bin/convey",
        "./usr/lib/systemd/system/convey.service",
        "./usr/lib/systemd/system/convey-dsr-server.service",
        "./usr/lib/systemd/system/convey-iptables@.service",
        "./usr/lib/sysusers.d/convey.conf",
        "./usr/share/bash-completion/completions/convey",
        "./usr/share/convey/iptables/dsr.sh",
        "./usr/share/convey/tc/dsr-server-nft.sh",
        "./usr/share/doc/convey/changelog.Debian.gz",
        "./usr/share/doc/convey/changelog.gz",
        "./usr/share/doc/convey/copyright",
        "./usr/share/doc/convey/docs/guides/systemd.md",
        "./usr/share/fish/vendor_completions.d/convey.fish",
        "./usr/share/man/man8/convey.8.gz",
        "./usr/share/zsh/vendor-completions/_convey",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(&format!(" {file}"))), "no {file} in\n{listed}");
    }
    // Instances of units are not debhelper's affair, and the rules of one would outlive the
    // package.
    let script = |name: &str| output(Command::new("dpkg-deb").arg("-I").arg(&deb).arg(name)).unwrap();
    let (stop, clear) = (script("prerm"), script("postrm"));
    for (script, line) in [
        (&stop, "deb-systemd-invoke stop convey-iptables@dsr.service convey-iptables@passthrough.service"),
        (&stop, "deb-systemd-invoke stop convey.service"),
        (&clear, "rm -f /etc/systemd/system/*.wants/convey-iptables@*.service"),
        (&clear, "deb-systemd-helper purge convey.service"),
    ] {
        assert!(script.contains(line), "no {line:?} in\n{script}");
    }
}

fn lintian_finds_no_error() {
    let folder = TempDir::new().unwrap();
    let said = Command::new("lintian")
        .args(["--fail-on", "error", "--allow-root", "--suppress-tags", "bogus-mail-host"])
        .arg(build(folder.path()).unwrap())
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

fn units_that_set_rules_set_them_again_after_whoever_replaces_all() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd");
    for unit in ["convey-dsr-server.service", "convey-iptables@.service"] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        let values = |key: &str| -> Vec<String> {
            let value = text.lines().find_map(|line| line.strip_prefix(key));
            value.unwrap_or_default().split(' ').map(str::to_owned).collect()
        };
        let services = values("After=").into_iter().filter(|unit| unit.ends_with(".service"));
        let services: Vec<String> = services.collect();
        assert!(services.contains(&"nftables.service".to_owned()), "{unit}: {services:?}");
        for key in ["PartOf=", "ReloadPropagatedFrom="] {
            assert_eq!(values(key), services, "{unit}: {key}");
        }
        let [start, reload] = ["ExecStart=", "ExecReload="].map(values);
        assert_eq!(start, reload, "{unit}: up replaces what is there");
    }
}

fn acceptance() {
    let machine = machine().unwrap_or_else(|missing| panic!("{missing}"));
    let report = machine.run(&Kernel::of_debian().unwrap(), include_str!("package.sh"), LIMIT).unwrap();
    assert!(report.ends_with("told\n"), "{report}");
}

/// A machine with the package in two versions, and nothing of it installed but the unit of a DSR
/// server, so that its boot starts that.
fn machine() -> Result<Machine, String> {
    let mut machine = Machine::new()?;
    for program in PROGRAMS {
        machine.program(program)?;
    }
    crate::systemd(&mut machine)?;
    for program in ["systemd-journald", "systemd-executor", "systemd-shutdown"]
        .map(|name| format!("/lib/systemd/{name}"))
    {
        if Path::new(&program).exists() {
            machine.binary(Path::new(&program), &program)?;
        }
    }
    for file in FILES {
        machine.copy(Path::new(file), file)?;
    }
    machine.binary(&tool("kill").ok_or("no kill")?, "/bin/kill")?;
    // The package depends on the packages with its libraries.
    machine.libraries_of(Path::new(convey_testkit::binary().get_program()))?;
    let folder = TempDir::new().map_err(|error| error.to_string())?;
    let [first, second] = versions(folder.path(), ["0.3.0-1", "0.3.0-2"])?;
    machine.copy(&first, "/debs/first.deb")?;
    machine.copy(&second, "/debs/second.deb")?;
    let status = output(Command::new("dpkg-query").arg("-s").args(DEPENDENCIES))?;
    machine.write("/var/lib/dpkg/status", &status)?;

    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = |file: &str| project.join(file);
    machine.copy(&at("tc"), "/usr/share/convey/tc")?;
    machine.copy(
        &at("packaging/systemd/convey-dsr-server.service"),
        "/lib/systemd/system/convey-dsr-server.service",
    )?;
    machine.write("/etc/convey/dsr-server.env", "SCRIPT=dsr-server-l2.sh\nVIP=10.99.0.100\n")?;
    machine.write(
        "/etc/systemd/system/multi-user.target.d/boot.conf",
        "[Unit]\nWants=convey-dsr-server.service\n",
    )?;
    let journal = "[Unit]\nWants=systemd-journald.socket systemd-journald-dev-log.socket\n";
    machine.write("/etc/systemd/system/sysinit.target.d/journal.conf", journal)?;
    machine.copy(&at("tests/guest/lab.sh"), "/lab.sh")?;
    machine.start_with_systemd()?;
    Ok(machine)
}

/// Builds the package of the program under test.
fn build(folder: &Path) -> Result<PathBuf, String> {
    // Builds share one output path.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let deb = folder.join("convey.deb");
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/build-deb"));
    command.env("CONVEY_BIN", convey_testkit::binary().get_program());
    output(command.args(["--fast", "--output"]).arg(&deb))?;
    Ok(deb)
}

/// Copies of the package with other versions, each with another `config.toml`. They are
/// uncompressed, because an emulated machine unpacks slowly.
fn versions<const N: usize>(folder: &Path, versions: [&str; N]) -> Result<[PathBuf; N], String> {
    let deb = build(folder)?;
    let unpacked = folder.join("unpacked");
    output(Command::new("dpkg-deb").arg("-R").args([&deb, &unpacked]))?;
    let control = unpacked.join("DEBIAN/control");
    let config = unpacked.join("etc/convey/config.toml");
    let [text, shipped] =
        [&control, &config].map(fs::read_to_string).map(|text| text.map_err(|error| error.to_string()));
    let (text, shipped) = (text?, shipped?);
    let mut debs = Vec::new();
    for version in versions {
        let line = |line: &str| {
            if line.starts_with("Version: ") { format!("Version: {version}\n") } else { format!("{line}\n") }
        };
        fs::write(&control, text.lines().map(line).collect::<String>()).map_err(|error| error.to_string())?;
        fs::write(&config, format!("{shipped}# {version}\n")).map_err(|error| error.to_string())?;
        let deb = folder.join(format!("{version}.deb"));
        output(
            Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "-b"]).args([&unpacked, &deb]),
        )?;
        debs.push(deb);
    }
    Ok(debs.try_into().expect("one for each"))
}
