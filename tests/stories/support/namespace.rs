//! Stories that change the network: they are told in a namespace of their own.

use std::process::Command;

use super::run;

/// Set where a story is told in its namespace.
const INSIDE: &str = "CONVEY_STORY_IN_NAMESPACE";

/// Tells the story with this name in a network namespace that has a loopback interface and what these commands of a
/// shell set up: in a process of its own, for threads of one process would have to agree on the namespace.
pub(crate) fn in_namespace(name: &str, set_up: &str, tell: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return tell();
    }
    let script = format!("set -e\nip link set lo up\n{set_up}\nexec \"$0\" --exact \"$1\"");
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", &script]).arg(std::env::current_exe().unwrap()).arg(name);
    let ran = run(command.env(INSIDE, "1"));
    assert!(ran.code == Some(0) && ran.stdout.contains("1 passed"), "{}\n{}", ran.stdout, ran.stderr);
}
