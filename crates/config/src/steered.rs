//! Configuration with servers that operators added or removed at run time. Pure.

use toml::de::DeValue;

use super::mode::{HostNetwork, validate_mode};
use super::problem::{Place, Placed, Problem, Report};
use super::reader::join;
use super::tables::ParsedServer;
use super::values::server_address;
use super::{Loaded, validate};
use convey_model::AddedServer;

/// Server that an operator added or removed.
#[derive(Debug, Clone, Copy)]
pub struct ServerChange<'a> {
    /// Name of the backend.
    pub backend: &'a str,
    /// Name of the server.
    pub server: &'a str,
    /// Added server; `None` if the server is removed.
    pub added: Option<&'a AddedServer>,
}

/// Checks an address by the rules for servers in a file.
///
/// # Errors
/// Operator-facing message about an invalid address.
pub fn check_server_address(text: &str) -> Result<(), String> {
    server_address(&DeValue::String(text.into())).map(drop)
}

impl Loaded {
    /// Applies run-time changes of servers. The file takes precedence: adding a server whose name
    /// is in the file, or removing a server that is not in the file, changes nothing. The second
    /// result has a `bool` for each change: whether the change has an effect.
    pub fn with_servers(&self, changes: &[ServerChange<'_>]) -> (Loaded, Vec<bool>) {
        let mut steered = self.clone();
        let effects = changes.iter().map(|change| steered.apply(*change)).collect();
        for backend in &mut steered.config.backends {
            backend.servers.sort_by(|a, b| a.name.cmp(&b.name));
            backend.named.sort_by(|a, b| a.name.cmp(&b.name));
        }
        (steered, effects)
    }

    /// Validates a file with run-time changes, on a host with this network. Returns warnings.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn check_servers(&self, network: &HostNetwork<'_>) -> Result<Vec<Problem>, Vec<Problem>> {
        let report = Report::new(&self.source.texts);
        validate::check(&self.source.file, &report);
        let mut odd = report.finish()?;
        odd.extend(validate_mode(self, network)?);
        Ok(odd)
    }

    /// Dotted key of a server's address, as in problems.
    pub fn key_of_server(&self, backend: &str, server: &str) -> String {
        join(&join(&join("backends", backend), "servers"), server) + ".addr"
    }

