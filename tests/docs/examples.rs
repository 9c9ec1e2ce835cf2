//! Examples that readers paste: convey accepts the commands, and loads the configurations.

use clap::Parser;
use clap::error::ErrorKind;
use convey_cli::Cli;
use toml::{Table, Value};

use crate::{certificates, code_spans, pages, read};

#[test]
fn convey_takes_every_command_that_a_page_shows() {
    let mut commands = 0;
    for page in pages() {
        let text = read(&page);
        let spans = code_spans(&text).into_iter().filter(|span| span.starts_with("convey "));
        for line in code_blocks(&text).iter().flat_map(|block| lines_of_shell(block)).chain(spans) {
            let Some(arguments) = arguments_of_convey(&line) else { continue };
            if let Err(error) = Cli::try_parse_from([vec!["convey".to_owned()], arguments].concat()) {
                let asks_for_help =
                    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                assert!(asks_for_help, "{}: {line}: {error}", page.display());
            }
            commands += 1;
        }
    }
    assert!(commands > 40, "only {commands} commands were found");
}

#[test]
fn convey_loads_every_configuration_that_a_page_shows() {
    let mut configurations = 0;
    for page in pages() {
        for block in code_blocks(&read(&page)).into_iter().filter(|block| is_configuration(block)) {
            // The value of an environment variable depends on the reader.
            let text = with_networks(&block.replace("${", "of reader: {"));
            let table: Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            let text = toml::to_string(&completed(table)).unwrap();
            let loaded = convey_config::parse("c.toml", &text);
            let loaded =
                loaded.unwrap_or_else(|problems| panic!("{}: {problems:#?}\n{text}", page.display()));
            assert!(loaded.warnings.is_empty(), "{}: {:#?}", page.display(), loaded.warnings);
            configurations += 1;
        }
    }
    assert!(configurations > 12, "only {configurations} configurations were found");
}

/// Indented blocks and fenced blocks. Code in a list item counts as text.
fn code_blocks(page: &str) -> Vec<String> {
    let (mut blocks, mut is_fenced, mut is_after_text) = (vec![String::new()], false, false);
    for line in page.lines() {
        let indented = line.strip_prefix("    ").filter(|_| !is_after_text);
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            blocks.push(String::new());
        } else if let Some(code) = indented.filter(|_| !is_fenced).or(is_fenced.then_some(line)) {
            *blocks.last_mut().unwrap() += &format!("{code}\n");
        } else if line.is_empty() {
            *blocks.last_mut().unwrap() += "\n";
            is_after_text = false;
        } else {
            blocks.push(String::new());
            is_after_text = true;
        }
    }
    blocks.retain(|block| !block.trim().is_empty());
    blocks
}

/// Lines that end with a backslash continue on the next line.
fn lines_of_shell(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// Arguments of convey in a line of shell: after `convey`, or after the `--` of `cargo run`.
fn arguments_of_convey(line: &str) -> Option<Vec<String>> {
    let line = line.split(" # ").next()?.trim_start_matches("$ ");
    let is_setting = |word: &&str| *word == "sudo" || word.contains('=');
    let mut words = line.split_whitespace().skip_while(is_setting);
    let program = words.next()?;
    let rest: Vec<&str> = words.collect();
    let arguments = match (program, rest.first()) {
        ("cargo", Some(&"run")) if !rest.contains(&"--example") => {
            rest.split(|word| *word == "--").nth(1).unwrap_or_default()
        }
        // The first line of a printed screen: the program's name and version.
        (_, Some(word)) if word.starts_with(|c: char| c.is_ascii_digit()) => return None,
        _ if program.rsplit('/').next() == Some("convey") => &rest,
        _ => return None,
    };
    // A page on commands has placeholders for values.
    let value = |word: &&str| match *word {
        "PORT" => "7777".to_owned(),
        "KIND" => "man".to_owned(),
        word => word.to_owned(),
    };
    Some(arguments.iter().map(value).collect())
}

/// Replaces each list of networks in a file of the reader, such as `"@cdn.txt"`, by a network.
fn with_networks(text: &str) -> String {
    let mut parts = text.split("\"@");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "\"192.0.2.0/24\"" + part.split_once('"').unwrap().1)
}

/// Whether a block begins with a table or a key of the configuration file, in TOML.
fn is_configuration(block: &str) -> bool {
    let first = block.lines().find(|line| !line.is_empty()).unwrap_or_default();
    let tables = [
        "frontends",
        "backends",
        "timeouts",
        "dns",
        "log",
        "access_log",
        "stats",
        "passthrough",
        "privileges",
        "acme",
        "announce",
    ];
    let is_table =
        first.strip_prefix('[').is_some_and(|name| tables.iter().any(|table| name.starts_with(table)));
    is_table
        || ["mode = ", "include = ", "state_dir = ", "workers = "].iter().any(|key| first.starts_with(key))
}

/// Returns the file with the frontends, backends and servers that it lacks.
fn completed(mut file: Table) -> Table {
    let backends: Vec<String> = table(&mut file, "backends").keys().cloned().collect();
    let with_files = with_files(table(&mut file, "backends"));
    let frontends = table(&mut file, "frontends");
    if frontends.is_empty() {
        let backend = backends.first().map_or("added", String::as_str);
        table(frontends, "added").insert("backend".into(), backend.into());
        if !with_files.is_empty() {
            table(frontends, "added").insert("mode".into(), "http".into());
        }
    }
    let mut used = Vec::new();
    for frontend in frontends.iter_mut().filter_map(|(_, frontend)| frontend.as_table_mut()) {
        let listens = frontend.entry("listen_addr").or_insert("10.0.0.1:80".into()).to_string();
        if let Some(Value::Table(tls)) = frontend.get_mut("tls") {
            certificates::put_in_place(tls);
        }
        let has_routes_alone = frontend.contains_key("routes") && !frontend.contains_key("backend");
        if frontend.contains_key("redirect") || has_routes_alone {
            continue;
        }
        let backend = frontend.entry("backend").or_insert("added".into()).as_str().unwrap();
        used.push((
            backend.to_owned(),
            if listens.contains("[2001:") { "[2001:db8::5]:80" } else { "10.0.0.5:80" },
        ));
    }
    for (_, backend) in table(&mut file, "backends").iter_mut() {
        if let Some(Value::Table(tls)) = backend.get_mut("tls") {
            certificates::put_in_place(tls);
        }
        if let Some(Value::Table(schemes)) = backend.get_mut("quic_lb") {
            schemes
                .iter_mut()
                .filter_map(|(_, scheme)| scheme.as_table_mut())
                .for_each(certificates::put_in_place);
        }
    }
    for (backend, server) in used.into_iter().filter(|(backend, _)| !with_files.contains(backend)) {
        let servers = table(table(table(&mut file, "backends"), &backend), "servers");
        if servers.is_empty() {
            table(servers, "added").insert("addr".into(), server.into());
        }
    }
    file
}

/// Names of the backends that serve files. A backend with only its options gets a directory.
fn with_files(backends: &mut Table) -> Vec<String> {
    let mut names = Vec::new();
    for (name, backend) in backends.iter_mut() {
        let Some(backend) = backend.as_table_mut() else { continue };
        if backend.contains_key("file_options") {
            backend.entry("files").or_insert("/srv/www".into());
        }
        names.extend(backend.contains_key("files").then(|| name.clone()));
    }
    names
}

fn table<'a>(of: &'a mut Table, name: &str) -> &'a mut Table {
    let table = of.entry(name).or_insert_with(|| Value::Table(Table::new()));
    table.as_table_mut().unwrap_or_else(|| panic!("{name} is no table"))
}
