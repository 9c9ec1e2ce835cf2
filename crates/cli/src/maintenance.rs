//! Arguments of `convey maintenance`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, value_parser};
use convey_api::MaintenanceChange;
use convey_model::{ErrorPage, HttpTarget, Maintenance, Prefix};

use super::duration::duration;
use super::operate::split_route;
use crate::operator::{Change, Wanted};

/// Commands that begin and end maintenance.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum MaintenanceCommand {
    /// Answer all requests with a page; running requests finish
    ///
    /// For example `convey maintenance on web/checkout --page later.html`. Servers, health checks,
    /// addresses and /readyz stay as they are.
    On {
        /// Frontend, route or backend.
        #[command(flatten)]
        object: MaintainedObject,
        /// Page for clients: a .html, .json or .txt file in UTF-8 of at most 64 KiB
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
        /// Line of text for clients, in place of a page
        #[arg(long, value_name = "TEXT", conflicts_with = "page", value_parser = text_line)]
        text: Option<String>,
        /// Status of the replies
        #[arg(long, value_name = "N", default_value_t = Maintenance::STATUS, value_parser = value_parser!(u16).range(400..600))]
        status: u16,
        /// Time after which clients should try again (Retry-After)
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = retry_after)]
        retry_after: u32,
        /// Network of clients that are served nevertheless, such as your own; may be repeated
        #[arg(long, value_name = "NETWORK", value_parser = network)]
        allow: Vec<Prefix>,
    },
    /// End a maintenance: requests are served again
    Off {
        /// Frontend, route or backend.
        #[command(flatten)]
        object: MaintainedObject,
    },
}

/// Object of a maintenance.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[group(required = true, multiple = false)]
pub struct MaintainedObject {
    /// A frontend, or one of its routes
    #[arg(value_name = "FRONTEND[/ROUTE]", value_parser = frontend_or_route)]
    target: Option<HttpTarget>,
    /// A backend: the requests that all frontends of mode http send to it
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
}

impl MaintenanceCommand {
    /// Change that the command requests. Reads the page.
    ///
    /// # Errors
    /// The page cannot be read, or is none; operator-facing message.
    pub fn change(&self) -> Result<Change, String> {
        let (object, change) = match self {
            MaintenanceCommand::On { object, page, text, status, retry_after, allow } => {
                let page = page.as_deref().map(read_page).transpose()?;
                let text = text.as_ref().map(|text| (format!("{text}\n"), None));
                let (page, content_type) = page.or(text).unzip();
                let change = MaintenanceChange {
                    status: Some(*status),
                    retry_after: Some(*retry_after),
                    page,
                    content_type: content_type.flatten(),
                    allow: allow.iter().map(Prefix::to_string).collect(),
                };
                (object, Some(change))
            }
            MaintenanceCommand::Off { object } => (object, None),
        };
        let target = object.target();
        Ok(change
            .map_or(Wanted::EndMaintenance(target.clone()), |change| Wanted::Maintenance(target, change))
            .into())
    }
}

impl MaintainedObject {
    fn target(&self) -> HttpTarget {
        let backend = || HttpTarget::Backend(self.backend.clone().unwrap_or_default());
        self.target.clone().unwrap_or_else(backend)
    }
}