    fn apply(&mut self, ServerChange { backend: name, server, added }: ServerChange<'_>) -> bool {
        let key = self.key_of_server(name, server);
        let at = self.source.texts.len();
        let Some(model) = self.config.backends.iter_mut().find(|backend| backend.name == name) else {
            return false;
        };
        let Some(parsed) = self.source.file.backends.iter_mut().find(|backend| backend.name == name) else {
            return false;
        };
        let is_there = parsed.servers.iter().any(|parsed| parsed.name == server);
        if is_there == added.is_some() {
            return false;
        }
        let Some(AddedServer { addr, settings }) = added else {
            parsed.servers.retain(|parsed| parsed.name != server);
            model.servers.retain(|model| model.name != server);
            model.named.retain(|named| named.name != server);
            return true;
        };
        let Ok(value) = server_address(&DeValue::String(addr.as_str().into())) else { return false };
        let addr = Some(Placed { value, place: Place { key, at } });
        let added = ParsedServer { name: server.to_owned(), addr, settings: *settings, quic_server_id: None };
        model.servers.extend(added.model());
        model.named.extend(added.named());
        parsed.servers.push(added);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::parse;
    use convey_model::ServerSettings;

    const FILE: &str = "[frontends.web]\nlisten_addr = '10.0.0.1:80'\nbackend = 'web'\n[backends.web.servers]\n\
                        a = { addr = '10.0.0.2:80' }\nb = { addr = '10.0.0.3:80' }\n";

    fn added(addr: &str) -> AddedServer {
        AddedServer { addr: addr.to_owned(), settings: ServerSettings::default() }
    }

    fn checked(text: &str, changes: &[ServerChange<'_>]) -> Result<Vec<String>, Vec<String>> {
        let (steered, _) = parse("c.toml", text).unwrap().with_servers(changes);
        let own = BTreeSet::from(["10.0.0.1".parse().unwrap()]);
        let network = HostNetwork { interfaces: &[], own: &own, hop_to: &|_| None, refusal: &|_| None };
        let lines = |problems: Vec<Problem>| problems.into_iter().map(|problem| problem.message).collect();
        steered.check_servers(&network).map(lines).map_err(lines)
    }

    fn change<'a>(server: &'a str, added: Option<&'a AddedServer>) -> ServerChange<'a> {
        ServerChange { backend: "web", server, added }
    }

    #[test]
    fn runtime_changes_add_and_remove_servers_but_configured_ones_stay() {
        let loaded = parse("c.toml", FILE).unwrap();
        let (by_address, by_name) = (added("10.0.0.9:80"), added("app.internal:80"));
        let nowhere = ServerChange { backend: "mail", ..change("x", Some(&by_address)) };
        let changes = [
            change("c", Some(&by_address)),
            change("a", None),
            change("b", Some(&by_address)),
            change("x", None),
            change("app", Some(&by_name)),
            nowhere,
        ];
        let (steered, effects) = loaded.with_servers(&changes);
        assert_eq!(effects, [true, true, false, false, true, false]);
        let backend = &steered.config.backends[0];
        let servers: Vec<_> =
            backend.servers.iter().map(|server| format!("{} {}", server.name, server.addr)).collect();
        assert_eq!(servers, ["b 10.0.0.3:80", "c 10.0.0.9:80"]);
        assert_eq!(backend.named[0].host, "app.internal");
        assert_eq!(loaded.config, parse("c.toml", FILE).unwrap().config, "the file itself stays");
    }

    #[test]
    fn the_rules_are_those_of_the_file() {
        let passthrough = format!("mode = 'passthrough'\n{FILE}");
        let dsr = format!("mode = 'dsr'\n{FILE}");
        for (text, addr, told) in [
            (FILE, "10.0.0.1:80", "10.0.0.1:80 would send connections back to frontend \"web\""),
            (FILE, "10.0.0.9", "found \"10.0.0.9\" without a port"),
            (&passthrough, "app.internal:80", "host names work only in modes proxy and http"),
            (&passthrough, "[2001:db8::9]:80", "must be of one family"),
            (&passthrough, "127.0.0.1:80", "127.0.0.1 is this host itself"),
            (&dsr, "10.0.0.9:81", "81"),
        ] {
            let refused = checked(text, &[change("c", Some(&added(addr)))]).unwrap_err();
            assert!(refused.iter().any(|line| line.contains(told)), "{addr}: {refused:?}");
        }
        let odd = checked(FILE, &[change("c", Some(&added("10.0.0.2:80")))]).unwrap();
        assert!(
            odd.iter()
                .any(|line| line.starts_with("10.0.0.2:80 is also the value of backends.web.servers.a.addr")),
            "{odd:?}"
        );
        let again = added("10.0.0.9:80");
        let odd = checked(FILE, &[change("c", Some(&again)), change("d", Some(&again))]).unwrap();
        let told = "10.0.0.9:80 is also the value of backends.web.servers.c.addr (added at run time)";
        assert!(odd.iter().any(|line| line == told), "a server that is in no file has no line: {odd:?}");
        let refused = checked(FILE, &[change("a", None), change("b", None)]).unwrap_err();
        assert!(refused[0].starts_with("no servers"), "{refused:?}");
    }

    #[test]
    fn an_address_is_checked_by_itself() {
        assert_eq!(check_server_address("10.0.0.1:80"), Ok(()));
        assert!(check_server_address("10.0.0:80").unwrap_err().contains("allowed: IP:port of one server"));
    }
}
