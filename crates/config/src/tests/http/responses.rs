//! Error pages and compression.

use super::*;

#[test]
fn error_pages_are_read_with_the_file_that_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("503.html"), "<p>Back soon</p>").unwrap();
    std::fs::write(at("long.txt"), vec![b'x'; ErrorPages::MAX_SIZE + 1]).unwrap();
    let write = |pages: &str| {
        let more = "routes = [{ path = '/a', backend = 'api' }]\n";
        std::fs::write(at("config.toml"), format!("{FRONTEND}error_pages = {{ {pages} }}\n{more}{BACKENDS}"))
            .unwrap();
    };
    let mut lists = ReadFiles::default();
    write("503 = '503.html', 502 = '503.html'");
    let before = load_with_lists(&at("config.toml"), &mut lists, None).unwrap().config;
    let page = before.frontends[0].error_page(503).unwrap();
    assert_eq!((&*page.body, page.path.clone()), (&b"<p>Back soon</p>"[..], at("503.html")));
    assert_eq!(lists.named.len(), 1, "it is watched, and read once");
    assert!(describe(&before).contains("-> backend site; error pages: 502, 503\n"), "{}", describe(&before));
    std::fs::write(at("503.html"), "<p>Back</p>").unwrap();
    write("503 = '503.html'");
    let after = load_with_lists(&at("config.toml"), &mut lists, None).unwrap();
    assert_eq!(
        after.reload(&before).1.changes,
        [format!(
            "frontend web: error_pages.502 {} -> none, error_pages.503: content changed",
            at("503.html").display()
        )]
    );
    write("200 = '503.html', 502 = 'long.txt', 503 = 'gone.html'");
    let diagnostics = load_with_lists(&at("config.toml"), &mut lists, None).unwrap_err().to_string();
    for expected in [
        "5:17: frontends.web.error_pages.200: convey sends no response with status \"200\"; allowed: 400, 403,"
            .to_owned(),
        format!(
            "5:41: frontends.web.error_pages.502: {} has 65537 bytes; an error page has 65536 at most",
            at("long.txt").display()
        ),
        format!(
            "5:59: frontends.web.error_pages.503: cannot read {}: No such file",
            at("gone.html").display()
        ),
    ] {
        assert!(diagnostics.contains(&expected), "{expected}\n{diagnostics}");
    }
}

#[test]
fn compression_is_a_switch_or_a_table() {
    let compression = |lines: &str| {
        let text = format!("{FRONTEND}{lines}\n{BACKENDS}");
        config(&text).frontends[0].http.clone().unwrap().compression
    };
    assert_eq!(compression(""), None);
    assert_eq!(compression("compression = false"), None);
    assert_eq!(compression("compression = true"), Some(CompressionRules::default()));
    assert_eq!(compression("[frontends.web.compression]"), Some(CompressionRules::default()));
    let table = "compression = { types = ['text/HTML', '*+json'], min_size = 0, encodings = ['gzip', 'zstd'], \
                 with_credentials = true }";
    let rules = compression(table).unwrap();
    assert_eq!(rules.encodings, [ContentCoding::Gzip, ContentCoding::Zstd]);
    assert_eq!(rules.to_string(), "gzip, zstd from 0 bytes of text/html, *+json, with credentials");
    let text = describe(&config(&format!("{FRONTEND}{table}\n{BACKENDS}")));
    assert!(text.lines().next().unwrap().ends_with(&format!("; compression: {rules}")), "{text}");
    for (lines, expected) in [
        (
            "compression = 'on'",
            "5:15: frontends.web.compression: found \"on\"; allowed: true, false, or a table, such as { min_size = 512 }",
        ),
        (
            "compression = { types = 'html' }",
            "5:25: frontends.web.compression.types: found \"html\"; allowed: a media type, such as text/html, text/* or *+json",
        ),
        (
            "compression = { types = [] }",
            "5:25: frontends.web.compression.types: the list is empty: remove the key, or name at least one value",
        ),
        (
            "compression = { encodings = 'deflate' }",
            "5:29: frontends.web.compression.encodings: found \"deflate\"; allowed: zstd, br, gzip",
        ),
        (
            "compression = { encodings = ['br', 'br'] }",
            "5:36: frontends.web.compression.encodings: has \"br\" twice",
        ),
        (
            "compression = { min_size = -1 }",
            "5:28: frontends.web.compression.min_size: found -1; allowed: an integer from 0 to 4294967295",
        ),
        (
            "compression = { minsize = 1 }",
            "5:17: frontends.web.compression.minsize: unknown key; did you mean `min_size`? (allowed here: encodings, min_size, types, with_credentials)",
        ),
    ] {
        assert_eq!(of_frontend(lines), [format!("config.toml:{expected}")], "{lines}");
    }
    let proxy = format!("{FRONTEND}compression = true\n{BACKENDS}").replace("mode = 'http'\n", "");
    let said = errors(&proxy);
    assert!(said.len() == 1 && said[0].contains("frontends.web.compression: "), "{said:?}");
}

