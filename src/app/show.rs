//! Output and servers that a demo adds to the balancer.

use std::sync::Arc;

use convey_config::Config;
use convey_demo::{DemoError, PacketDemo, Servers};
use convey_snapshot::NewestSnapshot;

use super::print;

/// Kind of demo that runs with the balancer.
pub(super) enum Show {
    /// No demo.
    Nothing,
    /// Servers on this machine.
    Servers,
    /// A lab of network namespaces.
    Lab(Arc<PacketDemo>),
}

impl Show {
    /// Starts the servers before the balancer starts.
    pub(super) async fn start_servers(&self, config: &Config) -> Result<Option<Servers>, DemoError> {
        match self {
            Show::Nothing => Ok(None),
            Show::Servers => convey_demo::start_servers(config).await.map(Some),
            Show::Lab(lab) => lab.start_servers().map(Some),
        }
    }

    /// Prints the banner, and starts to show the balancer at work.
    pub(super) fn begin(&self, config: &Config, snapshot: Arc<NewestSnapshot>) {
        match self {
            Show::Nothing => {}
            Show::Servers => {
                print(&convey_demo::banner(config));
                tokio::spawn(convey_demo::show_live(snapshot));
            }
            Show::Lab(lab) => {
                print(&lab.banner(config));
                let lab = lab.clone();
                tokio::spawn(async move {
                    let tracing = lab.clone();
                    #[expect(clippy::disallowed_methods, reason = "a demo")]
                    let traced = tokio::task::spawn_blocking(move || tracing.trace());
                    if let Ok(told) = traced.await {
                        print(&told);
                    }
                    lab.keep_asking();
                    convey_demo::show_live(snapshot).await;
                });
            }
        }
    }
}
