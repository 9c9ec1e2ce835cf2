//! Demo of the packet modes: a lab of network namespaces with real HTTP traffic. It shows the
//! packets of one request at the client and at the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_config::Config;
use convey_lab::{Lab, LabError, Role, VIP};
use convey_model::Mode;
use tempfile::TempDir;

use super::trace;
use super::{DemoError, Servers};

/// Weights of the servers.
const WEIGHTS: [u16; 3] = [3, 2, 1];

const PORT: u16 = 80;

/// Pause between requests of the demo's own client.
const REQUEST_PAUSE: Duration = Duration::from_millis(100);

/// Lab with a client, three servers and a balancer between them, and the balancer's configuration.
#[derive(Debug)]
pub struct PacketDemo {
    lab: Lab,
    folder: TempDir,
    mode: Mode,
}

impl PacketDemo {
    /// Builds the lab. Moves the calling thread, and threads that it starts later, to the
    /// balancer's namespace.
    ///
    /// # Errors
    /// A requirement is missing (root, iproute2, nftables for DSR), or the system refused an
    /// operation.
    pub fn new(mode: Mode) -> Result<Arc<PacketDemo>, DemoError> {
        let lab = Lab::new(1, WEIGHTS.len() as u8)?;
        if mode.is_dsr() {
            lab.answer_directly(&[PORT])?;
        }
        let refused = |source| LabError::System { what: "write the demo's configuration".to_owned(), source };
        let folder = tempfile::Builder::new().prefix("convey-demo-").tempdir().map_err(refused)?;
        let demo = PacketDemo { lab, folder, mode };
        std::fs::write(demo.path(), demo.configuration()).map_err(refused)?;
        demo.lab.join(Role::Balancer)?;
        Ok(Arc::new(demo))
    }

    /// Path of the configuration. It may be edited while the demo runs.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// Starts an HTTP server on each server of the lab, in the current runtime.
    ///
    /// # Errors
    /// A server cannot listen.
    pub fn start_servers(&self) -> Result<Servers, DemoError> {
        let listeners = servers().map(|(name, role)| {
            let addr = address(role);
            let listener = self.lab.enter(role, || TcpListener::bind(addr))?;
            let refused = |source| LabError::System { what: format!("listen on {addr}"), source };
            Ok((listener.map_err(refused)?, format!("hello from {name} ({addr})\n")))
        });
        super::servers::serve_on(listeners.collect::<Result<_, DemoError>>()?)
    }

    /// Start text with the configuration and commands to try.
    pub fn banner(&self, config: &Config) -> String {
        let enter = |role| format!("sudo ip netns exec {}", self.lab.namespace(role));
        let (client, balancer) = (enter(Role::Client(1)), enter(Role::Balancer));
        let stats = config.stats.listen;
        format!(
            "{}\nconfiguration {}\n\ntry it:\n  for i in $(seq 12); do {client} curl -s http://{VIP}/; done\n  \
             {balancer} curl -s http://{stats}/stats\n\n",
            convey_config::describe(config),
            self.path().display(),
        )
    }

    /// Sends a request, and returns a list of its packets at the client's and the server's
    /// interface. Blocks for some seconds at most, until the balancer forwards.
    pub fn trace(&self) -> String {
        let roles: Vec<Role> = servers().map(|(_, role)| role).chain([Role::Client(1)]).collect();
        for _ in 0..50 {
            if self.request().is_some() {
                return trace::record(&self.lab, &roles, || self.request());
            }
            thread::sleep(REQUEST_PAUSE);
        }
        "no request got through: see the drops in /stats\n".to_owned()
    }

    /// Sends requests from the lab's client until the demo ends.
    pub fn keep_asking(self: Arc<Self>) {
        let asking = move || {
            loop {
                self.request();
                thread::sleep(REQUEST_PAUSE);
            }
        };
        let _ = thread::Builder::new().name("client".to_owned()).spawn(asking);
    }

    /// Sends one request and returns the response. `None` if the request fails.
    fn request(&self) -> Option<String> {
        let fetch = || -> std::io::Result<String> {
            let second = Duration::from_secs(1);
            let mut stream = TcpStream::connect_timeout(&SocketAddr::new(VIP.into(), PORT), second)?;
            stream.set_read_timeout(Some(second))?;
            stream.write_all(
                format!("GET / HTTP/1.1\r\nHost: {VIP}\r\nConnection: close\r\n\r\n").as_bytes(),
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        self.lab.enter(Role::Client(1), fetch).ok()?.ok()
    }

    fn configuration(&self) -> String {
        let mut text = format!(
            "# Configuration of the demo: saving it reloads the balancer.\nmode = \"{}\"\n\n\
             [frontends.web]\nlisten_addr = \"{VIP}:{PORT}\"\nbackend = \"web\"\n\n\
             [backends.web]\nalgorithm = \"round_robin\"\n\n\
             [backends.web.health_check]\nkind = \"http\"\ninterval = 0.5\n",
            self.mode.name()
        );
        for ((name, role), weight) in servers().zip(WEIGHTS) {
            let addr = address(role);
            text.push_str(&format!(
                "\n[backends.web.servers.{name}]\naddr = \"{addr}\"\nweight = {weight}\n"
            ));
        }
        text
    }
}

/// Names of the servers, with their roles in the lab.
fn servers() -> impl Iterator<Item = (&'static str, Role)> {
    ["a", "b", "c"].into_iter().zip((1..).map(Role::Server))
}

fn address(role: Role) -> SocketAddr {
    SocketAddr::new(role.address().into(), PORT)
}
