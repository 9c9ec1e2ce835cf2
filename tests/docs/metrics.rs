//! The page on metrics: it has each metric of `/metrics`, and no other.

use std::collections::BTreeSet;

use crate::{code_spans, read, rust_files};

const PAGE: &str = "docs/reference/metrics.md";

#[test]
fn page_on_metrics_has_each_metric_and_no_other() {
    let described: BTreeSet<String> = read(PAGE)
        .lines()
        .filter_map(|line| code_spans(line.strip_prefix("| ")?.split(" | ").next()?).into_iter().next())
        .collect();
    let served = served();
    assert!(served.len() > 100, "where are the metrics? {served:?}");
    let missing: Vec<_> = served.difference(&described).collect();
    assert!(missing.is_empty(), "{PAGE} lacks {missing:?}");
    let unknown: Vec<_> = described.difference(&served).collect();
    assert!(unknown.is_empty(), "{PAGE} has {unknown:?}, which convey does not serve");
}

/// Names in the code of the page; each name in `traffic` with all of its prefixes.
fn served() -> BTreeSet<String> {
    let code = rust_files("crates/admin/src/prometheus").concat();
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let names = |text: &str| text.starts_with("convey_") || text.starts_with("process_");
    let mut served: BTreeSet<String> =
        code.split('"').filter(|text| is_name(text) && names(text)).map(str::to_owned).collect();
    let behind = |marker: &str| -> Vec<String> {
        code.split(marker).skip(1).filter_map(|rest| Some(rest.split('"').next()?.to_owned())).collect()
    };
    let (prefixes, suffixes) = (behind("traffic(page, \""), behind("&name(\""));
    for prefix in behind("traffic(&mut page, \"").iter().chain(&prefixes) {
        served.remove(prefix);
        served.extend(suffixes.iter().map(|suffix| format!("{prefix}_{suffix}")));
    }
    served
}
