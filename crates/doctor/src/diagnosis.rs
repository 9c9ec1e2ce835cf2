//! Findings of doctor's checks, and their output as text and JSON. Pure.

use std::path::PathBuf;

use serde::Serialize;

/// A finding: a fault that interrupts traffic now, or may do so later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Name of the check for scripts, in lower case with hyphens, such as `vip-missing`.
    pub check: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Observed fact, with names and numbers.
    pub seen: String,
    /// Consequence of the fault.
    pub why: String,
    /// Host on which the commands must run, such as `server app1 (10.0.0.11)`; `None` means the
    /// examined host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Commands that fix the fault, in order, to be run as root. If no command is known, `why`
    /// describes where to look.
    pub fix: Vec<String>,
}

/// A check that could not be made because a requirement is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedCheck {
    /// Name of the check.
    pub check: &'static str,
    /// Missing requirement of the check.
    pub needs: String,
}

/// Outcome of all checks of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Examination {
    /// Configuration file; `None` if the examined host is a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Findings.
    pub findings: Vec<Diagnosis>,
    /// Checks that could not be made. They do not count as findings.
    pub skipped: Vec<SkippedCheck>,
}

impl Diagnosis {
    /// Creates an error: a fault that keeps clients from being served. The caller may add commands.
    pub fn error(check: &'static str, seen: impl Into<String>, why: impl Into<String>) -> Diagnosis {
        let (severity, seen, why) = (Severity::Error, seen.into(), why.into());
        Diagnosis { check, severity, seen, why, on: None, fix: Vec::new() }
    }

    /// Creates a warning: a fault that may keep clients from being served later. The caller may add
    /// commands.
    pub fn warning(check: &'static str, seen: impl Into<String>, why: impl Into<String>) -> Diagnosis {
        Diagnosis { severity: Severity::Warning, ..Diagnosis::error(check, seen, why) }
    }

    /// Adds a command that fixes the fault.
    #[must_use]
    pub fn fix(mut self, command: impl Into<String>) -> Diagnosis {
        self.fix.push(command.into());
        self
    }

    /// Sets the host on which the commands must run.
    #[must_use]
    pub fn on(mut self, host: impl Into<String>) -> Diagnosis {
        self.on = Some(host.into());
        self
    }
}

impl From<Vec<Diagnosis>> for Examination {
    fn from(findings: Vec<Diagnosis>) -> Examination {
        Examination { findings, ..Examination::default() }
    }
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Clients are served now, but the service is impaired or may fail later.
    Warning,
    /// Clients are not served, or not by all servers.
    Error,
}

/// Text with a paragraph for each finding, the most severe first, followed by the checks that could
/// not be made. Lines are wrapped at `width`, except for commands.
pub fn as_text(examination: &Examination, width: usize) -> String {
    let Examination { findings, skipped, .. } = examination;
    let unseen = |unseen: &SkippedCheck| {
        let text = format!("skipped [{}]: needs {}", unseen.check, unseen.needs);
        wrapped(&text, ["", "  "], width)
    };
    let unseen: String = skipped.iter().map(unseen).collect();
    match (findings.is_empty(), unseen.is_empty()) {
        (true, true) => "nothing found: all checks passed\n".to_owned(),
        (true, false) => format!("nothing found\n{unseen}"),
        (false, _) => {
            let found: Vec<String> =
                sorted(findings).into_iter().map(|finding| paragraph(finding, width)).collect();
            found.into_iter().chain((!unseen.is_empty()).then_some(unseen)).collect::<Vec<_>>().join("\n")
        }
    }
}

/// Examination as JSON, with the most severe findings first.
///
/// # Errors
/// Never: an examination is always valid JSON.
pub fn as_json(examination: &Examination) -> serde_json::Result<String> {
    let findings = sorted(&examination.findings).into_iter().cloned().collect();
    let sorted = Examination { findings, ..examination.clone() };
    Ok(serde_json::to_string_pretty(&sorted)? + "\n")
}

