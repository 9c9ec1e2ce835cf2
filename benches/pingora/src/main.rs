//! Reverse proxy made of the pingora crates, as a peer of the benchmark
//! `cargo bench --bench peers -- http --pingora BINARY`.
//!
//! Servers take turns, connections to them are kept, and each core has a thread. HTTP/1.1 and
//! cleartext HTTP/2 share one address.
//!
//!     pingora-peer LISTEN SERVER...

use std::thread::available_parallelism;

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::apps::HttpServerOptions;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_load_balancing::LoadBalancer;
use pingora_load_balancing::selection::RoundRobin;
use pingora_proxy::{ProxyHttp, ProxyServiceBuilder, Session};

/// Idle connections to servers that are kept, as many as nginx keeps in this comparison.
const KEPT: usize = 512;

struct InTurn(LoadBalancer<RoundRobin>);

#[async_trait]
impl ProxyHttp for InTurn {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        let server = self.0.select(b"", 1).expect("a server is always there: nobody checks them");
        Ok(Box::new(HttpPeer::new(server, false, String::new())))
    }
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (listen, servers) = (arguments.next().unwrap_or_default(), arguments.collect::<Vec<_>>());
    assert!(!servers.is_empty(), "usage: pingora-peer LISTEN SERVER...");
    let settings = ServerConf {
        threads: available_parallelism()?.get(),
        upstream_keepalive_pool_size: KEPT,
        // SIGTERM stops the proxy at once.
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, settings);
    server.bootstrap();
    let servers = LoadBalancer::try_from_iter(&servers)?;
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    let builder = ProxyServiceBuilder::new(&server.configuration, InTurn(servers));
    let mut service = builder.server_options(options).build();
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever()
}
