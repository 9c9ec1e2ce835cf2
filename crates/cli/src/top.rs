//! The arguments of `convey top`.

use std::num::NonZeroU64;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::operator::TopColumn;

/// Columns, filter and interval of `convey top`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TopArgs {
    /// Print the screen once, as text, for scripts or without a terminal
    #[arg(long)]
    pub once: bool,
    /// Interval between two screens, 1 to 60 seconds; rates are averages over this time
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: NonZeroU64,
    /// Sort backends, and the servers within each, by this column
    #[arg(long, value_name = "COLUMN", default_value = "name", value_parser = column())]
    pub sort: TopColumn,
    /// Show only entries with this text in their name or state
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub filter: String,
}

fn interval(text: &str) -> Result<NonZeroU64, String> {
    let seconds = text.parse().ok().filter(|seconds: &NonZeroU64| seconds.get() <= 60);
    seconds.ok_or_else(|| "allowed: whole seconds from 1 to 60".to_owned())
}

fn column() -> impl TypedValueParser<Value = TopColumn> {
    let by_word = |word: String| TopColumn::ALL.into_iter().find(|column| column.name() == word);
    PossibleValuesParser::new(TopColumn::ALL.map(TopColumn::name))
        .try_map(move |word| by_word(word).ok_or("no such column"))
}
