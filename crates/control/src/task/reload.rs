//! Reloads of the configuration file.

use log::warn;

use super::requests::{Done, Outcome, RequestRefusal};
use super::{DataPath, Task};
use crate::EventKind;
use crate::EventLevel::{Error, Info, Warn};
use convey_config::{self as config, Diff, LoadError, Loaded};

impl<D: DataPath> Task<D> {
    /// Notifies the service manager that a reload begins, unless the process is stopping.
    pub(super) fn notify_reload(&self) {
        if !self.state.is_stopping() {
            self.supervisor.reload_begins();
        }
    }

    /// Applies a file that was read. If the file has a problem, the running configuration stays.
    pub(super) async fn reload(&mut self, loaded: Result<Loaded, LoadError>) -> Outcome {
        let file = self.file.path.display().to_string();
        let diff = match self.try_reload(loaded).await {
            Ok(diff) => diff,
            Err(problems) => {
                self.reload_history.fail(&problems, (self.now)());
                problems.iter().for_each(|problem| self.log_event(EventKind::Reload, Error, problem));
                let line = format!("{file} not reloaded: the running configuration stays");
                self.log_event(EventKind::Reload, Error, &line);
                return Err(RequestRefusal::Invalid(problems));
            }
        };
        self.reload_history.succeed(&self.loaded.config, (self.now)());
        self.reload_history.refuse_certificates(&self.loaded.refused_certificates);
        if diff == Diff::default() {
            let line = format!("{file} read again: no effective changes");
            self.log_event(EventKind::Reload, Info, &line);
        }
        for change in &diff.changes {
            self.log_event(EventKind::Reload, Info, &format!("reload: {change}"));
        }
        for change in &diff.needs_restart {
            self.log_event(EventKind::Reload, Warn, &format!("reload: {change} needs restart"));
        }
        Ok(Done::Reloaded(diff))
    }

    /// Applies the changes of a file that need no restart. The next reload is compared with the
    /// applied configuration. Returns the changes, or one line for each problem.
    async fn try_reload(&mut self, loaded: Result<Loaded, LoadError>) -> Result<Diff, Vec<String>> {
        if self.state.config().is_none() {
            return Ok(Diff::default());
        }
        let (loaded, running) = (loaded.map_err(lines)?, &self.loaded.config);
        let stopping = self.state.is_stopping();
        let (loaded, diff) = if stopping { loaded.reload_draining(running) } else { loaded.reload(running) };
        if let Some(obstacle) = self.data_path.refuse(running, &loaded.config) {
            return Err(vec![obstacle]);
        }
        let odd = self.on_host(&loaded.config, |network| config::validate_mode(&loaded, network));
        let odd =
            odd.map_err(|why| vec![why.to_string()])?.map_err(|wrong| lines(LoadError::Invalid(wrong)))?;
        loaded.warnings.iter().chain(&odd).for_each(|warning| warn!("{warning}"));
        if diff == Diff::default() {
            self.loaded = loaded;
        } else {
            self.run_loaded(loaded).await.map_err(|why| vec![why.to_string()])?;
        }
        Ok(diff)
    }
}

fn lines(error: LoadError) -> Vec<String> {
    match error {
        LoadError::Invalid(problems) => problems.iter().map(ToString::to_string).collect(),
        unreadable => vec![unreadable.to_string()],
    }
}
