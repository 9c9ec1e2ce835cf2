//! What the docs say of the code: each key, each reason, tests that exist, and links that lead somewhere.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use convey::config;
use convey::model::DropReason;
use convey::stats::Counter;

/// A file without values that are wrong, in which each table has one key that nobody knows.
const UNKNOWN_EVERYWHERE: &str = "
unknown = 1
[frontends.web]
unknown = 1
listen_addr = '10.0.0.1:80'
backend = 'web'
[backends.web]
unknown = 1
[backends.web.health_check]
unknown = 1
[backends.web.outlier_detection]
unknown = 1
[backends.web.servers.a]
unknown = 1
addr = '10.0.0.2:80'
[timeouts]
unknown = 1
[dns]
unknown = 1
[stats]
unknown = 1
[passthrough]
unknown = 1
[passthrough.timeouts]
unknown = 1
";

#[test]
fn the_reference_has_every_key_that_the_file_may_have_and_no_other() {
    let problems = config::parse("c.toml", UNKNOWN_EVERYWHERE).unwrap_err();
    let known: BTreeSet<String> =
        problems.iter().flat_map(|problem| keys_allowed(&problem.to_string())).collect();
    let told = keys_of_the_reference(&read("docs/reference/keys.md"));
    assert!(known.contains("[backends.NAME.health_check] kind"), "{problems:?}");
    assert_eq!(told, known);
}

#[test]
fn the_reference_has_every_reason() {
    let page = read("docs/reference/reasons.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let [ends, datagrams, packets] = sections[..] else { panic!("three tables") };
    let all = |labels: Vec<&str>| labels.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(first_cells(ends), all(Counter::ENDS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(datagrams), all(Counter::DROPS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(packets), all(DropReason::ALL.iter().map(|reason| reason.label()).collect()));
}

#[test]
fn every_link_leads_to_a_file_or_heading() {
    let pages = pages();
    assert!(pages.len() > 20, "{pages:?}");
    let broken: Vec<String> = pages
        .iter()
        .flat_map(|page| links(&read(page)).into_iter().map(move |link| (page, link)))
        .filter(|(page, link)| !leads_somewhere(page, link))
        .map(|(page, link)| format!("{}: {link}", page.display()))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_lists_each_of_its_pages_once() {
    let summary = links(&read("docs/SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = summary.iter().map(|link| Path::new("docs").join(link)).collect();
    assert_eq!(listed.len(), summary.len(), "{summary:?}");
    let written: BTreeSet<PathBuf> = pages()
        .into_iter()
        .filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(listed, written);
}

#[test]
fn each_line_of_the_page_on_limits_names_a_test_that_exists() {
    let top = root();
    let mut code = String::new();
    for place in ["src", "crates"] {
        read_all(&top.join(place), &mut code);
    }
    read_all(&top.join("tests"), &mut code);
    let page = fs::read_to_string(top.join("docs/state-and-limits.md")).unwrap();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.ends_with(" |") && !line.starts_with("| state | "));
    let mut stories = 0;
    for row in rows {
        let story = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let names: Vec<&str> = story.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || story == "the same", "no story: {row}");
        for name in names.iter().map(|path| path.rsplit("::").next().unwrap()) {
            let exists = [format!("fn {name}("), format!("fn {name}<")].iter().any(|f| code.contains(f));
            assert!(exists, "no test is called {name}");
            stories += 1;
        }
    }
    assert!(stories > 40, "where are the tables?");
}

/// The keys of one line such as `c.toml:4:1: frontends.web.unknown: unknown key (allowed here: backend, mode)`.
fn keys_allowed(line: &str) -> Vec<String> {
    let Some((before, allowed)) = line.split_once("(allowed here: ") else { return Vec::new() };
    let path = before.split(": ").find(|part| part.ends_with("unknown")).unwrap_or_default();
    let table = path.trim_end_matches("unknown").trim_end_matches('.');
    let table = table.replace(".web", ".NAME").replace("servers.a", "servers.NAME");
    let prefix = if table.is_empty() { String::new() } else { format!("[{table}] ") };
    allowed.trim_end_matches(')').split(", ").map(|key| format!("{prefix}{key}")).collect()
}

fn keys_of_the_reference(page: &str) -> BTreeSet<String> {
    let mut prefix = String::new();
    let mut keys = BTreeSet::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            prefix = heading.strip_prefix('`').map_or(String::new(), |table| table.replace('`', "") + " ");
        }
        keys.extend(first_cells(line).into_iter().map(|key| format!("{prefix}{key}")));
    }
    keys
}

/// What stands between backquotes in the first cell of each row.
fn first_cells(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benches/README.md"]
            .map(PathBuf::from)
            .into();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            match path.extension() {
                Some(extension) if extension == "md" => pages.push(path),
                Some(_) => {}
                None => folders.push(path),
            }
        }
    }
    pages
}

/// Targets of links to files and headings here.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    targets.filter(|target| !target.starts_with("http")).collect()
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap_or(Path::new("")).join(file),
    };
    let full = root().join(&target);
    full.exists() && (heading.is_empty() || headings(&fs::read_to_string(full).unwrap()).contains(heading))
}

/// The headings of a page, as forges and mdBook make anchors of them.
fn headings(page: &str) -> BTreeSet<String> {
    let titles =
        page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    titles
        .map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Appends every Rust file below a directory.
fn read_all(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