fn sorted(findings: &[Diagnosis]) -> Vec<&Diagnosis> {
    let mut sorted: Vec<&Diagnosis> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    sorted
}

fn paragraph(finding: &Diagnosis, width: usize) -> String {
    let Diagnosis { check, severity, seen, why, on, fix } = finding;
    let word = match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    // Without commands, it does not matter where they would run.
    let place = on.as_ref().filter(|_| !fix.is_empty());
    let place = place.map(|host| format!("  on {host}:\n")).unwrap_or_default();
    let fix: String = fix.iter().map(|command| format!("    {command}\n")).collect();
    let seen = wrapped(&format!("{word} [{check}]: {seen}"), ["", "    "], width);
    let why = wrapped(why, ["  "; 2], width);
    format!("{seen}{why}{place}{fix}")
}

/// Wraps a text into lines of at most `width` characters, unless a word is longer. `first` is the
/// prefix of the first line, `others` the prefix of all other lines.
fn wrapped(text: &str, [first, others]: [&str; 2], width: usize) -> String {
    let (mut done, mut line, mut is_empty) = (String::new(), first.to_owned(), true);
    for word in words(text) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            done += &line;
            done.push('\n');
            (line, is_empty) = (others.to_owned(), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line += &word;
        is_empty = false;
    }
    done + &line + "\n"
}

/// Splits a text into words. A quoted command counts as one word, so that people can copy it.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (Vec::<String>::new(), false);
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if is_quoted => *last = format!("{last} {word}"),
            _ => words.push(word.to_owned()),
        }
        is_quoted ^= word.matches('`').count() % 2 == 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> Diagnosis {
        Diagnosis::error("vip-missing", "10.0.0.100 is on no interface", "Clients get no answer.")
            .fix("ip addr add 10.0.0.100/32 dev eth0")
    }

    #[test]
    fn errors_come_first_and_commands_are_indented() {
        let narrow = Diagnosis::warning("mtu", "narrow", "Slow.").on("server a (10.0.0.11)").fix("reboot");
        let text = as_text(&vec![narrow, missing()].into(), 80);
        assert!(text.starts_with(
            "error [vip-missing]: 10.0.0.100 is on no interface\n  Clients get no answer.\n    ip addr add"
        ));
        assert!(
            text.ends_with("\nwarning [mtu]: narrow\n  Slow.\n  on server a (10.0.0.11):\n    reboot\n"),
            "{text}"
        );
    }

    #[test]
    fn skipped_checks_are_listed_and_are_not_findings() {
        let unseen = SkippedCheck { check: "vip-duplicate", needs: "root".to_owned() };
        let mut examination = Examination { skipped: vec![unseen], ..Examination::default() };
        assert_eq!(as_text(&examination, 80), "nothing found\nskipped [vip-duplicate]: needs root\n");
        examination.findings.push(missing());
        let json: serde_json::Value = serde_json::from_str(&as_json(&examination).unwrap()).unwrap();
        assert_eq!(json["findings"][0]["check"], "vip-missing");
        assert_eq!(json["findings"][0].get("on"), None);
        assert_eq!(json["skipped"][0]["needs"], "root");
        assert!(as_text(&examination, 80).contains("eth0\n\nskipped [vip-duplicate]: needs root\n"));
    }

    #[test]
    fn text_is_wrapped_and_commands_are_not() {
        let finding =
            Diagnosis::error("mtu", "some are lost", "Long packets are lost. `ip route get` shows the way.")
                .fix("ip route replace 10.0.0.11/32 dev eth0 mtu 1400");
        let expected = "error [mtu]: some\n    are lost\n  Long packets are\n  lost.\n  `ip route get`\n  shows the way.\n    \
                        ip route replace 10.0.0.11/32 dev eth0 mtu 1400\n";
        assert_eq!(as_text(&vec![finding].into(), 18), expected);
    }
}
