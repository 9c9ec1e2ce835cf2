//! Runs the programs that a lab needs, `ip` and a few others, and waits until they end.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use convey_dataplane::programs;

use super::LabError;

/// Runs lines of `ip` in one process (`ip -batch`); returns their output.
pub(super) fn ip(options: &[&str], lines: impl IntoIterator<Item = String>) -> Result<String, LabError> {
    let lines: Vec<String> = lines.into_iter().collect();
    if lines.is_empty() {
        return Ok(String::new());
    }
    output(programs::command("ip").args(options).args(["-batch", "-"]), &lines.join("\n"))
}

/// Checks that a program is installed, by starting the program. A start is necessary, because only
/// a start searches the system's path.
pub(super) fn find(program: &'static str, package: &'static str) -> Result<(), LabError> {
    let started =
        programs::command(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match started {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LabError::Missing { program, package }),
        _ => Ok(()),
    }
}

/// Runs a command to its end with `input` as its standard input; returns its output.
pub(super) fn output(command: &mut Command, input: &str) -> Result<String, LabError> {
    let text = shown(command);
    let system = |source| LabError::System { what: format!("run `{text}`"), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(system)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program stops reading early, its own error message is more useful than this error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(system)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Failed { command: text, said })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
