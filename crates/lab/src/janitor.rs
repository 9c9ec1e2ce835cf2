//! Removes the namespaces of a lab, also when the process that made them crashes.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use convey_dataplane::programs;

use super::LabError;

/// Directory in which `ip netns` keeps namespaces.
pub(super) const NAMESPACES: &str = "/run/netns";

/// Shell script of the janitor. It waits until its standard input ends. Then it kills the processes
/// in the namespaces that are its arguments, and removes the namespaces.
///
/// The script spares its parent, the process that made the lab: the parent may be in one of the
/// namespaces, and may be waiting for the script to end.
const SCRIPT: &str = r#"
cat >/dev/null
for namespace; do
    for pid in $(ip netns pids "$namespace"); do
        [ "$pid" = "$PPID" ] || kill -KILL "$pid"
    done
    ip netns del "$namespace"
done
"#;

/// Process that removes namespaces when the `Janitor` is dropped, or when the lab's process ends.
#[derive(Debug)]
pub(super) struct Janitor(Child);

impl Janitor {
    /// Starts a janitor for these namespaces, which need not exist yet.
    pub(super) fn start(namespaces: &[String]) -> Result<Janitor, LabError> {
        let mut command = programs::command("sh");
        command.args(["-c", SCRIPT, "sh"]).args(namespaces);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/");
        // Ctrl-C must not end the janitor: it gets its own process group.
        command.process_group(0);
        let child =
            command.spawn().map_err(|source| LabError::System { what: "start `sh`".into(), source })?;
        Ok(Janitor(child))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Removes the remains of labs whose process has ended. Such remains exist if the janitor was
/// killed together with the lab's process, or if the machine crashed and kept the names of the
/// namespaces.
pub(super) fn sweep() -> Result<(), LabError> {
    let names = match std::fs::read_dir(NAMESPACES) {
        Ok(entries) => entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(LabError::System { what: format!("read {NAMESPACES}"), source }),
    };
    let is_running = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    let left: Vec<String> =
        names.into_iter().filter(|name| maker(name).is_some_and(|pid| !is_running(pid))).collect();
    if !left.is_empty() {
        drop(Janitor::start(&left)?);
    }
    Ok(())
}

/// Id of the process that made this namespace; `None` if the namespace does not belong to a lab.
fn maker(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix("convey-")?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_others_are_never_taken_for_ours() {
        assert_eq!(maker("convey-4711-0-balancer"), Some(4711));
        for other in ["convey", "convey-blue-web", "convey-4711", "web", "convey--1-x"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
