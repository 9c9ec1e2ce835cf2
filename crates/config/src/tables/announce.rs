//! `[announce]`: addresses that convey adds to an interface while it can serve.

use std::sync::Arc;
use std::time::Duration;

use convey_model::AnnounceConfig;
use toml::de::DeValue;

use super::{ParsedBackend, ParsedFrontend};
use crate::Config;
use crate::diff::{below, list_or};
use crate::file::ParsedFile;
use crate::keys::keys;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{integer, not_allowed, seconds};

/// Maximum length of an interface name in bytes: `IFNAMSIZ` without the final NUL (netdevice(7)).
const MAX_NAME: usize = 15;

/// `[announce]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[announce]", docs: AnnounceKeys::DOCS };

/// Parsed `[announce]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedAnnounce {
    place: Place,
    keys: AnnounceKeys,
    pub(crate) config: Arc<AnnounceConfig>,
}

keys! {
    /// The keys of `[announce]`.
    pub(crate) struct AnnounceKeys => AnnounceConfig, from (_unused: (), default);

    key "interface" => interface: String {
        read: interface,
        describe: |announce, _| format!("announces on {}", announce.interface),
        kind: "the name of an interface",
        default: r#"`"lo"`"#,
        sample: r#"#interface = "lo"                       # or a dummy interface"#,
        example: "'vips'",
    };

    key "hold" => hold: Duration {
        read: seconds(Duration::ZERO),
        describe: |announce, _| format!(", hold {}s", announce.hold.as_secs_f64()),
        kind: "seconds from 0: how long a frontend cannot serve before convey withdraws its address, and can before the address comes back",
        default: "2",
        sample: "#hold = 2                               # seconds of failure before convey withdraws an address, and of success before it returns",
        example: "3",
    };

    key "min_servers" => min_servers: u32 {
        read: integer(1..=u32::MAX),
        describe: |announce, _| format!(", min_servers {}", announce.min_servers),
        kind: "1 to 4294967295: a backend with fewer servers that can be chosen counts as one without",
        default: "1",
        sample: "#min_servers = 1                        # a backend with fewer available servers counts as one without servers",
        example: "2",
    };
}

impl ParsedAnnounce {
    /// Place of the interface's name; place of the table if the name is missing.
    pub(crate) fn interface_place(&self) -> &Place {
        self.keys.interface.as_ref().map_or(&self.place, |interface| &interface.place)
    }
}

/// Reads `[announce]`; `None` if the file does not have the table.
pub(crate) fn read(root: &mut TomlTable<'_>) -> Option<ParsedAnnounce> {
    let is_there = root.has("announce");
    let mut table = root.table("announce");
    let place = table.place.clone();
    let keys = AnnounceKeys::read(&mut table);
    table.finish();
    let config = keys.model((), AnnounceConfig::default()).into();
    is_there.then_some(ParsedAnnounce { place, keys, config })
}

/// Reports an `[announce]` table that would never announce an address.
pub(crate) fn check(file: &ParsedFile, report: &Report<'_>) {
    let Some(ParsedAnnounce { place, keys, config }) = &file.announce else { return };
    let listens = file.frontends.iter().flat_map(|frontend| &frontend.listen);
    if listens.clone().next().is_some()
        && AnnounceConfig::addresses_of(listens.map(|listen| &listen.value)).is_empty()
    {
        let message = "has no effect: every frontend listens on a wildcard or a loopback address, which cannot be announced";
        report.warning(place, message);
    }
    let Some(Placed { place, .. }) = &keys.min_servers else { return };
    let is_used = |backend: &&ParsedBackend| {
        file.frontends.iter().any(|frontend: &ParsedFrontend| frontend.uses(&backend.name))
    };
    let is_too_small = |backend: &&ParsedBackend| {
        let has_names = backend.servers.iter().any(|server| server.name_place().is_some());
        backend.files.is_none()
            && backend.discovery.is_none()
            && !has_names
            && backend.servers.len() < config.min_servers as usize
    };
    if let Some(backend) = file.backends.iter().filter(is_used).find(is_too_small) {
        let message = format!(
            "found {}, but backend {:?} has fewer servers ({}): convey never announces the addresses of its frontends",
            config.min_servers,
            backend.name,
            backend.servers.len()
        );
        report.warning(place, message);
    }
}

