//! Own code that follows each request: responses get the time that they took, and the program
//! prints how much of which type each client got.
//! `cargo run -p convey-embed --example own_hook`, then `curl -i http://127.0.0.1:8080/`.

use std::time::Instant;

use convey_embed::EmbeddedBalancer;
use convey_http::stack::{Check, usual};
use convey_http::{ExchangeHook, ExchangeSummary, HttpRequest, LocalReply, ResponseEdit};

const CONFIG: &str = r#"
[frontends.web]
listen_addr = "127.0.0.1:8080"
mode = "http"
backend = "app"

[backends.app.servers.a]
addr = "127.0.0.1:9001"
"#;

struct Follow {
    client: String,
    began: Instant,
    content_type: String,
}

impl ExchangeHook for Follow {
    fn on_response(&mut self, response: &mut ResponseEdit<'_>) {
        let content_type = response.field("content-type").unwrap_or(b"nothing");
        self.content_type = String::from_utf8_lossy(content_type).into_owned();
        let took = format!("app;dur={}", self.began.elapsed().as_millis());
        // The name and the value are valid.
        let _ = response.add_field("Server-Timing", &took);
    }

    fn on_end(&mut self, end: &ExchangeSummary) {
        println!("{} got {} bytes of {}", self.client, end.bytes_tx, self.content_type);
    }
}

fn follow(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let client = request.client().to_string();
    request.follow(Follow { client, began: Instant::now(), content_type: String::new() });
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _balancer = EmbeddedBalancer::builder(CONFIG).stack(Check::new(usual(), follow)).start().await?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
