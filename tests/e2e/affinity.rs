//! Affinity: a user stays with a server, by a cookie or a header of the requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TestHttpServer, run, tests};

use super::curl::curl;

tests!("affinity":
    requests_with_one_cookie_meet_one_server_wherever_they_come_from [Need::CURL],
    client_returns_to_its_server_by_the_cookie_that_convey_sets [Need::CURL],
    client_of_a_lost_server_gets_the_cookie_of_another_one [Need::CURL],
    nodes_with_one_key_send_a_client_to_the_same_server [Need::CURL],
    affinity_cookie_leaves_compression_on_and_shared_caches_alone [Need::CURL],
);

fn requests_with_one_cookie_meet_one_server_wherever_they_come_from() {
    let lab = Loopback::new();
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let mut servers: BTreeMap<&str, TestHttpServer> =
        names.iter().map(|(name, n)| (*name, TestHttpServer::named(name, lab.server(*n)))).collect();
    let setup = Setup::new(&lab).frontend("mode = \"http\"").health("interval = 0.2\nfall = 1");
    let setup = setup.backend("algorithm = \"maglev\"\nhash = \"cookie:session\"");
    let setup = names.iter().fold(setup, |setup, (name, n)| setup.server(name, lab.server(*n), ""));
    let balancer = BalancerProcess::start(&lab, &setup);
    // Each request has a connection of its own; users use both HTTP versions.
    let meets = |user: usize| {
        let cookie = format!("Cookie: theme=dark; session=user-{user}");
        let met: BTreeSet<String> = ["--http1.1", "--http2-prior-knowledge", "--http1.1"]
            .iter()
            .map(|version| curl(&[version, "-H", &cookie, &format!("http://{}/", lab.vip())]))
            .map(|body| body.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(met.len(), 1, "user {user} met {met:?}");
        met.into_iter().next().unwrap()
    };
    let before: Vec<String> = (0..30).map(meets).collect();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3, "the users spread: {before:?}");
    servers.remove("b");
    balancer.wait_for_health("b", false);
    for (user, server) in before.iter().enumerate() {
        let now = meets(user);
        assert!(&now == server || server == "b", "user {user} was moved from {server} to {now}");
    }
    let _b = TestHttpServer::named("b", lab.server(2));
    balancer.wait_for_health("b", true);
    assert_eq!((0..30).map(meets).collect::<Vec<_>>(), before);
}

const SERVERS: [(&str, u8); 3] = [("a", 1), ("b", 2), ("c", 3)];

fn start_servers(lab: &Loopback) -> BTreeMap<&'static str, TestHttpServer> {
    SERVERS.iter().map(|(name, n)| (*name, TestHttpServer::named(name, lab.server(*n)))).collect()
}

/// A configuration whose servers take turns, with the cookie `server`.
fn with_cookie(lab: &Loopback, servers: &Loopback, lines: &str) -> Setup {
    let setup = Setup::new(lab).frontend("mode = \"http\"").health("interval = 0.2\nfall = 1");
    let setup = setup.backend(&format!("affinity = {{ cookie = \"server\"{lines} }}"));
    SERVERS.iter().fold(setup, |setup, (name, n)| setup.server(name, servers.server(*n), ""))
}

/// A browser: it sends the cookies back that it gets.
struct Browser {
    jar: PathBuf,
    version: &'static str,
}

impl Browser {
    fn all(lab: &Loopback) -> Vec<Browser> {
        let versions = ["--http1.1", "--http2-prior-knowledge"].into_iter().cycle();
        let jars = (0..6).map(|n| lab.directory().join(format!("jar-{n}")));
        jars.zip(versions).map(|(jar, version)| Browser { jar, version }).collect()
    }

    /// Requests a page. Returns the name of the server, and whether it got a new cookie.
    fn get(&self, lab: &Loopback) -> (String, bool) {
        let jar = self.jar.to_str().unwrap();
        let url = format!("http://{}/", lab.vip());
        let page = curl(&[self.version, "-i", "-b", jar, "-c", jar, &url]);
        let head = page.to_ascii_lowercase();
        let attributes = "; path=/; httponly; samesite=lax\r\n";
        let has_cookie = head.contains("\nset-cookie: server=");
        assert_eq!(head.contains(attributes), has_cookie, "{page}");
        let body = page.split("\r\n\r\n").nth(1).unwrap();
        (body.split(' ').next().unwrap().to_owned(), has_cookie)
    }

    /// Requests a page with a cookie that convey has set before. Returns the name of the server.
    fn returns(&self, lab: &Loopback) -> String {
        let (server, has_cookie) = self.get(lab);
        assert!(!has_cookie, "the client has the cookie of its server");
        server
    }
}

