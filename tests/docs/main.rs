//! Agreement of docs and code: each key, each reason, tests that exist, and links with a target.
#![allow(clippy::unwrap_used, reason = "tests")]

mod builds;
mod certificates;
mod crates;
mod examples;
mod keys;
mod limits;
mod metrics;
mod tools;

use convey_http_core::ExchangePhase;
use convey_model::DropReason;
use convey_snapshot::stats::Counter;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn pods_have_a_folder_for_the_control_socket() {
    for file in ["deployment.yaml", "daemonset.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file);
        let text = fs::read_to_string(path).unwrap();
        let mount = "            - name: run\n              mountPath: /run/convey\n";
        assert!(
            text.contains(mount) && text.contains("        - name: run\n          emptyDir:\n"),
            "{file}"
        );
    }
}

#[test]
fn the_reference_has_every_reason() {
    let page = read("docs/reference/reasons.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let [ends, answers, refusals, datagrams, packets, phases] = sections[..] else { panic!("six tables") };
    let all = |labels: Vec<&str>| labels.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(first_cells(ends), all(Counter::ENDS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(answers), all(Counter::ANSWERS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(refusals), all(Counter::REFUSALS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(datagrams), all(Counter::DROPS.iter().map(|(_, label)| *label).collect()));
    assert_eq!(first_cells(packets), all(DropReason::ALL.iter().map(|reason| reason.label()).collect()));
    assert_eq!(first_cells(phases), all(ExchangePhase::ALL.map(ExchangePhase::label).to_vec()));
}

#[test]
fn picture_of_http_phases_has_each_label() {
    let picture = read("docs/images/http-phases.svg");
    let labels: Vec<&str> =
        picture.split("class=\"phase\">").skip(1).filter_map(|rest| rest.split('<').next()).collect();
    for phase in ExchangePhase::ALL {
        let label = phase.label();
        assert!(labels.iter().any(|text| text.split(", ").any(|name| name == label)), "{label}: {labels:?}");
    }
}

#[test]
fn access_log_page_has_every_reason_of_an_end() {
    let page = read("docs/operate/access-log.md");
    let section = page.split("\n## ").find(|section| section.starts_with("How it ended")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `")).skip(1); // the heading
    let named: BTreeSet<String> = rows.flat_map(|row| code_spans(row.split(" | ").nth(1).unwrap())).collect();
    let labels = [&Counter::ENDS[..], &Counter::REFUSALS].concat().into_iter();
    let ends: BTreeSet<String> = labels.map(|(_, label)| label.to_owned()).collect();
    let differ: Vec<&String> = named.symmetric_difference(&ends).filter(|name| *name != "http").collect();
    assert!(differ.is_empty(), "only in one of them: {differ:?}");
}

#[test]
fn every_link_leads_to_a_file_or_heading() {
    let pages = pages();
    for page in ["README.md", "tc/README.md", "docs/guides/systemd.md", "benches/results/proxy.md"] {
        assert!(pages.contains(&page.into()), "{page}: {pages:?}");
    }
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

/// Text between backquotes in the first cell of each row.
fn first_cells(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
}

/// All pages of the repository.
fn pages() -> Vec<PathBuf> {
    files_below("").into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

/// All files below a directory, except build output and hidden files.
fn files_below(directory: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::from(directory)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let name = entry.unwrap().file_name();
            let is_left_out = name.to_string_lossy().starts_with('.') || name == "target";
            let path = folder.join(name);
            if is_left_out {
                continue;
            }
            let kind = if root().join(&path).is_dir() { &mut folders } else { &mut files };
            kind.push(path);
        }
    }
    files
}

fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Targets of links to files and headings in this repository.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    targets.filter(|target| !target.contains("://")).collect()
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

/// Anchors of a page's headings, as forges and mdBook make them.
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

/// All Rust files below a directory.
fn rust_files(directory: &str) -> Vec<String> {
    let files = files_below(directory).into_iter();
    files.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).map(read).collect()
}
