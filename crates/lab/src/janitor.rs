//! Clears labs away, whatever happens to the process that made them.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use convey_dataplane::programs;

use super::LabError;

/// Where `ip netns` keeps namespaces.
pub(super) const NAMESPACES: &str = "/run/netns";

/// Waits until nobody holds the other end of its standard input; then removes the namespaces that are its
/// arguments, after killing what runs in them. The process that made the lab may be in one itself (and is
/// spared); it may also be the one that waits for this to end.
const SCRIPT: &str = r#"
cat >/dev/null
for namespace; do
    for pid in $(ip netns pids "$namespace"); do
        [ "$pid" = "$PPID" ] || kill -KILL "$pid"
    done
    ip netns del "$namespace"
done
"#;

/// A process that removes namespaces when this is dropped, or as soon as our process is gone.
#[derive(Debug)]
pub(super) struct Janitor(Child);

impl Janitor {
    /// Puts one in charge of namespaces, which need not be there yet.
    pub(super) fn start(namespaces: &[String]) -> Result<Janitor, LabError> {
        let mut command = programs::command("sh");
        command.args(["-c", SCRIPT, "sh"]).args(namespaces);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/");
        // Ctrl-C is for us, not for it.
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

/// Removes what is left of labs whose process is gone: their janitors were killed too, or the names outlived
/// a crash of the machine's.
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

/// Which process made a namespace of a lab.
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
