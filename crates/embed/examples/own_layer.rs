//! A custom layer: requests need a key, and servers get the name of its owner.
//! `cargo run -p convey-embed --example own_layer`,
//! then `curl -H 'X-Key: sesame' http://127.0.0.1:8080/`.

use convey_embed::EmbeddedBalancer;
use convey_http::stack::{Check, usual};
use convey_http::{HttpRequest, LocalReply};

const CONFIG: &str = r#"
[frontends.web]
listen_addr = "127.0.0.1:8080"
mode = "http"
backend = "app"

[backends.app.servers.a]
addr = "127.0.0.1:9001"
"#;

fn has_key(request: &mut HttpRequest) -> Result<(), LocalReply> {
    match request.head().field("x-key") {
        Some(b"sesame") => request.set_field("X-User", "ali").map_err(|_| LocalReply::new(500)),
        _ => Err(LocalReply::new(401).with_body("a key is needed\n")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _balancer = EmbeddedBalancer::builder(CONFIG).stack(Check::new(usual(), has_key)).start().await?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
