//! What the documentation says of the tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

#[test]
fn each_line_of_the_page_on_limits_names_a_test_that_exists() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    read_all(&top.join("src"), &mut code);
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
