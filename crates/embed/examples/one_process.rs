//! One process with HTTP and TCP frontends, an axum server behind them, and one graceful stop.
//! It adds and removes a server while it runs.
//! `cargo run -p convey-embed --example one_process`,
//! then `curl http://127.0.0.1:8080/` (HTTP) or `:8081` (TCP).

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use convey_embed::EmbeddedBalancer;
use tokio::net::TcpListener;

const CONFIG: &str = r#"
[frontends.web]
listen_addr = "127.0.0.1:8080"
mode = "http"
backend = "app"

[frontends.raw]
listen_addr = "127.0.0.1:8081"
backend = "app"

[backends.app.servers.own]
addr = "127.0.0.1:9001"
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (stop, stops) = tokio::sync::oneshot::channel::<()>();
    let app = Router::new().route("/", get(async || "hello\n"));
    let listener = TcpListener::bind("127.0.0.1:9001").await?;
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stops.await) });
    let server = tokio::spawn(server.into_future());

    let balancer = EmbeddedBalancer::builder(CONFIG).start().await?;
    balancer.add_server("app", "guest", "127.0.0.1:9002").await?;
    balancer.remove_server("app", "guest").await?;

    tokio::signal::ctrl_c().await?;
    // The balancer stops first, because its open requests still need the server.
    balancer.stop(Duration::from_secs(30)).await;
    let _ = stop.send(());
    server.await??;
    Ok(())
}
