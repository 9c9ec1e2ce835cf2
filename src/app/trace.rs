//! `convey trace`: prints live events of clients and packets.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use convey_cli::operator::{Client, PacketFile, Refused, ShownLine, trace_path};
use convey_cli::{Options, TraceArgs};

use super::control_socket::places;
use super::{Failure, runtime};

/// Prints events until the trace ends or the reader closes the output.
pub(super) fn run(options: &Options, args: &TraceArgs) -> Result<ExitCode, Failure> {
    let mut output = Output::new(args);
    let shown = runtime()?.block_on(async {
        let client = Client::find(&places(options.socket.as_deref())).await?;
        client.stream(&trace_path(args), |line| output.take(line)).await
    });
    shown.map_err(|Refused(why)| anyhow!("{why}"))?;
    match output.failed.take() {
        // The reader, such as `head`, has closed the output.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Some(error) => Err(anyhow::Error::new(error).context(output.writes).into()),
        None if output.has_ended => Ok(ExitCode::SUCCESS),
        None => Err(anyhow!("convey has ended, and the trace with it").into()),
    }
}

/// Destination of the trace's lines.
struct Output {
    is_json: bool,
    /// Path of the file for captured packets. The file is created with the first line, so that a
    /// refused trace leaves no file.
    path: Option<PathBuf>,
    packets: Option<PacketFile<Box<dyn Write + Send>>>,
    /// Name of the output for error messages.
    writes: String,
    has_ended: bool,
    failed: Option<io::Error>,
}

impl Output {
    fn new(args: &TraceArgs) -> Output {
        let (path, writes) = (args.pcap.clone(), String::new());
        Output { is_json: args.json, path, packets: None, writes, has_ended: false, failed: None }
    }

    /// Writes one line. Returns whether the trace should continue.
    fn take(&mut self, line: &str) -> bool {
        let written = self.write(line);
        self.failed = written.err();
        self.failed.is_none() && !self.has_ended
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        self.writes = "cannot read the trace".to_owned();
        let event = ShownLine::read(line).map_err(|Refused(why)| io::Error::other(why))?;
        if let Some(path) = &self.path {
            self.writes = format!("cannot write {}", path.display());
            let packets = match &mut self.packets {
                Some(packets) => packets,
                none => none.insert(PacketFile::new(open(path)?)?),
            };
            packets.add(&event)?;
        }
        self.writes = "cannot print".to_owned();
        self.has_ended = event.is_end();
        if self.path.as_deref() == Some(Path::new("-")) {
            return io::stdout().flush();
        }
        let mut out = io::stdout().lock();
        match self.is_json {
            true => writeln!(out, "{line}")?,
            false => out.write_all(event.text().as_bytes())?,
        }
        out.flush()
    }
}

/// Opens the output for captured packets. The path `-` is standard output, for `tcpdump -r -`; no
/// events are printed in that case.
fn open(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    Ok(Box::new(BufWriter::new(File::create(path)?)))
}
