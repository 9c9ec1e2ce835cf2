//! systemd unit that runs a configuration: its user, its capabilities and the folders that it
//! hides.

use std::path::{Path, PathBuf};

use convey_cli::HOST_CONFIG;
use convey_dataplane::programs;
use rustix::thread::CapabilitySet;

use super::capability;

/// Name of the unit in convey's package.
const NAME: &str = "convey.service";

/// Properties for `systemctl show`, which prints one per line.
const PROPERTIES: &str =
    "--property=User,AmbientCapabilities,CapabilityBoundingSet,ProtectHome,PrivateTmp,ExecStart";

/// systemd unit that runs convey as a separate user.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceUnit {
    pub(super) user: String,
    /// Capabilities of the unit's processes.
    pub(super) held: CapabilitySet,
    /// Settings of the unit that hide folders, each with its hidden folders.
    hides: Vec<(&'static str, &'static [&'static str])>,
}

impl ServiceUnit {
    /// Returns the unit of this host that runs this configuration. `None` if systemd does not list
    /// such a unit, or if the unit has no separate user.
    pub(super) fn of(file: &Path) -> Option<ServiceUnit> {
        let shown = programs::command("systemctl").args(["show", PROPERTIES, NAME]).output().ok()?;
        let shown = String::from_utf8(shown.stdout).ok().filter(|_| shown.status.success())?;
        ServiceUnit::parse(&shown, file)
    }

    fn parse(shown: &str, file: &Path) -> Option<ServiceUnit> {
        let property = |name: &str| {
            let lines = shown.lines().filter_map(|line| line.split_once('='));
            lines.filter(|(key, _)| *key == name).map(|(_, value)| value).next().unwrap_or_default()
        };
        let user = Some(property("User")).filter(|user| !["", "root", "0"].contains(user))?;
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if real(&configuration(property("ExecStart"))?) != real(file) {
            return None;
        }
        let capabilities = |name| capability::parse(property(name));
        let hides = [
            ("ProtectHome", &["/home", "/root", "/run/user"][..], &["yes", "tmpfs"][..]),
            ("PrivateTmp", &["/tmp", "/var/tmp"], &["yes", "disconnected"]),
        ];
        let hides = hides.into_iter().filter(|(name, _, values)| values.contains(&property(name)));
        Some(ServiceUnit {
            user: user.to_owned(),
            held: capabilities("AmbientCapabilities") & capabilities("CapabilityBoundingSet"),
            hides: hides.map(|(name, folders, _)| (name, folders)).collect(),
        })
    }

    /// Returns a line for each file that the unit hides from its processes.
    pub(super) fn hidden(&self, files: &[PathBuf]) -> Vec<String> {
        let of = |file: &PathBuf| {
            let within = |folders: &[&str]| folders.iter().any(|folder| file.starts_with(folder));
            let (setting, _) = self.hides.iter().find(|(_, folders)| within(folders))?;
            Some(format!("{setting}= of {NAME} hides {} from convey", file.display()))
        };
        files.iter().filter_map(of).collect()
    }

    /// Name of the user for messages.
    pub(super) fn described(&self) -> String {
        format!("user {} (User= of {NAME})", self.user)
    }
}

/// Path of the configuration in an `ExecStart=` command line, in the format that systemd prints.
fn configuration(exec_start: &str) -> Option<PathBuf> {
    let (_, words) = exec_start.split_once("argv[]=")?;
    let (words, _) = words.split_once(" ;")?;
    let mut words = words.split(' ').skip(1);
    while let Some(word) = words.next() {
        if let Some(path) = word.strip_prefix("--config=") {
            return Some(path.into());
        }
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
    }
    Some(HOST_CONFIG.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "ExecStart={ path=/usr/bin/convey ; argv[]=/usr/bin/convey --config /etc/convey/config.toml ; ignore_errors=no ; start_time=[n/a] ; pid=0 }\n\
        CapabilityBoundingSet=cap_dac_read_search cap_net_bind_service\n\
        AmbientCapabilities=cap_dac_read_search cap_net_bind_service\n\
        User=convey\nPrivateTmp=yes\nProtectHome=yes\n";

    #[test]
    fn unit_is_read_as_systemd_shows_it() {
        let unit = ServiceUnit::parse(SHOWN, Path::new("/etc/convey/config.toml")).unwrap();
        assert_eq!(unit.user, "convey");
        assert_eq!(unit.held, CapabilitySet::DAC_READ_SEARCH | CapabilitySet::NET_BIND_SERVICE);
        let files = ["/home/a/key.pem", "/etc/key.pem", "/var/tmp/list"].map(PathBuf::from);
        let hidden = [
            "ProtectHome= of convey.service hides /home/a/key.pem from convey",
            "PrivateTmp= of convey.service hides /var/tmp/list from convey",
        ];
        assert_eq!(unit.hidden(&files), hidden);
    }

    #[test]
    fn unit_of_root_or_of_another_file_judges_nothing() {
        let parse = |shown: &str, file: &str| ServiceUnit::parse(shown, Path::new(file));
        assert_eq!(parse(SHOWN, "/etc/convey/other.toml"), None);
        assert_eq!(parse(&SHOWN.replace("User=convey", "User="), "/etc/convey/config.toml"), None);
        let equals = SHOWN.replace("--config ", "--config=");
        assert!(parse(&equals, "/etc/convey/config.toml").is_some());
        assert!(parse(&SHOWN.replace(" --config /etc/convey/config.toml", ""), HOST_CONFIG).is_some());
    }
}
