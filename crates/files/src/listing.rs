//! The page that lists a directory. Pure.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Most names that a page has.
pub const MAX_LISTED: usize = 10_000;

/// Characters of a name that stand in a link as they are (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a directory has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Its name, which may be no text.
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Its length in bytes.
    pub len: u64,
}

/// The page, in HTML. `directory` is its name as the root has it. Directories come first, each kind by name.
pub fn page(directory: &[u8], mut files: Vec<ListedFile>, is_cut: bool) -> String {
    files.sort_unstable_by(|a, b| (!a.is_directory, &a.name).cmp(&(!b.is_directory, &b.name)));
    let title = escaped(&format!("/{}", String::from_utf8_lossy(directory)));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\nbody {{ font-family: system-ui, sans-serif; margin: 2em; color-scheme: light dark; }}\n\
         td {{ padding: 0.1em 2em 0.1em 0; }}\ntd + td {{ text-align: right; }}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n<table>\n"
    );
    if !directory.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td></tr>\n");
    }
    for ListedFile { name, is_directory, len } in &files {
        let slash = if *is_directory { "/" } else { "" };
        let (link, text) = (percent_encode(name, UNRESERVED), escaped(&String::from_utf8_lossy(name)));
        let len = if *is_directory { String::new() } else { len.to_string() };
        // A text that is written in memory never fails.
        let _ =
            writeln!(page, "<tr><td><a href=\"./{link}{slash}\">{text}{slash}</a></td><td>{len}</td></tr>");
    }
    page.push_str("</table>\n");
    if is_cut {
        let _ = writeln!(page, "<p>There are more than these {MAX_LISTED}.</p>");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &[u8], is_directory: bool) -> ListedFile {
        ListedFile { name: name.to_vec(), is_directory, len: 7 }
    }

    #[test]
    fn a_directory_is_listed_directories_first() {
        let page = page(b"docs", vec![file(b"b.txt", false), file(b"z", true), file(b"a.txt", false)], false);
        let links: Vec<&str> = page.lines().filter(|line| line.starts_with("<tr>")).collect();
        assert_eq!(
            links,
            [
                "<tr><td><a href=\"../\">../</a></td><td></td></tr>",
                "<tr><td><a href=\"./z/\">z/</a></td><td></td></tr>",
                "<tr><td><a href=\"./a.txt\">a.txt</a></td><td>7</td></tr>",
                "<tr><td><a href=\"./b.txt\">b.txt</a></td><td>7</td></tr>",
            ]
        );
        assert!(page.contains("<title>/docs</title>"));
    }

    #[test]
    fn no_name_is_taken_for_html_or_for_another_place() {
        let names: [&[u8]; 4] =
            [b"<script>alert(1)</script>", b"javascript:alert(1)", b"\" onclick=\"x", b"a\xffb?c#d"];
        let page = page(b"<b>", names.map(|name| file(name, false)).to_vec(), true);
        for bad in ["<script", "<b>", "href=\"javascript", "\" onclick", "./a\u{fffd}b?c"] {
            assert!(!page.contains(bad), "{bad}: {page}");
        }
        assert!(
            page.contains("href=\"./javascript%3Aalert%281%29\"") && page.contains("./a%FFb%3Fc%23d"),
            "{page}"
        );
        assert!(page.contains("more than these 10000"));
    }
}
