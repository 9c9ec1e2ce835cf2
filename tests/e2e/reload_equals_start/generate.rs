//! Random configurations, and random edits of them.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::net::SocketAddr;

use convey_testkit::{Loopback, NAME, TestNameServer};
use fastrand::Rng;

const KINDS: [&str; 4] = [
    "kind = \"none\"",
    "kind = \"tcp\"",
    "kind = \"http\"\npath = \"/\"",
    "kind = \"http\"\npath = \"/check\"",
];
const ALGORITHMS: [&str; 5] = ["ring", "maglev", "round_robin", "least_connections", "power_of_two"];
const HASH_KEYS: [&str; 3] = ["addr_port", "addr", "name"];
pub(super) const HOSTS: [&str; 3] = ["a.test", "b.test", "c.test"];
pub(super) const PATHS: [&str; 6] = ["/", "/a", "/a/x?q=1", "/b", "//a", "/b%2Fx"];

/// The server without a listener, and the server whose check at `/check` fails.
pub(super) const DEAD: u8 = 3;
pub(super) const FAILING: u8 = 2;

/// The server that has a name.
pub(super) const NAMED: u8 = 5;

/// Choices that make up a configuration.
#[derive(Clone)]
pub(super) struct Choices {
    stats: SocketAddr,
    name_server: SocketAddr,
    servers: [SocketAddr; 4],
    vip: SocketAddr,
    /// The frontend of each port.
    ports: [Option<usize>; 5],
    frontends: [Frontend; 3],
    pub(super) backends: [Backend; 3],
    allow_local: bool,
}

#[derive(Clone)]
struct Frontend {
    is_http: bool,
    /// The certificates, in this order; none without TLS.
    certificates: Vec<usize>,
    refuse_unknown_names: bool,
    backend: usize,
    is_redirect: bool,
    routes: Vec<Route>,
    denied: Option<u8>,
    field: u8,
    max_head_fields: u8,
    max_connections: Option<u8>,
    normalize: bool,
}

#[derive(Clone)]
struct Route {
    host: Option<usize>,
    path: usize,
    /// Index of the backend; `None`: a redirect.
    backend: Option<usize>,
    rewrites: bool,
    field: bool,
}

#[derive(Clone)]
pub(super) struct Backend {
    algorithm: usize,
    hash_key: usize,
    kind: usize,
    fall: u8,
    has_outlier_detection: bool,
    /// Weight of each server; `None`: the backend does not have it.
    servers: [Option<u8>; 4],
    backup: Option<usize>,
    has_name: bool,
    max_connections: Option<u8>,
}

impl Choices {
    pub(super) fn random(lab: &Loopback, random: &mut Rng) -> Choices {
        Choices {
            stats: lab.stats(),
            name_server: TestNameServer::addr(lab),
            servers: [0, 1, 2, 3].map(|n| lab.server(n)),
            vip: lab.vip(),
            ports: [Some(0), Some(1), Some(2), None, None],
            frontends: [(); 3].map(|()| Frontend::random(random)),
            backends: [(); 3].map(|()| Backend::random(random)),
            allow_local: random.bool(),
        }
    }

    /// Some parts are chosen anew, a few of them in most edits.
    pub(super) fn edited(&self, random: &mut Rng) -> Choices {
        let mut edited = self.clone();
        for _ in 0..random.u8(1..6) {
            edited.edit(random);
        }
        edited
    }

    fn edit(&mut self, random: &mut Rng) {
        let (frontend, backend) = (random.usize(..3), random.usize(..3));
        let (new_frontend, new_backend) = (Frontend::random(random), Backend::random(random));
        let (to_frontend, to_backend) = (&mut self.frontends[frontend], &mut self.backends[backend]);
        match random.u8(..16) {
            0 => *to_frontend = new_frontend,
            1 => *to_backend = new_backend,
            2 => to_frontend.is_http = !to_frontend.is_http,
            3 => to_frontend.certificates = new_frontend.certificates,
            4 => to_frontend.backend = new_frontend.backend,
            5 => to_frontend.routes = new_frontend.routes,
            6 => to_frontend.denied = new_frontend.denied,
            7 => to_frontend.field = new_frontend.field,
            8 => to_backend.algorithm = new_backend.algorithm,
            9 => to_backend.kind = new_backend.kind,
            10 => to_backend.servers = new_backend.servers,
            11 => to_backend.fall = new_backend.fall,
            12 => to_backend.has_name = !to_backend.has_name,
            13 => self.allow_local = !self.allow_local,
            14 => self.frontends.swap(frontend, random.usize(..3)),
            _ => {
                // The first frontend keeps a port.
                let port = random.usize(1..5);
                self.ports[port] = random.bool().then(|| random.usize(..3));
            }
        }
    }

