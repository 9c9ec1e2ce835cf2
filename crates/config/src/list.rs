//! A list of servers in place of a configuration file: one `HOST:PORT` per line.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use toml::de::DeValue;

use super::file::ParsedFile;
use super::files::ReadFiles;
use super::problem::{Place, Placed, Report};
use super::texts::Texts;
use super::values::server_with_port;
use super::{LoadError, Loaded, Problem, Stats, check, read};

/// Settings that a list of servers does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListSettings {
    /// Listen address of the frontend.
    pub listen: SocketAddr,
    /// Statistics address.
    pub stats: SocketAddr,
}

/// Reads and validates a list of servers. All other settings have their defaults. The result has
/// one frontend `listen` and one backend `servers`; the name of each server is its text in the
/// list. `read_files` receives the list.
///
/// # Errors
/// [`LoadError::Unreadable`] if there is no text to read, [`LoadError::Invalid`] with all errors in
/// the text.
pub fn load_list(path: &Path, list: ListSettings, read_files: &mut ReadFiles) -> Result<Loaded, LoadError> {
    parse(&path.display().to_string(), &read(path, read_files)?, list).map_err(LoadError::Invalid)
}

fn parse(name: &str, text: &str, list: ListSettings) -> Result<Loaded, Vec<Problem>> {
    let texts = Texts::one(name, text);
    let text = texts.parts().next().map_or("", |(_, text)| text);
    let report = Report::new(&texts);
    let mut servers: Vec<Placed<_>> = Vec::new();
    let mut lines: HashMap<String, Place> = HashMap::new();
    for (at, entry) in entries(text) {
        let place = Place { key: String::new(), at };
        match server_with_port(&DeValue::String(entry.into())) {
            Err(message) => report.error(&place, message),
            Ok(value) => match lines.get(&value.to_string()) {
                Some(first) => {
                    report.warning(
                        &place,
                        format!("{value} is ignored: it is already in {}", report.line(first, &place)),
                    );
                }
                None => {
                    lines.insert(value.to_string(), place.clone());
                    servers.push(Placed { value, place });
                }
            },
        }
    }
    if entries(text).next().is_none() {
        report.error(&Place { key: String::new(), at: 0 }, "no server; write one HOST:PORT per line");
    }
    if servers.is_empty() {
        return Err(report.finish().err().unwrap_or_default());
    }
    let listen = Placed { value: list.listen, place: Place { key: "--listen".to_owned(), at: 0 } };
    let file = ParsedFile::of_list(listen, Stats { listen: list.stats, token: None }, servers, &report);
    let warnings = check(&file, report)?;
    Ok(Loaded::new(texts, file, warnings))
}

/// Entries of a list with the offset of each, without comments and empty lines.
fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    let lines = text.split_inclusive('\n').map(move |line| {
        let at = next;
        next += line.len();
        (at, line.split('#').next().unwrap_or_default())
    });
    lines
        .map(|(at, line)| (at + line.len() - line.trim_start().len(), line.trim()))
        .filter(|(_, e)| !e.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{Config, describe};
    use super::*;

    fn parsed(text: &str) -> Result<Loaded, Vec<String>> {
        let list = ListSettings {
            listen: "0.0.0.0:7777".parse().unwrap(),
            stats: "127.0.0.1:7000".parse().unwrap(),
        };
        parse("hosts.txt", text, list).map_err(|problems| problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn a_list_is_what_a_file_with_these_servers_would_be() {
        let list = "# the web\n\n10.0.0.2:80\r\n  app.internal:8080 # by name\n[2001:db8::1]:80";
        let file = r#"
            frontends.listen = { listen_addr = "0.0.0.0:7777", backend = "servers" }
            [backends.servers.servers]
            "10.0.0.2:80".addr = "10.0.0.2:80"
            "app.internal:8080".addr = "app.internal:8080"
            "[2001:db8::1]:80".addr = "[2001:db8::1]:80"
        "#;
        let (list, file) = (parsed(list).unwrap(), super::super::parse("config.toml", file).unwrap());
        assert_eq!(list.config, file.config);
        assert_eq!(list.warnings, []);
    }

    #[test]
    fn server_list_errors_are_reported_together_with_their_lines() {
        let allowed = "allowed: IP:port of one server, such as 10.0.0.1:80 or [2001:db8::1]:80, NAME:port, or unix:/PATH";
        assert_eq!(
            parsed("10.0.0.2:80\n  10.0.0.3 # no port\n10.0.0.4:80 weight=3\n").unwrap_err(),
            [
                format!("hosts.txt:2:3: the port is missing, found \"10.0.0.3\"; {allowed}"),
                format!("hosts.txt:3:1: found \"10.0.0.4:80 weight=3\"; {allowed}"),
            ]
        );
    }

    #[test]
    fn a_list_of_nobody_is_refused() {
        for nobody in ["", "# none\n\n"] {
            assert_eq!(
                parsed(nobody).unwrap_err(),
                ["hosts.txt:1:1: no server; write one HOST:PORT per line"]
            );
        }
        let wrong = parsed("nobody\n").unwrap_err();
        assert!(wrong[0].contains("the port is missing") && wrong.len() == 1, "{wrong:?}");
    }

    #[test]
    fn a_server_that_stands_there_twice_is_one() {
        let loaded = parsed("10.0.0.2:80\nApp:80\n10.0.0.2:80\napp:80\n").unwrap();
        let told: Vec<String> = loaded.warnings.iter().map(Problem::to_string).collect();
        assert_eq!(
            told,
            [
                "hosts.txt:3:1: 10.0.0.2:80 is ignored: it is already in line 1",
                "hosts.txt:4:1: app:80 is ignored: it is already in line 2"
            ]
        );
        let Config { backends, .. } = &loaded.config;
        assert_eq!((backends[0].servers.len(), backends[0].named.len()), (1, 1));
        assert!(describe(&loaded.config).contains("  server app:80       app:80       weight 1, for each"));
    }

    #[test]
    fn a_server_that_is_the_frontend_itself_is_refused() {
        let told = "hosts.txt:2:1: 127.0.0.1:7777 would send connections back to frontend \"listen\", which listens on 0.0.0.0:7777";
        assert_eq!(parsed("10.0.0.2:80\n127.0.0.1:7777\n").unwrap_err(), [told]);
    }
}
