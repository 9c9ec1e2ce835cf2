//! `convey doctor`: prints what it finds.

use std::process::ExitCode;

use anyhow::{Context, anyhow};

use super::{Failure, file, print};
use crate::cli::{Options, Service};
use crate::doctor::{Examination, as_json, as_text, balancer, server};

/// Something was found.
const FOUND: u8 = 3;

/// Looks at this host: as a balancer, or as a server of direct server return for `service`.
pub(super) fn run(options: &Options, json: bool, service: Option<Service>) -> Result<ExitCode, Failure> {
    let found: Examination = match service {
        Some(Service { vip, port }) => server::look(vip, port).map_err(|why| anyhow!("{why}"))?.into(),
        None => balancer::look(&file(options)).map_err(Failure::Config)?.into(),
    };
    let text = if json { as_json(&found).context("cannot print")? } else { as_text(&found) };
    print(&text);
    Ok(if found.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}
