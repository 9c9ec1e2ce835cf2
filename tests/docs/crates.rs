//! The table of crates in ARCHITECTURE.md: each crate has a row, below the crates that it uses.

use std::collections::BTreeSet;
use std::fs;

use crate::{code_spans, read, root};

#[test]
fn architecture_table_lists_each_crate_below_the_crates_that_it_uses() {
    let page = read("ARCHITECTURE.md");
    let rows: Vec<(String, BTreeSet<String>)> = page.lines().filter_map(row).collect();
    let mut above = BTreeSet::new();
    for (name, described) in &rows {
        let used = dependencies(name);
        let described: BTreeSet<String> = described.intersection(&crates()).cloned().collect();
        assert_eq!(described, used, "ARCHITECTURE.md, uses of convey-{name}");
        assert!(above.is_superset(&used), "convey-{name} has to be below the crates that it uses: {used:?}");
        above.insert(name.clone());
    }
    assert_eq!(above, crates(), "rows of ARCHITECTURE.md");
}

/// Name of the crate of a row, without `convey-`, and the code spans of its last cell.
fn row(line: &str) -> Option<(String, BTreeSet<String>)> {
    let (name, _) = line.strip_prefix("| `convey-")?.split_once('`')?;
    let uses = code_spans(line.strip_suffix(" |")?.rsplit(" | ").next()?);
    Some((name.to_owned(), uses.into_iter().collect()))
}

/// Names of the folders below `crates`.
fn crates() -> BTreeSet<String> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect()
}

/// Crates of the workspace that a crate depends on, tests left out.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest: toml::Table = read(format!("crates/{name}/Cargo.toml")).parse().unwrap();
    let Some(table) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return BTreeSet::new();
    };
    table.keys().filter_map(|name| name.strip_prefix("convey-")).map(str::to_owned).collect()
}
