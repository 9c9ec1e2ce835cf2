//! Commands that run programs of the host, mostly as root: they search the system's directories,
//! regardless of `PATH`.

use std::ffi::OsStr;
use std::process::Command;

/// Search path of programs. Only root can write to these directories.
const DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// Creates a command for the program with this name. The program itself searches the same
/// directories.
pub fn command(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", DIRECTORIES);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_what_they_run_come_from_the_systems_directories() {
        let output = command("sh").args(["-c", "echo $PATH; command -v sh"]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (path, sh) = said.trim().split_once('\n').unwrap();
        assert_eq!(path, DIRECTORIES);
        assert!(DIRECTORIES.split(':').any(|directory| format!("{directory}/sh") == sh), "{sh}");
        assert!(command("no-such-program").output().is_err());
    }
}
