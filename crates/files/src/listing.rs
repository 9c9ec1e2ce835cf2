//! HTML page of a directory listing, written in parts. Pure.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Maximum number of names on a page.
pub const MAX_LISTED: usize = 10_000;

/// Characters that are not escaped in a link (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A file or directory of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Name of the file, which need not be UTF-8.
    pub name: Vec<u8>,
    /// Whether the entry is a directory.
    pub is_directory: bool,
    /// Length of the file in bytes.
    pub len: u64,
}

/// Content of a directory, in the order of its page: directories first, then files, each sorted by
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    files: Vec<ListedFile>,
    is_cut: bool,
}

/// Position within the page of a directory. The position stays valid if the directory is listed
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PagePosition {
    /// No part of the page was written yet.
    Start,
    /// The row of this file was written last.
    Behind {
        /// Whether that file is a directory.
        is_directory: bool,
        /// Name of that file.
        name: Vec<u8>,
    },
    /// The page is complete.
    End,
}

impl ListedFile {
    fn key(&self) -> (bool, &[u8]) {
        (!self.is_directory, &self.name)
    }
}

impl Listing {
    /// Creates a listing, and sorts its files. `is_cut`: whether the directory has more files than
    /// the listing.
    pub fn new(mut files: Vec<ListedFile>, is_cut: bool) -> Listing {
        files.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        Listing { files, is_cut }
    }

    /// Memory of the listing in bytes.
    pub fn memory(&self) -> usize {
        let names: usize = self.files.iter().map(|file| file.name.capacity()).sum();
        names + self.files.capacity() * size_of::<ListedFile>()
    }

    /// Returns the part of the HTML page that begins at `from`, and the position after this part.
    /// The part ends with the row that makes it at least `enough` bytes long. `directory` is the
    /// path below the root.
    pub fn part(&self, directory: &[u8], from: &PagePosition, enough: usize) -> (String, PagePosition) {
        let mut page = String::new();
        let next = match from {
            PagePosition::End => return (page, PagePosition::End),
            PagePosition::Start => {
                write_begin(&mut page, directory);
                0
            }
            PagePosition::Behind { is_directory, name } => {
                let last = (!is_directory, &name[..]);
                self.files.partition_point(|file| file.key() <= last)
            }
        };
        for (at, file) in self.files.iter().enumerate().skip(next) {
            write_row(&mut page, file);
            if page.len() >= enough && at + 1 < self.files.len() {
                let ListedFile { name, is_directory, .. } = file.clone();
                return (page, PagePosition::Behind { is_directory, name });
            }
        }
        page.push_str("</table>\n");
        if self.is_cut {
            let _ = writeln!(page, "<p>The directory has more entries than the {MAX_LISTED} shown.</p>");
        }
        page.push_str("</body>\n</html>\n");
        (page, PagePosition::End)
    }
}

fn write_begin(page: &mut String, directory: &[u8]) {
    let title = escaped(&format!("/{}", String::from_utf8_lossy(directory)));
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\nbody {{ font-family: system-ui, sans-serif; margin: 2em; color-scheme: light dark; }}\n\
         td {{ padding: 0.1em 2em 0.1em 0; }}\ntd + td {{ text-align: right; }}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n<table>\n"
    );
    if !directory.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td></tr>\n");
    }
}

fn write_row(page: &mut String, ListedFile { name, is_directory, len }: &ListedFile) {
    let slash = if *is_directory { "/" } else { "" };
    let (link, text) = (percent_encode(name, UNRESERVED), escaped(&String::from_utf8_lossy(name)));
    let len = if *is_directory { String::new() } else { len.to_string() };
    let _ = writeln!(page, "<tr><td><a href=\"./{link}{slash}\">{text}{slash}</a></td><td>{len}</td></tr>");
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn file(name: &[u8], is_directory: bool) -> ListedFile {
        ListedFile { name: name.to_vec(), is_directory, len: 7 }
    }

    fn page(directory: &[u8], files: Vec<ListedFile>, is_cut: bool) -> String {
        let (page, end) = Listing::new(files, is_cut).part(directory, &PagePosition::Start, usize::MAX);
        assert_eq!(end, PagePosition::End);
        page
    }

    fn files() -> impl Strategy<Value = Vec<ListedFile>> {
        let file = (any::<bool>(), 0..100_u64).prop_map(|(is_directory, len)| (is_directory, len));
        prop::collection::btree_map("[a-z<]{1,3}", file, 0..60).prop_map(|files| {
            let of = |(name, (is_directory, len)): (String, (bool, u64))| ListedFile {
                name: name.into_bytes(),
                is_directory,
                len,
            };
            files.into_iter().map(of).collect()
        })
    }

    fn links(page: &str) -> Vec<&str> {
        page.split("href=\"./").skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    proptest! {
        #[test]
        fn parts_of_a_page_are_bounded_and_make_the_whole(files in files(), enough in 0..4_000_usize, is_cut: bool) {
            let (listing, mut at, mut parts) = (Listing::new(files.clone(), is_cut), PagePosition::Start, String::new());
            while at != PagePosition::End {
                let (part, next) = listing.part(b"docs", &at, enough);
                prop_assert!(!part.is_empty() && part.len() < enough + 1_200, "{}", part.len());
                parts.push_str(&part);
                at = next;
            }
            prop_assert_eq!(parts, page(b"docs", files, is_cut));
            prop_assert_eq!(listing.part(b"docs", &at, enough), (String::new(), PagePosition::End));
        }

        #[test]
        fn files_that_stay_are_listed_once_while_others_come_and_go(
            stay in files(),
            others in prop::collection::vec(files(), 1..8),
            enough in 0..2_000_usize,
        ) {
            let names: BTreeSet<&[u8]> = stay.iter().map(|file| &file.name[..]).collect();
            let mut listings = others.iter().cycle().map(|others| {
                let others = others.iter().filter(|other| !names.contains(&other.name[..]));
                Listing::new(stay.iter().chain(others).cloned().collect(), false)
            });
            let (mut at, mut parts) = (PagePosition::Start, String::new());
            while at != PagePosition::End {
                let (part, next) = listings.next().unwrap().part(b"", &at, enough);
                parts.push_str(&part);
                at = next;
            }
            for file in &stay {
                let link = percent_encode(&file.name, UNRESERVED).to_string() + if file.is_directory { "/" } else { "" };
                prop_assert_eq!(links(&parts).iter().filter(|found| **found == link).count(), 1, "{}", parts);
            }
        }
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
    fn listed_names_are_escaped_as_html_and_as_urls() {
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
        assert!(page.contains("than the 10000 shown"));
    }
}
