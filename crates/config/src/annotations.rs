//! Annotations of a Kubernetes Service as settings of its servers, with the parsers and errors of
//! the file. Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use toml::de::DeValue;

use crate::hint::did_you_mean;
use crate::values::{choice, integer, seconds};
use convey_model::{Algorithm, SourceSettings};

/// Prefix of convey's annotations. Other prefixes belong to other programs.
const PREFIX: &str = "convey.dev/";

/// Maximum number of reported problems. A Service may have thousands of annotations.
const MAX_PROBLEMS: usize = 8;

/// Maximum length in bytes of a text that is parsed as a number.
const MAX_NUMBER: usize = 32;

const WEIGHT: &str = "convey.dev/weight";
const MAX_CONNECTIONS: &str = "convey.dev/max-connections";
const ALGORITHM: &str = "convey.dev/algorithm";
const SLOW_START: &str = "convey.dev/slow-start";

/// Algorithms without `ewma`, which needs mode http: a Service does not define the modes of
/// frontends.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RoundRobin,
    Algorithm::LeastConnections,
    Algorithm::PowerOfTwo,
    Algorithm::Ring,
    Algorithm::Maglev,
];

/// Settings from the annotations of a Service. While an annotation is invalid, all settings keep
/// their previous values.
#[derive(Debug, Default)]
pub struct Annotations {
    settings: SourceSettings,
    problems: BTreeSet<String>,
}

impl Annotations {
    /// Replaces all annotations. `all` has the name and the text of each current annotation of the
    /// Service.
    pub fn take<'a>(&mut self, all: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let (mut settings, mut problems) = (SourceSettings::default(), BTreeSet::new());
        for (name, text) in all {
            if name.starts_with(PREFIX)
                && let Err(why) = set(&mut settings, name, text)
            {
                problems.insert(format!("annotation {name}: {why}"));
            }
        }
        if problems.is_empty() {
            self.settings = settings;
        }
        self.problems = problems;
    }

    /// Settings from the last set of annotations in which no annotation was invalid.
    pub fn settings(&self) -> SourceSettings {
        self.settings
    }

    /// Operator-facing messages about mistakes in the current annotations.
    pub fn problems(&self) -> BTreeSet<String> {
        let line = |problem: &String| format!("{problem}; the previous annotations stay in effect");
        let more = self.problems.len().saturating_sub(MAX_PROBLEMS);
        let more = (more > 0).then(|| format!("{more} more annotations are invalid"));
        self.problems.iter().take(MAX_PROBLEMS).map(line).chain(more).collect()
    }
}

fn set(settings: &mut SourceSettings, name: &str, text: &str) -> Result<(), String> {
    let text = text.trim();
    let value = &value(text);
    match name {
        WEIGHT => settings.weight = Some(integer(0..=u16::MAX)(value)?),
        MAX_CONNECTIONS => settings.max_connections = Some(integer(1..=u32::MAX)(value)?),
        ALGORITHM => {
            let word = &DeValue::String(Cow::Borrowed(text));
            settings.algorithm = Some(choice(&ALGORITHMS, Algorithm::name)(word)?);
        }
        SLOW_START => settings.slow_start = Some(seconds(Duration::ZERO)(value)?),
        _ => {
            let known = [WEIGHT, MAX_CONNECTIONS, ALGORITHM, SLOW_START];
            return Err(format!("unknown annotation{}", did_you_mean(name, known)));
        }
    }
    Ok(())
}

/// Converts the text of an annotation to a TOML value. Annotations have no number type, so a text
/// such as `100` becomes a number.
fn value(text: &str) -> DeValue<'_> {
    let is_short = text.len() <= MAX_NUMBER;
    match DeValue::parse(if is_short { text } else { "" }).map(toml::Spanned::into_inner) {
        Ok(number @ (DeValue::Integer(_) | DeValue::Float(_))) => number,
        _ => DeValue::String(Cow::Borrowed(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(all: &[(&str, &str)]) -> Annotations {
        let mut annotations = Annotations::default();
        annotations.take(all.iter().copied());
        annotations
    }

    #[test]
    fn annotations_are_read_as_the_file_is() {
        let annotations = taken(&[
            (WEIGHT, "0"),
            (MAX_CONNECTIONS, " 200 "),
            (ALGORITHM, "least_connections"),
            (SLOW_START, "1m 30s"),
            ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        ]);
        let expected = SourceSettings {
            weight: Some(0),
            max_connections: Some(200),
            algorithm: Some(Algorithm::LeastConnections),
            slow_start: Some(Duration::from_secs(90)),
        };
        assert_eq!((annotations.settings(), annotations.problems()), (expected, BTreeSet::new()));
        assert_eq!(taken(&[(SLOW_START, "0.5")]).settings().slow_start, Some(Duration::from_millis(500)));
        assert_eq!(taken(&[]).settings(), SourceSettings::default());
    }

    #[test]
    fn a_mistake_leaves_all_as_it_was_and_is_told() {
        for (name, text, told) in [
            (
                WEIGHT,
                "many",
                "annotation convey.dev/weight: found \"many\"; allowed: an integer from 0 to 65535",
            ),
            (WEIGHT, "65536", "found 65536; allowed: an integer from 0 to 65535"),
            (MAX_CONNECTIONS, "0", "allowed: an integer from 1 to"),
            (MAX_CONNECTIONS, "", "found \"\""),
            (ALGORITHM, "ewma", "allowed: round_robin, least_connections, power_of_two, ring, maglev"),
            (SLOW_START, "-1", "allowed: "),
            ("convey.dev/wieght", "1", "unknown annotation; did you mean `convey.dev/weight`?"),
        ] {
            let mut annotations = taken(&[(WEIGHT, "7"), (MAX_CONNECTIONS, "9")]);
            annotations.take([(name, text), (SLOW_START, "3")]);
            let before =
                SourceSettings { weight: Some(7), max_connections: Some(9), ..SourceSettings::default() };
            assert_eq!(annotations.settings(), before, "{name} {text}");
            let problems: Vec<String> = annotations.problems().into_iter().collect();
            assert!(problems.len() == 1 && problems[0].contains(told), "{problems:?}");
            assert!(problems[0].ends_with("; the previous annotations stay in effect"), "{problems:?}");
            annotations.take([]);
            assert!(annotations.problems().is_empty() && annotations.settings() == SourceSettings::default());
        }
    }
}
