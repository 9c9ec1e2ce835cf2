//! Lists the packet filter rules of this host.

use std::process::Stdio;

use convey_dataplane::programs;

use super::{Ruleset, Table, Tool, read_json, read_save};

/// Programs that list iptables rules. For legacy iptables, also the `/proc` file with the names of
/// its tables.
const SAVES: [(&str, Tool, Option<&str>); 4] = [
    ("iptables-save", Tool::Iptables, None),
    ("ip6tables-save", Tool::Ip6tables, None),
    ("iptables-legacy-save", Tool::Iptables, Some("/proc/net/ip_tables_names")),
    ("ip6tables-legacy-save", Tool::Ip6tables, Some("/proc/net/ip6_tables_names")),
];

impl Ruleset {
    /// Rules from `nft` and from both kinds of `iptables`. The second value is the missing
    /// requirement if `nft` could not list its rules, otherwise `None`. A missing `iptables` counts
    /// as no rules, because it cannot have set any.
    pub(crate) fn of_host() -> (Ruleset, Option<String>) {
        let mut tables: Vec<Table> = Vec::new();
        let mut is_in_nft: Vec<(String, String)> = Vec::new();
        let mut had: Vec<String> = Vec::new();
        for (program, tool, names) in SAVES {
            // Without tables there are no rules, and the program would create the tables.
            let is_in_use = |names| std::fs::read_to_string(names).is_ok_and(|text| !text.trim().is_empty());
            if !names.is_none_or(is_in_use) {
                continue;
            }
            let text = output(program, &[]).unwrap_or_default();
            let rules: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let rules = rules.join("\n");
            if rules.is_empty() || had.contains(&rules) {
                continue;
            }
            let read = read_save(&text, tool);
            if text.contains("(nf_tables)") {
                is_in_nft.extend(read.iter().map(|table| (table.family.clone(), table.name.clone())));
            }
            tables.extend(read);
            had.push(rules);
        }
        let (text, needs) = match output("nft", &["-j", "list", "ruleset"]) {
            Ok(text) => (text, None),
            Err(needs) => (String::new(), Some(needs)),
        };
        let is_own = |table: &Table| !is_in_nft.contains(&(table.family.clone(), table.name.clone()));
        tables.extend(read_json(&text).unwrap_or_default().into_iter().filter(is_own));
        (Ruleset { tables }, needs)
    }
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    match programs::command(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(ran) if ran.status.success() => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr).lines().next().unwrap_or_default().to_owned();
            Err(format!("root ({program} failed: {said})"))
        }
        Err(_) => Err(format!("{program} (Debian package nftables)")),
    }
}
