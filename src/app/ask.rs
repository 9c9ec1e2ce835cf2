//! Commands that query or change the running convey.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use convey_api::{EventReport, FlowListReport, StatsReport};
use convey_cli::operator::{
    self, Change, Client, Refused, StatusScreen, Wanted, carry_out, certificate_faults, kill, past, path,
    shown, wait_until_idle,
};
use convey_cli::{FlowsArgs, FlowsCommand, Options, StatusFilter};
use hyper::StatusCode;
use tokio::time::timeout;

use super::control_socket::places;
use super::{Failure, clock, print, runtime};

/// Exit code if a frontend cannot serve its clients.
const NOT_READY: u8 = 3;

/// Sends a change to the running convey and prints the result. With `patience`, waits at most this
/// long until the draining target has no connections.
pub(super) fn steer(
    options: &Options,
    change: &Change,
    patience: Option<Duration>,
) -> Result<ExitCode, Failure> {
    let done = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        print(&carry_out(&client, change).await?);
        match (&change.wanted, patience) {
            (Wanted::State(target, _), Some(patience)) => {
                wait_until_idle(&client, target, patience, print).await
            }
            _ => Ok(()),
        }
    });
    done.map_err(refused)?;
    Ok(ExitCode::SUCCESS)
}

/// Differences between the running convey and this file, one per line. Empty if no convey answers.
pub(super) async fn other_than_file(file: &Path, socket: Option<&Path>) -> Vec<String> {
    let asked = async {
        let client = Client::find(&places(socket)).await?;
        client.get::<StatsReport>("/v1/status").await
    };
    let Ok(Ok(status)) = timeout(PATIENCE, asked).await else { return Vec::new() };
    let real = |path: &Path| path.canonicalize().ok();
    let is_file = |other: &str| real(Path::new(other)).is_some_and(|other| Some(other) == real(file));
    operator::other_than_file(&status, is_file, wall_clock())
}

pub(super) fn wall_clock() -> SystemTime {
    clock::wall_clock_start() + Duration::from_nanos(clock::now().0)
}

/// Upper bound for the query of the running convey in `convey check`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Part of the status to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatusPart {
    /// The state of frontends and backends.
    Screen,
    /// The latest events.
    Events,
}

/// Format of printed output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFormat {
    Text,
    Json,
}

/// Prints a part of the status.
///
/// `filter` selects the content of the screen.
pub(super) fn status(
    options: &Options,
    filter: &StatusFilter,
    part: StatusPart,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let asked = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        let (readiness, obstacles) = client.text("/readyz").await?;
        let obstacles: Vec<String> = obstacles.lines().map(str::to_owned).collect();
        let status: StatsReport = client.get("/v1/status").await?;
        let is_ready = readiness == StatusCode::OK;
        let is_certified = certificate_faults(&status).is_empty();
        let text = match (part, format) {
            (StatusPart::Events, OutputFormat::Json) => client.text("/v1/events").await?.1,
            (StatusPart::Screen, OutputFormat::Json) => client.text("/v1/status").await?.1,
            (StatusPart::Events, OutputFormat::Text) => {
                past(&client.get::<Vec<EventReport>>("/v1/events").await?)
            }
            (StatusPart::Screen, OutputFormat::Text) => {
                let obstacles = if is_ready { &[][..] } else { &obstacles };
                StatusScreen { obstacles, filter, now: wall_clock(), width: width() }.text(status)?
            }
        };
        Ok((text, is_ready && is_certified))
    });
    let (text, is_ready) = asked.map_err(refused)?;
    print(&text);
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) })
}

/// Prints the flows that `args` select, or ends the flows with the given ids.
pub(super) fn flows(options: &Options, args: &FlowsArgs) -> Result<ExitCode, Failure> {
    let asked = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        if let Some(FlowsCommand::Kill { ids }) = &args.command {
            let mut failed = Vec::new();
            for id in ids {
                match kill(&client, id).await {
                    Ok(done) => print(&done),
                    Err(Refused(why)) => failed.push(why),
                }
            }
            return if failed.is_empty() { Ok(()) } else { Err(Refused(failed.join("\n"))) };
        }
        let path = path(args);
        if args.json {
            let (status, text) = client.text(&path).await?;
            if status.is_success() {
                print(&text);
                return Ok(());
            }
        }
        let list: FlowListReport = client.get(&path).await?;
        print(&shown(&list, args, width()));
        Ok(())
    });
    asked.map_err(refused)?;
    Ok(ExitCode::SUCCESS)
}

/// Width of lines in columns: the variable `COLUMNS`, otherwise the width of the terminal. `None`
/// if there is no limit.
pub(super) fn width() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal =
        || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    said.or_else(terminal).filter(|width| *width > 0)
}

/// Converts a refusal by the running convey into a failure of the command.
pub(super) fn refused(Refused(why): Refused) -> Failure {
    Failure::Start(anyhow!("{why}"))
}
