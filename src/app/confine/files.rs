//! Landlock: which files convey may read and write.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};

use crate::config::{self, Config, LogOutput};
use crate::control::File;

/// What every program may read: programs to run (`nft`, `ip`), names, certificates, devices.
const READABLE: [&str; 11] =
    ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/run", "/dev", "/opt"];

/// What convey writes: logs, the records of reserved ports, the sysctl that reserves them, pinned maps.
const WRITABLE: [&str; 5] = ["/var/log", "/run/convey", "/proc/sys/net", "/dev/null", "/sys/fs/bpf"];

/// Leaves this thread, and those that it starts, what convey needs.
pub(super) fn restrict(file: &File, config: &Config) -> Result<(), String> {
    let status = restrict_to(&readable(file), &writable(config)).map_err(|error| {
        format!("convey may read and write all files of its user (privileges.landlock): {error}")
    })?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(
            "convey may read and write all files of its user: this kernel has no Landlock (Linux 5.13; privileges.landlock)"
                .to_owned(),
        ),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn restrict_to(
    readable: &[PathBuf],
    writable: &[PathBuf],
) -> Result<RestrictionStatus, landlock::RulesetError> {
    // The third version knows of truncation; older kernels restrict what they know.
    let version = ABI::V3;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(version))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(version)))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(version)))?
        .restrict_self()
}

/// With the folders of the file, of what it includes, and of the program, whose next version an upgrade starts.
fn readable(file: &File) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = READABLE.iter().map(PathBuf::from).collect();
    // The file may be a link, as in a mounted ConfigMap.
    let real = file.path.canonicalize().ok();
    let folders = config::folders(&file.path).into_iter();
    paths.extend(folders.map(|folder| if folder == Path::new("") { PathBuf::from(".") } else { folder }));
    paths.extend([real, std::env::current_exe().ok()].into_iter().flatten().map(|path| folder(&path)));
    paths
}

fn writable(config: &Config) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = WRITABLE.iter().map(PathBuf::from).collect();
    if let LogOutput::File(path) = &config.log.output {
        paths.push(folder(path));
    }
    paths
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}
