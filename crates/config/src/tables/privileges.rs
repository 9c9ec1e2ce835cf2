//! `[privileges]`: privileges that convey drops once it has read its file.

use toml::de::DeValue;

use crate::diff::below;
use crate::keys::keys;
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{boolean, not_allowed};

/// Settings of `[privileges]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Privileges {
    /// User to switch to if root starts convey: a name or a number. convey keeps the capabilities
    /// that its modes need.
    pub user: Option<String>,
    /// Whether convey drops the capabilities that its modes do not need. After a switch to another
    /// user, convey always drops them.
    pub drop_capabilities: bool,
    /// Whether programs started by convey cannot gain privileges (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privileges: bool,
    /// Whether the kernel refuses system calls that convey does not need. Needs
    /// `no_new_privileges`.
    pub seccomp: bool,
    /// Whether the kernel refuses access to files that convey does not need (Linux 5.13). Needs
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

/// `[privileges]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[privileges]", docs: PrivilegeKeys::DOCS };

keys! {
    /// The keys of `[privileges]`.
    pub(crate) struct PrivilegeKeys => Privileges, from (_unused: (), default);

    key "user" => user: String {
        read: user,
        unset: "none",
        kind: "name or number of a user, as a string: convey switches to this user if root starts it",
        default: "none: it stays root",
        change: Restart,
        sample: r#"#user = "convey"                        # example; the user that a convey started by root becomes. Unset: it stays root"#,
        example: "'nobody'",
    };

    key "drop_capabilities" => drop_capabilities: bool {
        read: boolean,
        kind: "boolean: whether convey drops the capabilities that the modes do not need. A switch to another `user` always drops them",
        default: "`true`",
        change: Restart,
        sample: "#drop_capabilities = true               # drop the capabilities that the modes do not need",
        example: "false",
    };

    key "no_new_privileges" => no_new_privileges: bool {
        read: boolean,
        kind: "boolean: whether programs that convey starts gain no privileges. `false` also turns off the next two",
        default: "`true`",
        change: Restart,
        sample: "#no_new_privileges = true               # false turns the next two off, too",
        example: "false",
    };

    key "seccomp" => seccomp: bool {
        read: boolean,
        kind: "boolean: whether the kernel refuses system calls that convey does not need",
        default: "`true`",
        change: Restart,
        sample: "#seccomp = true                         # refuse system calls that convey does not need",
        example: "false",
    };

    key "landlock" => landlock: bool {
        read: boolean,
        kind: "boolean: whether the kernel refuses files that convey does not need (Linux 5.13)",
        default: "`false`",
        change: Restart,
        sample: "#landlock = false                       # refuse files that convey does not need (Linux 5.13)",
        example: "true",
    };
}

/// Reads `[privileges]`.
pub(crate) fn read(mut table: TomlTable<'_>) -> Privileges {
    let keys = PrivilegeKeys::read(&mut table);
    table.finish();
    let read = keys.model((), Privileges::default());
    Privileges {
        seccomp: read.seccomp && read.no_new_privileges,
        landlock: read.landlock && read.no_new_privileges,
        ..read
    }
}

/// Parses a user: a name that useradd accepts, or a number.
fn user(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.$@".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_allowed) {
        return Err(not_allowed(value, "the name or the number of a user, as a string"));
    }
    Ok(text.to_owned())
}

/// Changes of `[privileges]` for the log of a reload.
pub(crate) fn changes(old: &Privileges, new: &Privileges) -> Vec<String> {
    below("privileges", PrivilegeKeys::changes(old, new))
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
