//! A reverse proxy: `cargo run -p convey-embed --example reverse_proxy`,
//! then `curl http://127.0.0.1:8080/`.

use std::time::Duration;

const CONFIG: &str = r#"
[frontends.web]
listen_addr = "127.0.0.1:8080"
mode = "http"
backend = "app"

[backends.app]
health_check = { kind = "http", path = "/" }
servers.a.addr = "127.0.0.1:9001"
servers.b.addr = "127.0.0.1:9002"
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer = convey_embed::EmbeddedBalancer::builder(CONFIG).start().await?;
    tokio::signal::ctrl_c().await?;
    balancer.stop(Duration::from_secs(30)).await;
    Ok(())
}
