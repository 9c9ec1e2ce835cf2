//! `convey demo --ecmp`: runs until a signal ends it.

use std::process::ExitCode;

use anyhow::Context;
use convey_demo::EcmpDemo;
use convey_model::Mode;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, print, runtime};

/// Shows the demo until a signal arrives. Then removes everything that the demo created.
pub(super) fn run(mode: Mode) -> Result<ExitCode, Failure> {
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot start the demo")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot start the demo")?;
        let demo = EcmpDemo::new(mode).context("cannot start the demo")?;
        print(&demo.banner());
        let _servers = demo.start_servers().context("cannot start the demo")?;
        let shown = async {
            demo.start_balancers().await?;
            tokio::try_join!(demo.show(print), demo.play(print))
        };
        tokio::select! {
            shown = shown => { shown.context("the demo cannot continue")?; }
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        let told = demo.end();
        drop(demo);
        print(&told);
        anyhow::Ok(ExitCode::SUCCESS)
    })?;
    Ok(code)
}