/// Reads a page, and returns its text and type.
fn read_page(path: &Path) -> Result<(String, Option<String>), String> {
    let shown = path.display();
    let content_type = match path.extension().and_then(|ending| ending.to_str()) {
        Some("html" | "htm" | "json" | "txt") => ErrorPage::type_of(path),
        _ => {
            return Err(format!(
                "--page {shown}: the name has to end with .html, .json or .txt, which sets the type"
            ));
        }
    };
    let size = fs::metadata(path).map_err(|error| format!("--page {shown}: {error}"))?.len();
    if size > Maintenance::MAX_PAGE as u64 {
        return Err(format!(
            "--page {shown}: found {size} bytes, allowed: at most {}",
            Maintenance::MAX_PAGE
        ));
    }
    let bytes = fs::read(path).map_err(|error| format!("--page {shown}: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("--page {shown}: the page is not UTF-8"))?;
    if text.trim().is_empty() {
        return Err(format!("--page {shown}: the page is empty"));
    }
    Ok((text, Some(content_type.to_owned())))
}

/// Checks the line of text for clients.
fn text_line(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("the text is empty; leave --text out to get the default page".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Parses a time up to a year, and returns its seconds, rounded up.
fn retry_after(text: &str) -> Result<u32, String> {
    let time = duration(text)?;
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    let seconds = u32::try_from(seconds).ok().filter(|seconds| *seconds <= Maintenance::MAX_RETRY_AFTER);
    let most = Maintenance::MAX_RETRY_AFTER;
    seconds.ok_or_else(|| format!("allowed: up to {most} seconds (365 days)"))
}

/// Parses `IP` or `IP/LEN`.
fn network(text: &str) -> Result<Prefix, String> {
    const EXPECTED: &str = "expected: IP or IP/LEN, such as 192.0.2.0/24";
    if text.contains(',') {
        return Err(format!("{EXPECTED}; repeat --allow for each network"));
    }
    text.parse().map_err(|()| match Prefix::around(text) {
        Some(meant) => format!("all bits after the prefix must be zero; did you mean {meant}?"),
        None => EXPECTED.to_owned(),
    })
}

/// Parses `FRONTEND` or `FRONTEND/ROUTE`.
fn frontend_or_route(text: &str) -> Result<HttpTarget, String> {
    match (split_route(text), text.contains('/') || text.is_empty()) {
        (Some(route), _) => Ok(route),
        (None, false) => Ok(HttpTarget::Frontend(text.to_owned())),
        (None, true) => Err("expected: FRONTEND or FRONTEND/ROUTE, such as web/checkout".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_a_frontend_or_a_route_whose_name_may_have_slashes() {
        assert_eq!(frontend_or_route("web"), Ok(HttpTarget::Frontend("web".into())));
        assert_eq!(frontend_or_route("web/*/v1"), Ok(HttpTarget::route("web", "*/v1")));
        assert!(["", "web/", "/v1"].iter().all(|wrong| frontend_or_route(wrong).is_err()));
    }

    #[test]
    fn wrong_option_of_maintenance_is_an_error_with_the_fix() {
        assert_eq!(network("10.0.0.0/8"), Ok("10.0.0.0/8".parse().unwrap()));
        let told = network("10.0.0.5/8").unwrap_err();
        assert!(told.ends_with("did you mean 10.0.0.0/8?"), "{told}");
        let told = network("10.0.0.1,10.0.0.2").unwrap_err();
        assert!(told.ends_with("repeat --allow for each network"), "{told}");
        assert!(["office", "10.0.0.0/33"].iter().all(|wrong| network(wrong).is_err()));
        assert!(text_line("Later").is_ok() && text_line("").is_err() && text_line(" ").is_err());
        assert_eq!([retry_after("1500ms"), retry_after("365d")], [Ok(2), Ok(31_536_000)]);
        for wrong in ["366d", "99999999d", "18446744073709551615"] {
            let told = retry_after(wrong).unwrap_err();
            assert_eq!(told, "allowed: up to 31536000 seconds (365 days)", "{wrong}");
        }
    }

    #[test]
    fn empty_page_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("later.html");
        for empty in ["", "\n"] {
            fs::write(&page, empty).unwrap();
            let told = read_page(&page).unwrap_err();
            assert!(told.ends_with("later.html: the page is empty"), "{told}");
        }
    }

    #[test]
    fn page_without_a_type_or_a_file_is_an_error() {
        let told = read_page(Path::new("later.php")).unwrap_err();
        assert!(told.contains("end with .html, .json or .txt"), "{told}");
        let told = read_page(Path::new("/nowhere/later.html")).unwrap_err();
        assert!(told.contains("--page /nowhere/later.html: No such file"), "{told}");
    }
}
