//! An operator's manual steps, on a machine of its own with Debian's kernel: `tc` with `action
//! nat`, iptables, the provisioning of `vagrant/`, and convey itself on a kernel older than tcx.
//!
//! Each file in `steps` is a test; `lab.sh` has their commands. All run during one boot of the
//! machine, if `CONVEY_LONG` is set. The Debian package has a machine of its own: `package.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kernel;
mod machine;
mod package;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use convey_testkit::{Need, READY, run_trials};
use libtest_mimic::{Completion, Failed, Trial};

use kernel::Kernel;
use machine::Machine;

/// Programs of the host for the steps, and their Debian packages.
const PROGRAMS: [(&str, &str); 12] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("iptables-restore", "iptables"),
    ("iptables-save", "iptables"),
    ("curl", "curl"),
    ("install", "coreutils"),
    ("systemctl", "systemd"),
];

/// Plugins that iptables loads by itself.
const PLUGINS: &str = "/usr/lib/x86_64-linux-gnu/xtables";

/// The first process of a Debian machine.
const SYSTEMD: &str = "/lib/systemd/systemd";

/// Time limit of all steps together. Each step also has its own limit.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    assert!(include_str!("lab.sh").contains(&format!("logged \"{READY}\"")), "lab.sh waits for another line");
    let trials = steps().into_iter().map(|name| Trial::ignorable_test(name.clone(), move || told(&name)));
    run_trials(trials.chain(package::trials()).collect())
}

/// Outcome of all steps.
enum Told {
    /// A prerequisite was missing.
    Nothing(String),
    /// The machine failed.
    Broken(String),
    /// Error of each step, empty if it passed.
    Steps(BTreeMap<String, String>),
}

/// Outcome of a step. The first call runs all steps.
fn told(step: &str) -> Result<Completion, Failed> {
    static TOLD: OnceLock<Told> = OnceLock::new();
    if let Some(missing) = Need::Long.missing() {
        return Ok(Completion::ignored_with(missing));
    }
    match TOLD.get_or_init(tell) {
        Told::Nothing(missing) => Ok(Completion::ignored_with(missing)),
        Told::Broken(broken) => Err(broken.into()),
        Told::Steps(results) => match results.get(step).map(String::as_str) {
            Some("") => Ok(Completion::Completed),
            Some(why) => Err(why.into()),
            None => Err("the machine never came to it".into()),
        },
    }
}

/// Runs the steps.
fn tell() -> Told {
    match machine().and_then(|machine| Ok((machine, Kernel::of_debian()?))) {
        Err(missing) => Told::Nothing(missing),
        Ok((machine, kernel)) => match machine.run(&kernel, include_str!("run.sh"), LIMIT) {
            Err(broken) => Told::Broken(broken),
            Ok(report) => Told::Steps(results(&report)),
        },
    }
}

/// Prepares a machine with all prerequisites of the steps. An error names the missing one.
fn machine() -> Result<Machine, String> {
    let mut machine = Machine::new()?;
    for (program, package) in PROGRAMS {
        machine.program(program).map_err(|error| format!("{error} (Debian package {package})"))?;
    }
    machine.copy(Path::new(PLUGINS), PLUGINS)?;
    systemd(&mut machine).map_err(|error| format!("{error} (Debian package systemd)"))?;
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let convey = convey_testkit::binary().get_program().to_owned();
    machine.stripped(Path::new(&convey), "/convey/target/release/convey")?;
    for folder in ["iptables", "tc", "vagrant"] {
        machine.copy(&project.join(folder), &format!("/convey/{folder}"))?;
    }
    machine.copy(&project.join("tests/guest/steps"), "/steps")?;
    machine.copy(&project.join("tests/guest/lab.sh"), "/lab.sh")?;
    Ok(machine)
}

/// Adds systemd with its targets, without its services.
fn systemd(machine: &mut Machine) -> Result<(), String> {
    const UNITS: &str = "/lib/systemd/system";
    machine.binary(Path::new(SYSTEMD), SYSTEMD)?;
    let units = fs::read_dir(UNITS).map_err(|error| format!("{UNITS}: {error}"))?.flatten();
    for unit in units.map(|entry| entry.path()).filter(|path| path.extension() == Some("target".as_ref())) {
        machine.copy(&unit, &unit.to_string_lossy())?;
    }
    Ok(())
}

/// The machine's report, by step: the output of a failed step comes before its line.
fn results(report: &str) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let mut said = String::new();
    for line in report.lines() {
        match line.split_once(' ') {
            Some(("ok", step)) => {
                results.insert(step.to_owned(), String::new());
            }
            Some(("failed", step)) => {
                results.insert(step.to_owned(), format!("in the guest:\n{said}"));
            }
            _ => {
                said.push_str(line);
                said.push('\n');
                continue;
            }
        }
        said.clear();
    }
    results
}

/// Names of the steps, in alphabetical order.
fn steps() -> Vec<String> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/steps");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