/// Parses a name that the kernel accepts for an interface.
fn interface(value: &DeValue<'_>) -> Result<String, String> {
    let is_name = |name: &&str| {
        (1..=MAX_NAME).contains(&name.len())
            && !matches!(*name, "." | "..")
            && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
    };
    let name = value.as_str().filter(is_name);
    name.map(str::to_owned).ok_or_else(|| not_allowed(value, "the name of an interface, such as \"lo\""))
}

/// Line of `convey check` about announced addresses.
pub(crate) fn describe(config: &Config) -> String {
    let Some(announce) = &config.announce else { return String::new() };
    let addresses: Vec<_> = config.announced().into_iter().collect();
    let addresses = list_or(&addresses, "no address");
    format!("{}: {addresses}\n", AnnounceKeys::describe(announce, &[]))
}

/// Changes of `[announce]` for the log of a reload.
pub(crate) fn changes(old: Option<&AnnounceConfig>, new: Option<&AnnounceConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (None, Some(new)) => {
            return vec![format!("announce: addresses of frontends are now on {}", new.interface)];
        }
        (Some(old), None) => {
            return vec![format!("announce: addresses of frontends are no longer on {}", old.interface)];
        }
    };
    below("announce", AnnounceKeys::changes(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const SERVED: &str = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                          backends.web.servers.a.addr = '10.0.0.2:80'\n";

    fn announce(text: &str) -> AnnounceConfig {
        let loaded = parse("c.toml", &format!("{SERVED}[announce]\n{text}")).unwrap();
        AnnounceConfig::clone(&loaded.config.announce.unwrap())
    }

    #[test]
    fn to_write_the_table_is_enough() {
        assert_eq!(parse("c.toml", SERVED).unwrap().config.announce, None);
        assert_eq!(announce(""), AnnounceConfig::default());
        let hold = Duration::from_millis(500);
        let said = AnnounceConfig { interface: "vips".to_owned(), hold, min_servers: 2 };
        assert_eq!(announce("interface = 'vips'\nhold = '500ms'\nmin_servers = 2"), said);
    }

    #[test]
    fn an_interface_has_a_name_that_the_kernel_takes() {
        for wrong in ["''", "'a b'", "'a/b'", "'..'", "'sixteen-letters-'", "1"] {
            let problems = parse("c.toml", &format!("{SERVED}[announce]\ninterface = {wrong}")).unwrap_err();
            assert!(problems[0].to_string().contains("announce.interface: found"), "{problems:?}");
        }
    }

    #[test]
    fn announce_without_address_or_enough_servers_is_warned_about() {
        let warnings = |text: &str| parse("c.toml", text).unwrap().warnings;
        let few = warnings(&format!("{SERVED}[announce]\nmin_servers = 2"));
        assert!(few[0].to_string().contains("backend \"web\" has fewer servers (1)"), "{few:?}");
        let wildcard = warnings(&format!("{}[announce]", SERVED.replace("10.0.0.1:", "0.0.0.0:")));
        assert!(wildcard[0].to_string().contains("every frontend listens on a wildcard"), "{wildcard:?}");
        assert!(warnings(&format!("{SERVED}[announce]")).is_empty());
    }

    #[test]
    fn changes_are_told_one_by_one() {
        let (old, new) = (announce(""), announce("hold = 5\nmin_servers = 3"));
        assert_eq!(
            changes(Some(&old), Some(&new)),
            ["announce.hold 2s -> 5s", "announce.min_servers 1 -> 3"]
        );
        assert_eq!(changes(None, Some(&new)), ["announce: addresses of frontends are now on lo"]);
        assert_eq!(changes(Some(&new), None), ["announce: addresses of frontends are no longer on lo"]);
    }
}
