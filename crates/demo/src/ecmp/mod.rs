//! Demo with several balancers. Each announces the VIP to a router, which spreads clients over
//! them. The balancers are powered off and return, one after the other.
#![expect(clippy::disallowed_methods, reason = "a shell: it measures how long the router takes")]

mod client;
mod node;
mod row;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use convey_lab::{ANNOUNCED_VIP, EcmpLab, EcmpRole, LabError};
use convey_model::Mode;
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::client::EcmpClient;
use self::node::Node;
use self::row::Row;
use super::{DemoError, Servers};

const BALANCERS: u8 = 4;
const SERVERS: [&str; 3] = ["a", "b", "c"];
const PORT: u16 = 80;

/// Pause before a balancer is powered off, and before it returns.
const PAUSE: Duration = Duration::from_secs(10);

/// Upper bound for the wait until all balancers are announced at the start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Interval between checks of the router's routes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A router, four balancers with BIRD, three servers and a client.
#[derive(Debug)]
pub struct EcmpDemo {
    client: EcmpClient,
    nodes: Vec<Mutex<Node>>,
    lab: Arc<EcmpLab>,
    mode: Mode,
    _folder: TempDir,
}

impl EcmpDemo {
    /// Builds the lab. Starts no convey yet.
    ///
    /// # Errors
    /// A requirement is missing (root, iproute2, BIRD, nftables for DSR), or the system refused an
    /// operation.
    pub fn new(mode: Mode) -> Result<EcmpDemo, DemoError> {
        let refused = |source| LabError::System { what: "write the demo's configuration".to_owned(), source };
        let folder = tempfile::Builder::new().prefix("convey-demo-").tempdir().map_err(refused)?;
        let lab = Arc::new(EcmpLab::new(BALANCERS, SERVERS.len() as u8, folder.path())?);
        if mode.is_dsr() {
            lab.answer_directly(PORT)?;
        }
        let config = folder.path().join("config.toml");
        std::fs::write(&config, configuration()).map_err(refused)?;
        let node = |n| Mutex::new(Node::new(n, mode, &config, folder.path()));
        let nodes = (1..=BALANCERS).map(node).collect();
        Ok(EcmpDemo { client: EcmpClient::default(), nodes, lab, mode, _folder: folder })
    }

    /// Start text that describes the lab: balancers, servers and addresses.
    pub fn banner(&self) -> String {
        let enter = |role| format!("sudo ip netns exec {}", self.lab.place(role).name());
        let seconds = PAUSE.as_secs();
        format!(
            "client     {}\nrouter     {}\nbalancers  {} to {}: convey --{} (Maglev), BIRD (BGP, BFD)\nservers    {} to {}: {}\n\
             VIP        {ANNOUNCED_VIP}:{PORT}, announced by each balancer that can serve\n\n\
             look at it:\n  {} ip route show {ANNOUNCED_VIP}\n  {} curl -s http://{ANNOUNCED_VIP}/\n\n\
             A balancer dies after {seconds} seconds, comes back {seconds} seconds later, and then the next one dies. Ctrl-C ends \
             the demo.\n\n",
            EcmpRole::Client.address(),
            EcmpRole::Router.address(),
            EcmpRole::Balancer(1).address(),
            EcmpRole::Balancer(BALANCERS).address(),
            self.mode.name(),
            EcmpRole::Server(1).address(),
            EcmpRole::Server(SERVERS.len() as u8).address(),
            SERVERS.join(", "),
            enter(EcmpRole::Router),
            enter(EcmpRole::Client),
        )
    }

    /// Starts an HTTP server on each server of the lab, in the current runtime.
    ///
    /// # Errors
    /// A server cannot listen.
    pub fn start_servers(&self) -> Result<Servers, DemoError> {
        let listeners = (1..).map(EcmpRole::Server).zip(SERVERS).map(|(role, name)| {
            let addr = (role.address(), PORT);
            let refused =
                |source| LabError::System { what: format!("listen on {}:{PORT}", role.address()), source };
            let listener = self.lab.enter(role, || TcpListener::bind(addr))?.map_err(refused)?;
            Ok((listener, format!("hello from {name} ({}:{PORT})\n", role.address())))
        });
        super::servers::serve_on(listeners.collect::<Result<_, DemoError>>()?)
    }

