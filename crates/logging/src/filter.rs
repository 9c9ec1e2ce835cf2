//! Filter for log lines, with a default level and a level for each module that `RUST_LOG` names.

use convey_config::{LogLevel, parse_log_level};
use log::{LevelFilter, Metadata};

/// Verbose modules, each with the maximum level of its lines unless `RUST_LOG` names the module.
/// For example, `notify` warns of every removed directory, although convey then checks the file
/// anyway.
const NOISY: [(&str, LevelFilter); 2] = [("notify", LevelFilter::Error), ("rustls", LevelFilter::Error)];

/// Levels up to which log lines are written: a default level, and a level for some modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogFilter {
    all: LevelFilter,
    /// Levels by prefix of the module path. The longest matching prefix applies.
    modules: Vec<(String, LevelFilter)>,
}

impl LogFilter {
    /// Creates a filter. `level` applies to all modules without a level of their own.
    pub(super) fn new(level: LogLevel, variable: &Variable) -> LogFilter {
        let noisy = NOISY.map(|(module, level)| (module.to_owned(), level));
        // For equal prefixes, the last entry applies, so `variable` overrides `NOISY`.
        let modules = noisy.into_iter().chain(variable.modules.iter().cloned());
        LogFilter { all: level_filter(level), modules: modules.collect() }
    }

    /// Whether a line with this metadata is written.
    pub(super) fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let fits = |module: &str| {
            let rest = metadata.target().strip_prefix(module);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let fitting = self.modules.iter().filter(|(module, _)| fits(module));
        let own = fitting.max_by_key(|(module, _)| module.len()).map(|(_, level)| *level);
        metadata.level() <= own.unwrap_or(self.all)
    }

    /// The most verbose level of all modules.
    pub(super) fn most(&self) -> LevelFilter {
        self.modules.iter().map(|(_, level)| *level).chain([self.all]).max().unwrap_or(self.all)
    }
}

/// Parsed value of `RUST_LOG`, such as `debug` or `convey_proxy=debug,warn`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Variable {
    /// Level for all modules. `None` if the value does not set one.
    pub(super) level: Option<LogLevel>,
    modules: Vec<(String, LevelFilter)>,
    /// Invalid parts of the value, one per line. The other parts still apply.
    pub(super) problems: Vec<String>,
}

impl Variable {
    /// Parses the value of the variable. An unknown level is reported as a problem, and not used as
    /// a module's name: a filter for a single module would silence all other modules.
    pub(super) fn parse(text: &str) -> Variable {
        let mut variable = Variable::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (module, level) = match part.split_once('=') {
                Some((module, level)) => (Some(module.trim()), level.trim()),
                None => (None, part),
            };
            match (module, parse_log_level(level)) {
                (None, Ok(level)) => variable.level = Some(level),
                (Some(module), Ok(level)) => variable.modules.push((module.to_owned(), level_filter(level))),
                (_, Err(message)) => {
                    variable.problems.push(format!("RUST_LOG: {message}; convey ignores this entry"))
                }
            }
        }
        variable
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
        LogLevel::Trace => LevelFilter::Trace,
    }
}

#[cfg(test)]
mod tests {
    use log::Level;

    use super::*;

    fn allows(text: &str, level: Level, module: &str) -> bool {
        let variable = Variable::parse(text);
        let filter = LogFilter::new(variable.level.unwrap_or_default(), &variable);
        filter.allows(&Metadata::builder().level(level).target(module).build())
    }

    #[test]
    fn longest_matching_module_sets_the_level() {
        for (text, level, module, is_written) in [
            ("", Level::Info, "convey::app", true),
            ("", Level::Debug, "convey::app", false),
            ("warn", Level::Info, "convey::app", false),
            ("convey_proxy=debug", Level::Debug, "convey_proxy::session", true),
            ("convey_proxy=debug", Level::Info, "convey::app", true),
            ("convey_proxy=debug", Level::Debug, "convey_proxying", false),
            ("convey=error,convey::app=trace", Level::Trace, "convey::app::balancer", true),
            ("convey=error,convey::app=trace", Level::Warn, "convey::admin", false),
            ("trace", Level::Warn, "notify::inotify", false),
            ("trace", Level::Warn, "rustls::common_state", false),
            ("rustls=debug", Level::Debug, "rustls::common_state", true),
        ] {
            assert_eq!(allows(text, level, module), is_written, "{text} {level} {module}");
        }
        assert_eq!(LogFilter::new(LogLevel::Warn, &Variable::parse("x=trace")).most(), LevelFilter::Trace);
    }

    #[test]
    fn a_typo_is_told_and_silences_nothing() {
        for (text, meant) in [("inof", "info"), ("convey=dbug", "debug"), ("eror,convey=info", "error")] {
            let variable = Variable::parse(text);
            assert_eq!(variable.problems.len(), 1, "{variable:?}");
            assert!(variable.problems[0].contains(&format!("did you mean `{meant}`?")), "{variable:?}");
            assert!(allows(text, Level::Error, "convey::app") && allows(text, Level::Info, "convey::app"));
        }
    }
}