    /// Frontends with an address: the first address of each, whether it serves HTTP, and whether it
    /// serves TLS.
    pub(super) fn served(&self) -> Vec<(SocketAddr, bool, bool)> {
        let first = |n: usize| (0..).zip(self.ports).find_map(|(port, of)| (of == Some(n)).then_some(port));
        let all = (0..3).filter_map(|n| Some((self.address(first(n)?), &self.frontends[n])));
        all.map(|(at, one)| (at, one.is_http, !one.certificates.is_empty())).collect()
    }

    /// Whether the backends of the frontend at an address choose servers by hash alone.
    pub(super) fn is_by_hash(&self, at: SocketAddr) -> bool {
        let port = usize::from(at.port() - self.vip.port());
        let frontend = &self.frontends[self.ports[port].unwrap()];
        let of_routes = frontend.routes.iter().filter(|_| frontend.is_http).filter_map(|route| route.backend);
        of_routes.chain([frontend.backend]).all(|backend| self.backends[backend].algorithm < 2)
    }

    /// Whether each server of a backend passes its checks, by the server's address.
    pub(super) fn is_up(&self, backend: usize, at: SocketAddr) -> bool {
        let kind = self.backends[backend].kind;
        let is = |n: u8| at == self.servers[usize::from(n)];
        kind == 0 || !(is(DEAD) || kind == 3 && is(FAILING))
    }

    /// Number of servers of a backend, including the address of its name.
    pub(super) fn count(&self, backend: usize) -> usize {
        let backend = &self.backends[backend];
        backend.servers.iter().flatten().count() + usize::from(backend.has_name && self.allow_local)
    }

    /// Whether local addresses of names may be servers.
    pub(super) fn allows_local(&self) -> bool {
        self.allow_local
    }

    /// The name is looked up for one of the backends.
    pub(super) fn has_name(&self) -> bool {
        self.backends.iter().any(|backend| backend.has_name)
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.vip.ip(), self.vip.port() + port)
    }
}

impl Frontend {
    fn random(random: &mut Rng) -> Frontend {
        let mut certificates: Vec<usize> = (0..3).filter(|_| random.u8(..4) == 0).collect();
        random.shuffle(&mut certificates);
        Frontend {
            is_http: random.u8(..3) > 0,
            certificates,
            refuse_unknown_names: random.bool(),
            backend: random.usize(..3),
            is_redirect: random.u8(..8) == 0,
            routes: (0..random.u8(..4)).map(|_| Route::random(random)).collect(),
            denied: random.bool().then(|| random.u8(30..40)),
            field: random.u8(..4),
            max_head_fields: [3, 100][usize::from(random.u8(..4) > 0)],
            max_connections: random.bool().then(|| random.u8(4..)),
            normalize: random.u8(..4) > 0,
        }
    }

    fn write(&self, n: usize, listen: &[String], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.is_http { "http" } else { "proxy" };
        writeln!(f, "[frontends.f{n}]\nmode = \"{mode}\"\nlisten_addr = {listen:?}")?;
        match self.is_http && self.is_redirect {
            true => writeln!(f, "redirect = \"https\"")?,
            false => writeln!(f, "backend = \"b{}\"", self.backend)?,
        }
        if let Some(most) = self.max_connections {
            writeln!(f, "max_connections = {most}")?;
        }
        if let Some(host) = self.denied {
            writeln!(f, "access.deny = [\"{}\"]", host_of(listen, host))?;
        }
        if !self.certificates.is_empty() {
            let names = |ending: &str| {
                self.certificates.iter().map(|n| format!("{}.{ending}", HOSTS[*n])).collect::<Vec<_>>()
            };
            writeln!(f, "tls.certificate = {:?}\ntls.key = {:?}", names("pem"), names("key"))?;
            writeln!(f, "tls.refuse_unknown_names = {}", self.refuse_unknown_names)?;
        }
        if !self.is_http {
            return Ok(());
        }
        writeln!(f, "normalize = {}\nhttp.max_head_fields = {}", self.normalize, self.max_head_fields)?;
        writeln!(f, "headers.response.set = {{ X-Frontend = \"{}\" }}", self.field)?;
        let mut written = BTreeSet::new();
        for route in self.routes.iter().filter(|route| written.insert((route.host, route.path))) {
            route.write(n, f)?;
        }
        Ok(())
    }
}

