//! A terminal for commands with a screen: `script` makes it, the test presses keys, and reads the
//! screen.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};

use convey_testkit::{BalancerProcess, Loopback, Need, Process, run, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// Tool that makes the terminal.
pub(crate) const SCRIPT: Need = Need::Tool("script", "bsdutils");

/// Size of the terminal: larger than any test requires.
const ROWS: usize = 60;
const COLUMNS: usize = 200;

/// Control sequence of a command that takes the whole screen.
const FULL_SCREEN: &str = "\x1b[?1049h";

/// A command of convey in a terminal of its own.
pub(crate) struct PseudoTerminal {
    process: Process,
    keys: ChildStdin,
    folder: PathBuf,
}

/// Outcome of a command.
pub(crate) struct Ended {
    pub(crate) code: String,
    /// All output to the terminal so far.
    pub(crate) output: String,
    /// The modes of the terminal before and after it.
    pub(crate) modes: (String, String),
}

impl PseudoTerminal {
    /// Runs `convey LINE` in a terminal of 80 by 24. `name` distinguishes the terminal within the
    /// test.
    pub(crate) fn start(
        lab: &Loopback,
        balancer: &BalancerProcess,
        name: &str,
        line: &str,
    ) -> PseudoTerminal {
        let folder = lab.directory().join(name);
        fs::create_dir(&folder).unwrap();
        let asked = balancer.command();
        let session = "stty cols 80 rows 24; stty -g > before; tty > tty; \
             sh -c 'echo $$ > pid; exec \"$CONVEY\" $LINE'; echo $? > code; stty -g > after";
        let mut command = Command::new("script");
        command.args(["-qfec", session, "/dev/null"]).current_dir(&folder);
        command.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("SHELL", "/bin/sh").env("CONVEY", asked.get_program()).env("LINE", line);
        command.env_remove("COLUMNS").env_remove("NO_COLOR").env("TERM", "xterm-256color");
        let output = File::create(folder.join("output")).unwrap();
        command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let keys = process.keys();
        PseudoTerminal { process, keys, folder }
    }

    /// Presses keys, as the bytes that a terminal sends.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Current contents of the screen, one line for each row.
    pub(crate) fn screen(&self) -> Vec<String> {
        shown(&self.output())
    }

    /// Waits until `look` finds something on the screen.
    pub(crate) fn wait_for<T>(&self, what: &str, look: impl Fn(&[String]) -> Option<T>) -> T {
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || look(&self.screen()))
        }));
        seen.unwrap_or_else(|_| panic!("{what}, not seen on:\n{}", self.screen().join("\n").trim_end()))
    }

    /// Waits for a line with this text.
    pub(crate) fn wait_for_text(&self, text: &str) {
        self.wait_for(text, |lines| lines.iter().any(|line| line.contains(text)).then_some(()));
    }

    /// Waits until the command has taken the whole screen so many times.
    pub(crate) fn wait_for_screens(&self, times: usize) {
        wait_for("a screen", || (self.output().matches(FULL_SCREEN).count() >= times).then_some(()));
    }

    /// Resizes the terminal.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = ["cols".to_owned(), columns.to_string(), "rows".to_owned(), rows.to_string()];
        let resized = run(Command::new("stty").arg("-F").arg(self.line_of("tty")).args(size));
        assert_eq!(resized.code, Some(0), "{resized:?}");
    }

    /// Sends the command a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.line_of("pid").parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits for the end of the command.
    pub(crate) fn ended(mut self) -> Ended {
        self.process.wait();
        Ended {
            code: self.line_of("code"),
            output: self.output(),
            modes: (self.line_of("before"), self.line_of("after")),
        }
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("output")).unwrap()).into_owned()
    }

    fn line_of(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap().trim_end().to_owned()
    }
}

impl Ended {
    /// Checks that the screen is restored, the cursor is visible, and input is in line mode.
    pub(crate) fn assert_terminal_is_restored(&self) {
        assert_eq!(self.modes.0, self.modes.1);
        assert!(self.modes.0.contains(':'), "stty tells nothing: {:?}", self.modes);
        for (on, off) in [(FULL_SCREEN, "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
            let (last_on, last_off) = (self.output.rfind(on), self.output.rfind(off));
            assert!(
                last_on.is_some() && last_off > last_on,
                "{on:?} at {last_on:?}, {off:?} at {last_off:?}"
            );
        }
    }
}

/// Contents of a screen after this output. Interprets characters, cursor movements and clearing of
/// the screen, but no colors.
fn shown(output: &str) -> Vec<String> {
    let mut screen = vec![vec![' '; COLUMNS]; ROWS];
    let (mut column, mut row) = (0, 0);
    let mut letters = output.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' if letters.next() == Some('[') => {
                let mut arguments = String::new();
                let end = letters.by_ref().find(|letter| {
                    let is_end = ('@'..='~').contains(letter);
                    arguments.extend((!is_end).then_some(letter));
                    is_end
                });
                match end {
                    Some('H') => {
                        let mut place = arguments.split(';').map(|n| n.parse::<usize>().map_or(0, |n| n - 1));
                        (row, column) = (place.next().unwrap_or(0), place.next().unwrap_or(0));
                    }
                    Some('J') => screen.iter_mut().for_each(|row| row.fill(' ')),
                    _ => {}
                }
            }
            '\x1b' => {}
            '\r' => column = 0,
            '\n' => row += 1,
            letter => {
                if let Some(cell) = screen.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = letter;
                }
                column += 1;
            }
        }
    }
    screen.into_iter().map(|row| row.into_iter().collect::<String>().trim_end().to_owned()).collect()
}
