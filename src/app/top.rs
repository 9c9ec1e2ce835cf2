//! `convey top`: terminal, keys, signals, and queries to convey.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use convey_api::{EventReport, StatsReport};
use convey_cli::operator::{Client, Refused, TopKey, TopSample, TopState, draw, is_restarted, top_text};
use convey_cli::{Options, TopArgs};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::ask::{refused, wall_clock, width};
use super::control_socket::places;
use super::{Failure, clock, print, runtime};

/// Upper bound for the wait for an answer. If no answer arrives in time, the screen reports that
/// convey does not answer, and the request is repeated.
const PATIENCE: Duration = Duration::from_secs(5);

/// Width of the output of `--once`, in columns, if the width of the terminal is unknown. All table
/// columns fit.
const WIDTH_ONCE: usize = 120;

/// Shows the screen until the operator quits, or prints it once.
pub(super) fn run(options: &Options, args: &TopArgs) -> Result<ExitCode, Failure> {
    let has_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !has_terminal && !args.once {
        return Err(anyhow!("top needs a terminal; `convey top --once` prints the screen as text").into());
    }
    let every = Duration::from_secs(args.interval.get());
    let mut state = TopState::new(args.sort, &args.filter);
    runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await.map_err(refused)?;
        let mut source = Source { client, last: None, next_event: 0 };
        // If convey does not answer at the start, that is an error. Later it may be in an upgrade.
        state.take(source.sample().await.map_err(|why| anyhow!(why))?);
        if args.once {
            sleep(every).await;
            state.take(source.sample().await.map_err(|why| anyhow!(why))?);
            print(&top_text(&mut state, width().unwrap_or(WIDTH_ONCE).try_into().unwrap_or(u16::MAX)));
            return Ok(ExitCode::SUCCESS);
        }
        // `try_init` also sets a hook that restores the terminal after a panic.
        let terminal = ratatui::try_init().context("cannot draw on this terminal");
        let shown = match terminal {
            Ok(mut terminal) => show(&mut terminal, source, &mut state, every).await,
            Err(error) => Err(error),
        };
        ratatui::restore();
        Ok(shown?)
    })
}

/// Client that queries convey repeatedly.
struct Source {
    client: Client,
    last: Option<StatsReport>,
    next_event: u64,
}

impl Source {
    /// Queries the status and the new events.
    async fn sample(&mut self) -> Result<TopSample, String> {
        let asked = timeout(PATIENCE, async {
            let status: StatsReport = self.client.get("/v1/status").await?;
            let (at, clock) = (clock::now(), wall_clock());
            if self.last.as_ref().is_some_and(|last| is_restarted(&status, last)) {
                self.next_event = 0;
            }
            let events = self.client.get(&format!("/v1/events?since={}", self.next_event)).await?;
            Ok(TopSample { at, clock, status, events })
        });
        let sample = match asked.await {
            Ok(sample) => sample.map_err(|Refused(why)| why)?,
            Err(_) => return Err(format!("no answer within {PATIENCE:?}")),
        };
        let last: Option<&EventReport> = sample.events.last();
        self.next_event = last.map_or(self.next_event, |event| event.number + 1);
        self.last = Some(sample.status.clone());
        Ok(sample)
    }
}

/// Event of the main loop.
enum Input {
    Key(KeyEvent),
    /// The size of the terminal has changed.
    Resized,
    Answer(Result<Box<TopSample>, String>),
    /// Keys can no longer be read.
    Gone(io::Error),
}

async fn show(
    terminal: &mut DefaultTerminal,
    source: Source,
    state: &mut TopState,
    every: Duration,
) -> anyhow::Result<ExitCode> {
    // Environment variable `NO_COLOR`: https://no-color.org
    let has_colors = env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let (sender, mut inputs) = mpsc::channel(16);
    let keys = sender.clone();
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys))?;
    tokio::spawn(sample_repeatedly(source, every, sender));
    let mut ends = Ends::new()?;
    loop {
        terminal.draw(|frame| draw(frame.area(), frame.buffer_mut(), state, has_colors))?;
        let input = tokio::select! {
            input = inputs.recv() => input,
            signal = ends.next() => return Ok(ExitCode::from(128 + signal)),
        };
        match input {
            Some(Input::Key(key)) if is_suspend(key) => suspend(terminal)?,
            Some(Input::Key(key)) => {
                if key_of(key).is_some_and(|key| state.press(key)) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Some(Input::Answer(Ok(sample))) => state.take(*sample),
            Some(Input::Answer(Err(why))) => state.note_failure(&why),
            Some(Input::Resized) => {}
            Some(Input::Gone(error)) => return Err(error).context("the terminal is gone"),
            None => return Err(anyhow!("the terminal is gone")),
        }
    }
}

/// Signals that end the program.
struct Ends([(u8, tokio::signal::unix::Signal); 4]);

impl Ends {
    fn new() -> io::Result<Ends> {
        let of = |signal: Signal, kind| Ok::<_, io::Error>((signal.as_raw() as u8, self::signal(kind)?));
        Ok(Ends([
            of(Signal::TERM, SignalKind::terminate())?,
            of(Signal::INT, SignalKind::interrupt())?,
            of(Signal::QUIT, SignalKind::quit())?,
            of(Signal::HUP, SignalKind::hangup())?,
        ]))
    }

    /// Waits for a signal and returns its number.
    async fn next(&mut self) -> u8 {
        let [(a, of_a), (b, of_b), (c, of_c), (d, of_d)] = &mut self.0;
        tokio::select! {
            _ = of_a.recv() => *a,
            _ = of_b.recv() => *b,
            _ = of_c.recv() => *c,
            _ = of_d.recv() => *d,
        }
    }
}

/// Reads keys in a separate thread, which ends with the process.
fn read_keys(inputs: &mpsc::Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(error) => Input::Gone(error),
        };
        let is_gone = matches!(input, Input::Gone(_));
        if inputs.blocking_send(input).is_err() || is_gone {
            return;
        }
    }
}

async fn sample_repeatedly(mut source: Source, every: Duration, inputs: mpsc::Sender<Input>) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = source.sample().await.map(Box::new);
        if inputs.send(Input::Answer(answer)).await.is_err() {
            return;
        }
    }
}

/// Whether the key is Ctrl-Z, which raw mode passes on as a key.
fn is_suspend(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('z') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Suspends the program. The shell controls the terminal until it continues this process.
fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    ratatui::restore();
    kill_process(getpid(), Signal::TSTP)?;
    *terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    // Do not use `clear` here: it would query the terminal for the cursor position, and the thread
    // that reads keys would receive the answer.
    terminal.resize(terminal.size()?.into())?;
    Ok(())
}

fn key_of(key: KeyEvent) -> Option<TopKey> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => TopKey::Interrupt,
        KeyCode::Char(letter) if !is_control => TopKey::Char(letter),
        KeyCode::Enter => TopKey::Enter,
        KeyCode::Esc => TopKey::Escape,
        KeyCode::Backspace => TopKey::Backspace,
        KeyCode::Down => TopKey::Row(1),
        KeyCode::Up => TopKey::Row(-1),
        KeyCode::PageDown => TopKey::Page(1),
        KeyCode::PageUp => TopKey::Page(-1),
        KeyCode::Home => TopKey::Home,
        KeyCode::End => TopKey::End,
        KeyCode::Right => TopKey::Column(1),
        KeyCode::Left => TopKey::Column(-1),
        _ => return None,
    })
}
