//! Own code that follows each request: responses do not name their server's software, and the
//! program prints what each client got, and how fast.
//! `cargo run -p convey-embed --example own_hook`, then `curl -i http://127.0.0.1:8080/`.

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
    content_type: String,
}

impl ExchangeHook for Follow {
    fn on_response(&mut self, response: &mut ResponseEdit<'_>) {
        let content_type = response.field("content-type").unwrap_or(b"nothing");
        self.content_type = String::from_utf8_lossy(content_type).into_owned();
        // The name is valid.
        let _ = response.remove_field("Server");
    }

    fn on_end(&mut self, end: &ExchangeSummary) {
        let ExchangeSummary { bytes_tx, took, .. } = end;
        println!("{} got {bytes_tx} bytes of {} in {took:?}", self.client, self.content_type);
    }
}

fn follow(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let client = request.client().to_string();
    request.follow(Follow { client, content_type: String::new() });
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _balancer = EmbeddedBalancer::builder(CONFIG).stack(Check::new(usual(), follow)).start().await?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
