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
    /// The commands that mend it, in order; as root, on the host that was looked at unless they say otherwise.
    pub mend: Vec<String>,
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

/// A paragraph for each finding, the worst first.
pub fn as_text(findings: &[Diagnosis]) -> String {
    if findings.is_empty() {
        return "nothing found: all checks passed\n".to_owned();
    }
    sorted(findings).into_iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

/// The same for programs.
///
/// # Errors
/// None: a finding is always valid JSON.
pub fn as_json(findings: &[Diagnosis]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&sorted(findings))? + "\n")
}

fn sorted(findings: &[Diagnosis]) -> Vec<&Diagnosis> {
    let mut sorted: Vec<&Diagnosis> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    sorted
}

fn paragraph(finding: &Diagnosis) -> String {
    let Diagnosis { check, severity, seen, why, mend } = finding;
    let word = match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mend: String = mend.iter().map(|command| format!("    {command}\n")).collect();
    format!("{word} [{check}]: {seen}\n  {why}\n{mend}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_first_and_commands_are_indented() {
        let finding = |check, severity| Diagnosis {
            check,
            severity,
            seen: "10.0.0.100 is on no interface".to_owned(),
            why: "Clients get no answer.".to_owned(),
            mend: vec!["ip addr add 10.0.0.100/32 dev eth0".to_owned()],
        };
        let text = as_text(&[finding("mtu", Severity::Warning), finding("vip-missing", Severity::Error)]);
        assert!(text.starts_with(
            "error [vip-missing]: 10.0.0.100 is on no interface\n  Clients get no answer.\n    ip addr add"
        ));
        assert!(text.contains("\nwarning [mtu]: "), "{text}");
    }
}