/// Another host in the network of an address.
fn host_of(listen: &[String], host: u8) -> String {
    let ip = listen[0].split(':').next().unwrap();
    format!("{}.{host}", ip.rsplit_once('.').unwrap().0)
}

impl Route {
    fn random(random: &mut Rng) -> Route {
        Route {
            host: random.bool().then(|| random.usize(..3)),
            path: random.usize(..2),
            backend: (random.u8(..5) > 0).then(|| random.usize(..3)),
            rewrites: random.bool(),
            field: random.bool(),
        }
    }

    fn write(&self, frontend: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[[frontends.f{frontend}.routes]]\npath = \"{}\"", ["/a", "/b"][self.path])?;
        if let Some(host) = self.host {
            writeln!(f, "host = \"{}\"", HOSTS[host])?;
        }
        match self.backend {
            Some(backend) => {
                writeln!(f, "backend = \"b{backend}\"")?;
                if self.rewrites {
                    writeln!(f, "rewrite_path = \"/r\"\nrewrite_host = \"r.test\"")?;
                }
            }
            None => writeln!(f, "redirect = \"https\"")?,
        }
        if self.field {
            writeln!(f, "headers.response.add = {{ X-Route = \"1\" }}")?;
        }
        Ok(())
    }
}

impl Backend {
    fn random(random: &mut Rng) -> Backend {
        let mut servers = [(); 4].map(|()| (random.u8(..3) > 0).then(|| random.u8(..3)));
        // A backend needs a server with a weight.
        servers[random.usize(..4)] = Some(random.u8(1..3));
        Backend {
            algorithm: random.usize(..ALGORITHMS.len()),
            hash_key: random.usize(..HASH_KEYS.len()),
            kind: random.usize(..KINDS.len()),
            fall: random.u8(2..5),
            has_outlier_detection: random.bool(),
            servers,
            backup: (random.u8(..4) == 0).then(|| random.usize(..4)),
            has_name: random.u8(..4) == 0,
            max_connections: (random.u8(..4) == 0).then(|| random.u8(20..)),
        }
    }

    fn write(&self, n: usize, servers: &[SocketAddr; 4], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, hash_key) = (ALGORITHMS[self.algorithm], HASH_KEYS[self.hash_key]);
        writeln!(f, "[backends.b{n}]\nalgorithm = \"{algorithm}\"\nhash_key = \"{hash_key}\"")?;
        if self.has_outlier_detection {
            // So many failures never occur: an ejection outlives a reload, as it should.
            writeln!(f, "outlier_detection.consecutive_failures = 100000")?;
        }
        let (kind, fall) = (KINDS[self.kind], self.fall);
        writeln!(f, "[backends.b{n}.health_check]\n{kind}\nfall = {fall}\ninterval = 1\ntimeout = 1")?;
        let mut lines = String::new();
        if let Some(most) = self.max_connections {
            let _ = writeln!(lines, "max_connections = {most}");
        }
        // The first server with a weight is no backup: some server has to be none.
        let first = (0..4).find(|server| self.servers[*server].is_some_and(|weight| weight > 0));
        for (server, weight) in (0..4).filter_map(|server| Some((server, self.servers[server]?))) {
            let addr = servers[server];
            writeln!(f, "[backends.b{n}.servers.s{server}]\naddr = \"{addr}\"\nweight = {weight}\n{lines}")?;
            if self.backup == Some(server) && first != Some(server) {
                writeln!(f, "backup = true")?;
            }
        }
        if self.has_name {
            writeln!(f, "[backends.b{n}.servers.named]\naddr = \"{NAME}:{}\"\n{lines}", servers[0].port())?;
        }
        Ok(())
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, frontend) in self.frontends.iter().enumerate() {
            let ports = (0..).zip(self.ports).filter(|(_, of)| *of == Some(n));
            let listen: Vec<String> = ports.map(|(port, _)| self.address(port).to_string()).collect();
            if !listen.is_empty() {
                frontend.write(n, &listen, f)?;
            }
        }
        for (n, backend) in self.backends.iter().enumerate() {
            backend.write(n, &self.servers, f)?;
        }
        let Choices { stats, name_server, allow_local, .. } = self;
        writeln!(f, "[dns]\nnameservers = \"{name_server}\"\nallow_local = {allow_local}")?;
        writeln!(f, "[stats]\nlisten_addr = \"{}\"\nport = {}", stats.ip(), stats.port())
    }
}
