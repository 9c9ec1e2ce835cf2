//! `[announce]`: addresses that convey adds to an interface while it can serve.

use std::sync::Arc;
use std::time::Duration;

use convey_model::AnnounceConfig;
use toml::de::DeValue;

use super::Config;
use super::diff::{change, duration, list_or};
use super::file::ParsedFile;
use super::problem::{Place, Placed, Report};
use super::reader::TomlTable;
use super::tables::{ParsedBackend, ParsedFrontend};
use super::values::{integer, not_allowed, seconds};

/// Longest name of an interface in bytes: `IFNAMSIZ` without the final NUL (netdevice(7)).
const MAX_NAME: usize = 15;

/// `[announce]` as the file has it.
#[derive(Debug, Clone)]
pub(super) struct ParsedAnnounce {
    place: Place,
    pub(super) interface: Option<Placed<String>>,
    min_servers: Option<Placed<u32>>,
    pub(super) config: Arc<AnnounceConfig>,
}

impl ParsedAnnounce {
    /// Place of the interface's name, or else of the table.
    pub(super) fn interface_place(&self) -> &Place {
        self.interface.as_ref().map_or(&self.place, |interface| &interface.place)
    }
}

/// Reads the table; `None` without one.
pub(super) fn read(root: &mut TomlTable<'_>) -> Option<ParsedAnnounce> {
    let is_there = root.has("announce");
    let mut table = root.table("announce");
    let default = AnnounceConfig::default();
    let place = table.place.clone();
    let interface = table.optional("interface", interface);
    let hold = table.or("hold", default.hold, seconds(Duration::ZERO));
    let min_servers = table.optional("min_servers", integer(1..=u32::MAX));
    table.finish();
    let config = AnnounceConfig {
        interface: interface.as_ref().map_or(default.interface, |found| found.value.clone()),
        hold,
        min_servers: min_servers.as_ref().map_or(default.min_servers, |found| found.value),
    };
    is_there.then(|| ParsedAnnounce { place, interface, min_servers, config: config.into() })
}

/// Reports addresses that would never be announced.
pub(super) fn check(file: &ParsedFile, report: &Report<'_>) {
    let Some(ParsedAnnounce { place, min_servers, config, .. }) = &file.announce else { return };
    let listens = file.frontends.iter().flat_map(|frontend| &frontend.listen);
    if listens.clone().next().is_some()
        && AnnounceConfig::addresses_of(listens.map(|listen| &listen.value)).is_empty()
    {
        let message = "has no effect: no frontend has an address to announce, for wildcards and addresses of this host alone are none";
        report.warning(place, message);
    }
    let Some(Placed { place, .. }) = min_servers else { return };
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
            "found {}, but backend {:?} has {} servers: the addresses of its frontends are never announced",
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

/// Description of the announced addresses.
pub(super) fn describe(config: &Config) -> String {
    let Some(announce) = &config.announce else { return String::new() };
    let AnnounceConfig { interface, hold, min_servers } = &**announce;
    let addresses: Vec<_> = config.announced().into_iter().collect();
    let addresses = list_or(&addresses, "no address");
    format!(
        "announces on {interface}, held for {}s, with {min_servers} or more servers: {addresses}\n",
        hold.as_secs_f64()
    )
}

/// Log text of the differences between two tables.
pub(super) fn changes(old: Option<&AnnounceConfig>, new: Option<&AnnounceConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (None, Some(new)) => {
            return vec![format!("announce: addresses of frontends go on {}", new.interface)];
        }
        (Some(old), None) => {
            return vec![format!("announce: addresses of frontends leave {}", old.interface)];
        }
    };
    // Destructured, so that a new field cannot be forgotten.
    let AnnounceConfig { interface, hold, min_servers } = old;
    let changes = [
        change("announce.interface", interface, &new.interface),
        duration("announce.hold", *hold, new.hold),
        change("announce.min_servers", *min_servers, new.min_servers),
    ];
    changes.into_iter().flatten().collect()
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
        assert!(few[0].to_string().contains("backend \"web\" has 1 servers"), "{few:?}");
        let wildcard = warnings(&format!("{}[announce]", SERVED.replace("10.0.0.1:", "0.0.0.0:")));
        assert!(wildcard[0].to_string().contains("no frontend has an address to announce"), "{wildcard:?}");
        assert!(warnings(&format!("{SERVED}[announce]")).is_empty());
    }

    #[test]
    fn changes_are_told_one_by_one() {
        let (old, new) = (announce(""), announce("hold = 5\nmin_servers = 3"));
        assert_eq!(
            changes(Some(&old), Some(&new)),
            ["announce.hold 2s -> 5s", "announce.min_servers 1 -> 3"]
        );
        assert_eq!(changes(None, Some(&new)), ["announce: addresses of frontends go on lo"]);
        assert_eq!(changes(Some(&new), None), ["announce: addresses of frontends leave lo"]);
    }
}