fn client_returns_to_its_server_by_the_cookie_that_convey_sets() {
    let lab = Loopback::new();
    let _servers = start_servers(&lab);
    let balancer = BalancerProcess::start(&lab, &with_cookie(&lab, &lab, ""));
    let browsers = Browser::all(&lab);
    let first: Vec<_> = browsers.iter().map(|browser| browser.get(&lab)).collect();
    assert!(first.iter().all(|(_, has_cookie)| *has_cookie), "{first:?}");
    let first: Vec<String> = first.into_iter().map(|(server, _)| server).collect();
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3, "the servers take turns: {first:?}");
    let return_all = || browsers.iter().map(|browser| browser.returns(&lab)).collect::<Vec<_>>();
    assert_eq!(return_all(), first);
    // New clients go elsewhere, and those that the server has stay.
    let drained = run(balancer.command().args(["server", "drain", "pool/a"]));
    assert_eq!(drained.code, Some(0), "{drained:?}");
    balancer.wait_for_stat("/backends/pool/servers/a/state", "drain");
    assert_eq!(return_all(), first);
    // Other names of the servers and their backend.
    let renamed = with_cookie(&lab, &lab, "").to_string().replace("servers.b", "servers.renamed");
    balancer.save(&renamed.replace("pool", "shop"));
    balancer.wait_for_stat("/backends/shop/servers/renamed/state", "ready");
    assert_eq!(return_all(), first);
    let upgraded = run(balancer.command().args(["upgrade", "--config"]).arg(balancer.config()));
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    assert_eq!(return_all(), first);
}

fn client_of_a_lost_server_gets_the_cookie_of_another_one() {
    let lab = Loopback::new();
    let mut servers = start_servers(&lab);
    let balancer = BalancerProcess::start(&lab, &with_cookie(&lab, &lab, ""));
    let browser = Browser { jar: lab.directory().join("jar"), version: "--http1.1" };
    let (lost, _) = browser.get(&lab);
    let (lost, n) = *SERVERS.iter().find(|(name, _)| *name == lost).unwrap();
    servers.remove(lost);
    balancer.wait_for_health(lost, false);
    let (next, has_cookie) = browser.get(&lab);
    assert!(has_cookie && next != lost, "{next}");
    let _server = TestHttpServer::named(lost, lab.server(n));
    balancer.wait_for_health(lost, true);
    // Its session is at the second server now.
    (0..6).for_each(|_| assert_eq!(browser.returns(&lab), next));
}

fn nodes_with_one_key_send_a_client_to_the_same_server() {
    let (lab, other) = (Loopback::new(), Loopback::new());
    let _servers = start_servers(&lab);
    let key = |lab: &Loopback, digits: &str| {
        let file = lab.directory().join("affinity.key");
        fs::write(&file, digits).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        format!(", key_file = \"{}\"", file.display())
    };
    let digits = "00112233445566778899aabbccddeeff";
    let _nodes =
        [&lab, &other].map(|node| BalancerProcess::start(node, &with_cookie(node, &lab, &key(node, digits))));
    for browser in Browser::all(&lab) {
        let (server, _) = browser.get(&lab);
        let jar = fs::read_to_string(&browser.jar).unwrap();
        fs::write(&browser.jar, jar.replace(&lab.vip().ip().to_string(), &other.vip().ip().to_string()))
            .unwrap();
        assert_eq!(browser.returns(&other), server);
    }
    let stranger = Loopback::new();
    let lines = key(&stranger, "ffffffffffffffffffffffffffffffff");
    let _stranger = BalancerProcess::start(&stranger, &with_cookie(&stranger, &lab, &lines));
    let browser = Browser { jar: lab.directory().join("jar-0"), version: "--http1.1" };
    let jar = fs::read_to_string(&browser.jar).unwrap();
    fs::write(&browser.jar, jar.replace(&other.vip().ip().to_string(), &stranger.vip().ip().to_string()))
        .unwrap();
    assert!(browser.get(&stranger).1, "an id of another key is no id");
}

fn affinity_cookie_leaves_compression_on_and_shared_caches_alone() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let is_public = request.line.contains("/public");
        let caching = if is_public { "Cache-Control: public, max-age=60\r\n" } else { "" };
        let page = "a line of the page\n".repeat(500);
        let len = page.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n{caching}\r\n{page}"
        )
    });
    let setup =
        Setup::new(&lab).frontend("mode = \"http\"\ncompression = true").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup.backend("affinity = { cookie = \"server\" }"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let get = |path: &str, cookie: &str| {
            let url = format!("http://{}{path}", lab.vip());
            let written = "%header{content-encoding} %header{set-cookie}";
            let output =
                curl(&[version, "--compressed", "-w", written, "-o", "/dev/null", "-b", cookie, &url]);
            let (coding, cookie) = output.split_once(' ').unwrap();
            (!coding.is_empty(), cookie.split(';').next().unwrap().to_owned())
        };
        let (is_compressed, cookie) = get("/", "");
        assert!(is_compressed && cookie.starts_with("server="), "{version}: {cookie}");
        assert_eq!(get("/", &cookie), (true, String::new()), "{version}");
        assert_eq!(get("/", &format!("{cookie}; sid=1")), (false, String::new()), "{version}");
        assert_eq!(get("/public", ""), (true, String::new()), "{version}");
    }
}
