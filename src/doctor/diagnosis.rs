//! What a check has found, as text and as JSON. Pure.

use serde::Serialize;

/// Something that keeps traffic from coming through, or will.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The name of the check, for scripts: lower case and hyphens, such as `vip-missing`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was seen, with names and numbers.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// The host to run the commands on, if it is another than the one that was looked at: `server app1 (10.0.0.11)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The commands that mend it, in order, as root. Empty if none is known; then `why` says what to look at.
    pub mend: Vec<String>,
}

/// A check that could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// The name of the check.
    pub check: &'static str,
    /// What it would take.
    pub needs: String,
}

/// What came of a look at a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Examination {
    /// What was found.
    pub findings: Vec<Diagnosis>,
    /// What was not looked at. It is no finding.
    pub not_looked_at: Vec<Unseen>,
}

impl Diagnosis {
    /// Something that keeps clients from being served. No command is known yet that mends it.
    pub fn error(check: &'static str, seen: impl Into<String>, why: impl Into<String>) -> Diagnosis {
        let (severity, seen, why) = (Severity::Error, seen.into(), why.into());
        Diagnosis { check, severity, seen, why, on: None, mend: Vec::new() }
    }

    /// The same of something that will, or may.
    pub fn warning(check: &'static str, seen: impl Into<String>, why: impl Into<String>) -> Diagnosis {
        Diagnosis { severity: Severity::Warning, ..Diagnosis::error(check, seen, why) }
    }

    /// With one more command that mends it.
    #[must_use]
    pub fn mend(mut self, command: impl Into<String>) -> Diagnosis {
        self.mend.push(command.into());
        self
    }

    /// With commands that are for another host.
    #[must_use]
    pub fn on(mut self, host: impl Into<String>) -> Diagnosis {
        self.on = Some(host.into());
        self
    }
}

impl From<Vec<Diagnosis>> for Examination {
    fn from(findings: Vec<Diagnosis>) -> Examination {
        Examination { findings, not_looked_at: Vec::new() }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Clients are served, and may not be soon, or not as well.
    Warning,
    /// Clients are not served, or not by all servers.
    Error,
}

/// A paragraph for each finding, the worst first; then what was not looked at.
pub fn as_text(examination: &Examination) -> String {
    let Examination { findings, not_looked_at } = examination;
    let unseen = |unseen: &Unseen| format!("not looked at [{}]: needs {}\n", unseen.check, unseen.needs);
    let unseen: String = not_looked_at.iter().map(unseen).collect();
    match (findings.is_empty(), unseen.is_empty()) {
        (true, true) => "nothing found: all checks passed\n".to_owned(),
        (true, false) => format!("nothing found\n{unseen}"),
        (false, _) => {
            let found: Vec<String> = sorted(findings).into_iter().map(paragraph).collect();
            found.into_iter().chain((!unseen.is_empty()).then_some(unseen)).collect::<Vec<_>>().join("\n")
        }
    }
}

/// The same for programs.
///
/// # Errors
/// None: an examination is always valid JSON.
pub fn as_json(examination: &Examination) -> serde_json::Result<String> {
    let findings = sorted(&examination.findings).into_iter().cloned().collect();
    let sorted = Examination { findings, not_looked_at: examination.not_looked_at.clone() };
    Ok(serde_json::to_string_pretty(&sorted)? + "\n")
}

fn sorted(findings: &[Diagnosis]) -> Vec<&Diagnosis> {
    let mut sorted: Vec<&Diagnosis> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    sorted
}

fn paragraph(finding: &Diagnosis) -> String {
    let Diagnosis { check, severity, seen, why, on, mend } = finding;
    let word = match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let place = on.as_ref().map(|host| format!("  on {host}:\n")).unwrap_or_default();
    let mend: String = mend.iter().map(|command| format!("    {command}\n")).collect();
    format!("{word} [{check}]: {seen}\n  {why}\n{place}{mend}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> Diagnosis {
        Diagnosis::error("vip-missing", "10.0.0.100 is on no interface", "Clients get no answer.")
            .mend("ip addr add 10.0.0.100/32 dev eth0")
    }

    #[test]
    fn errors_come_first_and_commands_are_indented() {
        let narrow = Diagnosis::warning("mtu", "narrow", "Slow.").on("server a (10.0.0.11)").mend("reboot");
        let text = as_text(&vec![narrow, missing()].into());
        assert!(text.starts_with(
            "error [vip-missing]: 10.0.0.100 is on no interface\n  Clients get no answer.\n    ip addr add"
        ));
        assert!(
            text.ends_with("\nwarning [mtu]: narrow\n  Slow.\n  on server a (10.0.0.11):\n    reboot\n"),
            "{text}"
        );
    }

    #[test]
    fn what_was_not_looked_at_is_told_and_is_no_finding() {
        let unseen = Unseen { check: "vip-duplicate", needs: "root".to_owned() };
        let mut examination = Examination { findings: Vec::new(), not_looked_at: vec![unseen] };
        assert_eq!(as_text(&examination), "nothing found\nnot looked at [vip-duplicate]: needs root\n");
        examination.findings.push(missing());
        let json: serde_json::Value = serde_json::from_str(&as_json(&examination).unwrap()).unwrap();
        assert_eq!(json["findings"][0]["check"], "vip-missing");
        assert_eq!(json["findings"][0].get("on"), None);
        assert_eq!(json["not_looked_at"][0]["needs"], "root");
        assert!(as_text(&examination).contains("eth0\n\nnot looked at [vip-duplicate]: needs root\n"));
    }
}
