//! Backends that serve files.

use super::*;

#[test]
fn a_backend_has_servers_or_serves_files() {
    let of = |lines: &str| format!("{FRONTEND}[backends.site]\n{lines}\n");
    let all = "files = 'www/'\ntimeouts.idle = 9\n[backends.site.file_options]\nindex = ['index.html', 'index.txt']\n\
               listing = true\ndot_files = true\nprecompressed = false\nnot_found = '/404.html'\n\
               cache_control = [{ match = '*.css', value = 'max-age=60' }]";
    let config = config(&of(all));
    let files = config.backends[0].files.as_ref().unwrap();
    assert_eq!(
        (files.root.to_str(), &*files.index),
        (Some("www"), &["index.html".to_owned(), "index.txt".into()][..])
    );
    assert_eq!(
        (files.not_found.as_deref(), files.cache_control_of("a/b.css")),
        (Some("404.html"), Some("max-age=60"))
    );
    let line = "backend site (files www, index index.html or index.txt, listing on, with dot files, precompressed files \
                ignored, not_found 404.html, 1 rule in cache_control; idle 9s)";
    assert!(describe(&config).contains(line), "{}", describe(&config));
    let at = "config.toml:";
    for (lines, expected) in [
        ("files = ''", "6:9: backends.site.files: found \"\"; allowed: a directory, such as /srv/www"),
        (
            "files = '/a'\nalgorithm = 'ring'",
            "7:13: backends.site.algorithm: needs servers, but this backend has files (line 6); keep one of them",
        ),
        (
            "files = '/a'\nservers.a.addr = '10.0.0.2:80'",
            "7:18: backends.site.servers.a.addr: backends.site.files is also set (line 6), but a backend has either files or servers",
        ),
        (
            "file_options.listing = true\nservers.a.addr = '10.0.0.2:80'",
            "6:1: backends.site.file_options: needs files, such as files = \"/srv/www\"",
        ),
        (
            "files = '/a'\nfile_options.not_found = '../404.html'",
            "7:26: backends.site.file_options.not_found: found \"../404.html\"; allowed: the path of a file below the directory, such as /404.html",
        ),
        (
            "files = '/a'\nfile_options.cache_control = [{ match = '[', value = 'no-store' }]",
            "7:41: backends.site.file_options.cache_control.match: found \"[\": invalid range pattern; allowed: a glob, \
             such as *.css or assets/**",
        ),
    ] {
        assert_eq!(errors(&of(lines)), [format!("{at}{expected}")], "{lines}");
    }
    let proxied = of("files = '/a'").replace("mode = 'http'\n", "").replace("10.0.0.1:80", "127.0.0.1:80");
    assert_eq!(
        diagnostics(&proxied, Mode::Proxy).unwrap_err(),
        ["config.toml:5:9: backends.site.files: needs mode = \"http\"; frontend \"web\" is in proxy mode"]
    );
}

#[test]
fn unreadable_files_root_is_reported_at_load() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("www")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let diagnostics_of = |root: &str| {
        std::fs::write(at("config.toml"), format!("{FRONTEND}[backends.site]\nfiles = '{root}'\n")).unwrap();
        load_with_lists(&at("config.toml"), &mut ReadFiles::default(), None)
            .map(|loaded| loaded.config)
            .map_err(|error| error.to_string())
    };
    assert_eq!(diagnostics_of("www").unwrap().backends[0].files.as_ref().unwrap().root, at("www"));
    for (root, why) in [("none", "No such file or directory"), ("file", "Not a directory")] {
        let diagnostics = diagnostics_of(root).unwrap_err();
        let expected = format!(":6:9: backends.site.files: cannot serve {}: {why}", at(root).display());
        assert!(diagnostics.contains(&expected), "{diagnostics}");
    }
}
