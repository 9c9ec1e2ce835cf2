//! `[privileges]`: privileges that convey drops once it has read its file.

use toml::de::DeValue;

use super::diff::change;
use super::reader::TomlTable;
use super::values::{boolean, not_allowed};

/// `[privileges]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Privileges {
    /// User that convey switches to if root has started it: a name or a number. convey keeps the
    /// capabilities that its modes need.
    pub user: Option<String>,
    /// Whether convey drops the capabilities that its modes do not need. After a switch to another
    /// user they are dropped anyway.
    pub drop_capabilities: bool,
    /// Whether no program that convey starts may gain privileges (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privileges: bool,
    /// Whether the kernel refuses system calls that convey does not need. Needs
    /// `no_new_privileges`.
    pub seccomp: bool,
    /// Whether the kernel refuses files that convey does not need (Linux 5.13). Needs
    /// `no_new_privileges`.
    pub landlock: bool,
}

impl Default for Privileges {
    fn default() -> Privileges {
        Privileges {
            user: None,
            drop_capabilities: true,
            no_new_privileges: true,
            seccomp: true,
            landlock: false,
        }
    }
}

/// Reads `[privileges]`.
pub(super) fn read(mut table: TomlTable<'_>) -> Privileges {
    let default = Privileges::default();
    let user = table.or("user", None, |value| user(value).map(Some));
    let drop_capabilities = table.or("drop_capabilities", default.drop_capabilities, boolean);
    let no_new_privileges = table.or("no_new_privileges", default.no_new_privileges, boolean);
    let privileges = Privileges {
        user,
        drop_capabilities,
        no_new_privileges,
        seccomp: table.or("seccomp", no_new_privileges, boolean) && no_new_privileges,
        landlock: table.or("landlock", default.landlock, boolean) && no_new_privileges,
    };
    table.finish();
    privileges
}

/// Parses a user name as useradd allows it, or a number.
fn user(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.$@".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_allowed) {
        return Err(not_allowed(value, "the name or the number of a user, as a string"));
    }
    Ok(text.to_owned())
}

/// Log text of the differences between two tables.
pub(super) fn changes(old: &Privileges, new: &Privileges) -> Vec<String> {
    // Destructured, so that a new field cannot be forgotten.
    let Privileges { user, drop_capabilities, no_new_privileges, seccomp, landlock } = old;
    let name = |user: &Option<String>| user.clone().unwrap_or_else(|| "none".to_owned());
    let changes = [
        change("privileges.user", name(user), name(&new.user)),
        change("privileges.drop_capabilities", *drop_capabilities, new.drop_capabilities),
        change("privileges.no_new_privileges", *no_new_privileges, new.no_new_privileges),
        change("privileges.seccomp", *seccomp, new.seccomp),
        change("privileges.landlock", *landlock, new.landlock),
    ];
    changes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const SERVED: &str = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                          backends.web.servers.a.addr = '10.0.0.2:80'\n";

    fn privileges(text: &str) -> Privileges {
        parse("c.toml", &format!("{SERVED}[privileges]\n{text}")).unwrap().config.privileges
    }

    #[test]
    fn privilege_keys_are_read_and_missing_ones_have_defaults() {
        assert_eq!(privileges(""), Privileges::default());
        assert_eq!(privileges("user = 'convey'").user.as_deref(), Some("convey"));
        assert_eq!(privileges("landlock = true"), Privileges { landlock: true, ..Privileges::default() });
    }

    #[test]
    fn without_no_new_privileges_there_is_no_filter() {
        let none = Privileges { no_new_privileges: false, seccomp: false, ..Privileges::default() };
        assert_eq!(privileges("no_new_privileges = false"), none);
        assert_eq!(privileges("no_new_privileges = false\nseccomp = true\nlandlock = true"), none);
    }

    #[test]
    fn a_user_is_a_name_or_a_number() {
        for wrong in ["''", "'a b'", "'-a'", "65532"] {
            let problems = parse("c.toml", &format!("{SERVED}[privileges]\nuser = {wrong}")).unwrap_err();
            assert!(problems[0].to_string().contains("privileges.user: found"), "{problems:?}");
        }
        assert_eq!(privileges("user = '65532'").user.as_deref(), Some("65532"));
    }
}