    /// Starts BIRD and convey on each balancer, and waits until the router sends clients to all
    /// balancers.
    ///
    /// # Errors
    /// Not all balancers were announced in time.
    pub async fn start_balancers(&self) -> Result<(), DemoError> {
        for node in &self.nodes {
            node.lock().await.start(&self.lab)?;
        }
        let all: Vec<u8> = (1..=BALANCERS).collect();
        let looks = START_LIMIT.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if self.next_hops().await? == all {
                return Ok(());
            }
            sleep(LOOK_EVERY).await;
        }
        let mut logs = String::new();
        for node in &self.nodes {
            logs += &node.lock().await.last_words();
        }
        let said = format!("not all balancers were announced within {START_LIMIT:?}\n{logs}");
        Err(LabError::Failed { command: "convey".to_owned(), said }.into())
    }

    /// Opens connections, and prints their results every second. Returns only after an error.
    ///
    /// # Errors
    /// The system refused an operation.
    pub async fn show(&self, print: impl Fn(&str)) -> Result<(), DemoError> {
        self.client.start(&self.lab)?;
        print(&Row::heading(BALANCERS));
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for seconds in 0_u64.. {
            second.tick().await;
            let mut by_balancer = Vec::new();
            for node in &self.nodes {
                by_balancer.push(node.lock().await.new_connections().await);
            }
            let (next_hops, seen) = (self.next_hops().await?, self.client.take());
            print(&Row { seconds, next_hops, by_balancer, seen }.to_string());
        }
        Ok(())
    }

    /// Powers one balancer after the other off and on again. Returns only after an error.
    ///
    /// # Errors
    /// The system refused an operation.
    pub async fn play(&self, print: impl Fn(&str)) -> Result<(), DemoError> {
        for node in self.nodes.iter().cycle() {
            sleep(PAUSE).await;
            let number = {
                let mut node = node.lock().await;
                node.die(&self.lab)?;
                node.number()
            };
            print(&format!("-- balancer {number} dies: SIGKILL to convey and BIRD, and its link is down\n"));
            let took = self.wait_until(number, false).await?;
            print(&format!(
                "-- after {took:.1?}, the router sends nothing to balancer {number} any more (BFD)\n"
            ));
            sleep(PAUSE).await;
            node.lock().await.start(&self.lab)?;
            print(&format!("-- balancer {number} starts again, with BIRD and without any connection\n"));
            let took = self.wait_until(number, true).await?;
            print(&format!("-- after {took:.1?}, the router sends to balancer {number} again\n"));
        }
        Ok(())
    }

    /// Stops the client, and returns a summary of its connections.
    pub fn end(&self) -> String {
        let (opened, broken) = self.client.stop();
        format!(
            "ended: {opened} connections were opened, {broken} of them broke; the namespaces are removed\n"
        )
    }

    /// Waits until the router sends clients to a balancer (`is_there` is true) or no longer does
    /// (false). Returns the duration of the wait.
    async fn wait_until(&self, number: u8, is_there: bool) -> Result<Duration, DemoError> {
        let since = Instant::now();
        while self.next_hops().await?.contains(&number) != is_there {
            sleep(LOOK_EVERY).await;
        }
        Ok(since.elapsed())
    }

    async fn next_hops(&self) -> Result<Vec<u8>, DemoError> {
        let lab = self.lab.clone();
        let asked = spawn_blocking(move || lab.next_hops()).await;
        Ok(asked.unwrap_or_else(|_| Ok(Vec::new()))?)
    }
}

fn configuration() -> String {
    let mut text = format!(
        "# The same for all balancers of the demo.\n[announce]\nhold = 1\n\n\
         [frontends.web]\nlisten_addr = \"{ANNOUNCED_VIP}:{PORT}\"\nbackend = \"web\"\n\n\
         [backends.web]\nalgorithm = \"maglev\"\nhash = \"tuple\"\n\n\
         [backends.web.health_check]\nkind = \"http\"\ninterval = 0.5\n\n"
    );
    for (n, name) in (1..).zip(SERVERS) {
        let address = EcmpRole::Server(n).address();
        text += &format!("[backends.web.servers.{name}]\naddr = \"{address}:{PORT}\"\n");
    }
    text
}
