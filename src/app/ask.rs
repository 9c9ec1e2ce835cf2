//! Commands that ask the convey that runs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use hyper::StatusCode;

use super::control_socket::places;
use super::{Failure, clock, print, runtime};
use crate::cli::Options;
use crate::operator::{
    Client, PastEvent, Refused, Status, Wanted, carry_out, overview, past, wait_until_idle,
};

/// Some frontend cannot serve its clients.
const NOT_READY: u8 = 3;

/// Has it done, and prints what has become of it. Waits until what drains has no connection, if it is told how long.
pub(super) fn steer(
    options: &Options,
    wanted: &Wanted,
    patience: Option<Duration>,
) -> Result<ExitCode, Failure> {
    let done = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        print(&carry_out(&client, wanted).await?);
        match (wanted, patience) {
            (Wanted::State(target, _), Some(patience)) => {
                wait_until_idle(&client, target, patience, print).await
            }
            _ => Ok(()),
        }
    });
    done.map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints one screen, or what has happened lately; or, as `json`, all there is to say of it.
pub(super) fn status(options: &Options, json: bool, events: bool) -> Result<ExitCode, Failure> {
    let asked = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        let (readiness, obstacles) = client.text("/readyz").await?;
        let obstacles: Vec<String> = obstacles.lines().map(str::to_owned).collect();
        let is_ready = readiness == StatusCode::OK;
        let text = match (events, json) {
            (true, true) => client.text("/v1/events").await?.1,
            (false, true) => client.text("/v1/status").await?.1,
            (true, false) => past(&client.get::<Vec<PastEvent>>("/v1/events").await?),
            (false, false) => {
                let status: Status = client.get("/v1/status").await?;
                let now = clock::wall_clock_start() + Duration::from_nanos(clock::now().0);
                overview(&status, if is_ready { &[] } else { &obstacles }, now)
            }
        };
        Ok((text, is_ready))
    });
    let (text, is_ready) = asked.map_err(failure)?;
    print(&text);
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) })
}

fn failure(Refused(why): Refused) -> Failure {
    Failure::Start(anyhow!("{why}"))
}
