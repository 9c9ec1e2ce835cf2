//! A custom algorithm: requests for a tenant go to the server with the tenant's name, while that
//! server is available. `cargo run -p convey-embed --example own_algorithm`, then
//! `curl -H 'X-Tenant: blue' http://127.0.0.1:8080/`.

use convey_embed::EmbeddedBalancer;
use convey_http::stack::{Check, Forwards, find_route};
use convey_http::{HttpRequest, LocalReply};

const CONFIG: &str = r#"
[frontends.web]
listen_addr = "127.0.0.1:8080"
mode = "http"
backend = "tenants"

[backends.tenants.servers]
blue.addr = "127.0.0.1:9001"
green.addr = "127.0.0.1:9002"
"#;

fn by_tenant(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let tenant = request.head().field("x-tenant").unwrap_or_default();
    let named = request.servers().iter().find(|server| server.config.name.as_bytes() == tenant);
    if let Some(server) = named.cloned() {
        request.choose(&server);
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // After the routes, because a request has servers once it has a route.
    let stack = find_route(Check::new(Forwards, by_tenant));
    let _balancer = EmbeddedBalancer::builder(CONFIG).stack(stack).start().await?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