#[test]
fn route_inherits_compression_unless_it_sets_its_own() {
    let of_route = |frontend: &str, route: &str| {
        let routes = format!("{frontend}\n[[frontends.web.routes]]\npath = '/a'\nbackend = 'api'\n{route}");
        let config = config(&format!("{FRONTEND}{routes}\n{BACKENDS}"));
        (config.frontends[0].http.as_ref().unwrap().routes[0].compression.clone(), describe(&config))
    };
    let own = CompressionRules { min_size: 7, ..CompressionRules::default() };
    let table = "compression = { min_size = 7 }";
    for (frontend, route, expected) in [
        ("", "", RouteCompression::OfFrontend),
        (table, "", RouteCompression::OfFrontend),
        (table, "compression = true", RouteCompression::OfFrontend),
        (table, "compression = false", RouteCompression::Off),
        ("", "compression = true", RouteCompression::Rules(CompressionRules::default())),
        ("compression = true", table, RouteCompression::Rules(own)),
    ] {
        let (compression, described) = of_route(frontend, route);
        let shown = format!("-> backend api; compression: {compression}");
        assert_eq!(described.contains(&shown), compression != RouteCompression::OfFrontend, "{described}");
        assert_eq!(compression, expected, "{frontend} / {route}");
    }
    let redirect = "[[frontends.web.routes]]\npath = '/a'\nredirect = 'https'\ncompression = true";
    let diagnostics = warnings(&format!("{FRONTEND}{redirect}\n{BACKENDS}"));
    let expected =
        "config.toml:8:15: frontends.web.routes.compression: has no effect with redirect or respond";
    assert_eq!(diagnostics[0], expected, "{diagnostics:?}");
}

#[test]
fn cors_method_in_lower_case_is_an_error_as_of_a_route() {
    let found = of_frontend("cors = { origins = ['https://a.example'], methods = ['get', 'PUT'] }");
    assert_eq!(
        found,
        [
            "config.toml:5:54: frontends.web.cors.methods: found \"get\"; methods are case-sensitive: did you mean \"GET\"?"
        ]
    );
}

#[test]
fn cors_rules_that_no_browser_meets_are_warnings() {
    let of = |cors: &str| {
        let text =
            format!("{FRONTEND}cors = {{ {cors} }}\n[backends.site.servers.a]\naddr = '10.0.0.3:80'\n");
        warnings(&text)
    };
    let right = "origins = ['https://a.example', 'https://a.example:80', 'http://[::1]:8080'], methods = ['GET', 'PURGE']";
    assert_eq!(of(right), [""; 0]);
    assert_eq!(
        of("origins = ['https://a.example:443', 'http://*.b.example:80'], methods = ['PUT']"),
        [
            "config.toml:5:21: frontends.web.cors.origins: no page has the origin https://a.example:443: browsers leave out \
             the usual port; use https://a.example",
            "config.toml:5:46: frontends.web.cors.origins: no page has the origin http://*.b.example:80: browsers leave out \
             the usual port; use http://*.b.example",
        ]
    );
}
