//! Files that are compressed.

use std::fs;
use std::path::Path;

use convey_testkit::{BalancerProcess, Loopback, Setup};

use super::{ON, decoded, field, head_of, page};

/// A frontend whose backend has the files of a folder.
fn setup(lab: &Loopback, root: &Path) -> String {
    let setup = Setup::new(lab).frontend(ON).to_string();
    // Replaces the servers and their health check.
    let (before, rest) = setup.split_once("[backends.pool]").unwrap();
    let (_, after) = rest.split_once("[timeouts]").unwrap();
    format!(
        "{before}[backends.pool]\nfiles = {:?}\nfile_options = {{ precompressed = true, listing = true }}\n[timeouts]{after}",
        root.display().to_string()
    )
}

pub(super) fn files_are_compressed_unless_a_form_lies_ready() {
    let lab = Loopback::new();
    let root = lab.directory().join("www");
    fs::create_dir_all(root.join("many")).unwrap();
    let large = page(5_000_000);
    fs::write(root.join("small.html"), page(20_000)).unwrap();
    fs::write(root.join("large.html"), &large).unwrap();
    fs::write(root.join("tiny.html"), "<p>tiny</p>").unwrap();
    fs::write(root.join("photo.jpg"), page(20_000)).unwrap();
    fs::write(root.join("ready.css"), page(20_000)).unwrap();
    fs::write(root.join("ready.css.gz"), "not what convey would make").unwrap();
    for n in 0..100 {
        fs::write(root.join(format!("many/{n}")), "").unwrap();
    }
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, &root));
    let url = |path: &str| format!("http://{}/{path}", lab.vip());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for encoding in ["gzip", "br", "zstd"] {
            let accept = format!("Accept-Encoding: {encoding}");
            let get = |path: &str| decoded(&[version, "-H", &accept, &url(path)]);
            let compressed = |text: &str| (encoding.to_owned(), text.to_owned());
            assert_eq!(get("small.html"), compressed(&page(20_000)), "{version}");
            assert!(get("large.html") == compressed(&large), "{version} {encoding}: another file");
            assert_eq!(get("tiny.html"), (String::new(), "<p>tiny</p>".to_owned()));
            assert_eq!(get("photo.jpg").0, "", "it is compressed already");
            let (coding, listing) = get("many/");
            assert!(coding == encoding && listing.contains("href=\"./99\""), "{coding}: {listing}");
        }
        let ready = crate::curl::curl(&[version, "-H", "Accept-Encoding: gzip", &url("ready.css")]);
        assert_eq!(ready, "not what convey would make");
        let part =
            crate::curl::curl(&[version, "-H", "Accept-Encoding: gzip", "-r", "0-9", &url("small.html")]);
        assert_eq!(part, &page(20_000)[..10]);
    }
}

pub(super) fn a_changed_file_is_no_longer_the_one_that_a_client_has() {
    let lab = Loopback::new();
    let root = lab.directory().join("www");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("index.html"), page(20_000)).unwrap();
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, &root));
    let head = head_of(&lab, "");
    assert_eq!(field(&head, "content-encoding"), Some("gzip"));
    assert_eq!((field(&head, "content-length"), field(&head, "accept-ranges")), (None, None));
    let tag = field(&head, "etag").unwrap().to_owned();
    assert!(tag.starts_with("W/\""), "{head}");
    let known = head_of(&lab, &format!("If-None-Match: {tag}\r\n"));
    assert!(known.starts_with("HTTP/1.1 304 ") && field(&known, "etag") == Some(&tag), "{known}");
    // The client has the compressed form, so a range of the plain file is of no use to it.
    let whole = head_of(&lab, &format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n"));
    assert!(
        whole.starts_with("HTTP/1.1 200 ") && field(&whole, "content-encoding") == Some("gzip"),
        "{whole}"
    );
    fs::write(root.join("index.html"), page(30_000)).unwrap();
    let changed = head_of(&lab, &format!("If-None-Match: {tag}\r\n"));
    assert!(changed.starts_with("HTTP/1.1 200 ") && field(&changed, "etag") != Some(&tag), "{changed}");
}
