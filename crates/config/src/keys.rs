//! Keys of the file: each table of the TOML is a source file with one list that defines its keys.
//!
//! # Layout
//!
//! - `keys` has the macro [`keys!`], which generates the code of a table from the list of its keys.
//! - `tables` has a file for each table: `tables/backend.rs` is `[backends.NAME]`, and
//!   `tables/backend/` has the tables below it. Such a file has the keys, their defaults, their
//!   checks, their differences (for the log of a reload) and their description (for
//!   `convey check`).
//! - `reference` generates `docs/reference/keys.md` and `config.toml` from these lists.
//! - `file` has the whole file with the keys outside of tables, `validate` and `mode` have the
//!   checks between several tables.
//! - Some tables have no list, because keys and fields of the model do not match one to one: for
//!   example, two keys set one field, or the value is read from a file. Such a table lists its keys
//!   for the reference only (`KeyDoc`), beside the code that reads them.
//!
//! # A new key
//!
//! A key with one value needs four places in the code:
//!
//! 1. The field of the model, such as `BackendConfig`.
//! 2. Its default beside the field.
//! 3. The entry in the list of its table.
//! 4. The default that the test `a_small_file_is_filled_up_with_defaults` expects.
//!
//! A field without an entry does not compile. The command
//! `UPDATE_REFERENCE=1 cargo test -p convey-config reference` then writes the reference and the
//! sample. The tests in `tests/docs` check the entry: its default, its allowed values, its example,
//! and that a reload applies it.

mod only_in;
mod shown;

pub use self::only_in::OnlyIn;
pub(crate) use self::shown::Shown;
use crate::problem::{Place, Placed};

/// Generates the code of a table from the list of its keys.
///
/// A table (or a part of one) is a struct of the model, such as `BackendConfig`. The list has an
/// entry for each field:
///
/// - `key "NAME" => FIELD: TYPE { ... }` is a key with one value. Its parts, in this order:
///     - `read`: the parser of the value, a function of `values`.
///     - `unset`: for an optional field, the word for `None` in the log.
///     - `shown`: the text of a value in the log, if it is not that of [`Shown`].
///     - `reworded`: a former word for a value, which still works, and the new word.
///     - `renamed`: a former name of the key that still works.
///     - `only_in`: the modes in which the key has an effect, a variant of [`OnlyIn`].
///     - `describe`: the text of `convey check`, given the model and the modes that use it.
///       The fragments of all keys are joined. A key without this part is not shown, or it is part
///       of another key's fragment.
///     - `kind`, `default`, `sample`, `example` (and `change`, unless a reload applies it): see
///       `KeyDoc`.
/// - `list "NAME" => FIELD: TYPE { ... }` is a key with one value or several, with the same parts.
///   `by` is another method of `TomlTable` that reads it.
/// - `also FIELD = VALUE, ... { ... }` are fields that other code reads, each with its value. The
///   parts `changes` (the log text of a reload), `describe`, and `docs` apply to all fields of the
///   entry.
///
/// The macro makes:
///
/// - the struct, with a field for each `key` and `list`: the values of the file and their places;
/// - `read`, which reads the keys of a table;
/// - `model`, which builds the model. A key that the file lacks keeps its default;
/// - `reloaded`, the model after a reload, in which keys with `change: Restart` keep their values;
/// - `shown`, the values of all keys as text;
/// - `changes`, the differences of two models, in the order of the entries;
/// - `describe`, the fragments of `convey check`, in the order of the entries;
/// - `of_some_modes`, the places of keys that have an effect only in some modes;
/// - `DOCS`, the keys for the reference.
///
/// `model` and `changes` name every field of the model, so that a new field does not compile before
/// it has an entry.
macro_rules! keys {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Keys:ident => $Model:ident, from ($parsed:ident: $Parsed:ty, $default:ident);
        $(
            $(key $name:literal => $field:ident: $Type:ty {
                read: $read:expr,
                $(unset: $unset:literal,)?
                $(shown: $shown:expr,)?
                $(reworded: $reworded:expr,)?
                $(renamed: $old_name:literal,)?
                $(only_in: $only_in:ident,)?
                $(describe: $describe:expr,)?
                kind: $kind:expr,
                default: $usual:expr,
                $(change: $change:ident,)?
                sample: $sample:expr,
                example: $example:expr,
            })?
            $(list $list_key:literal => $list:ident: $Item:ty {
                read: $read_item:expr,
                $(by: $by:ident,)?
                unset: $no_items:literal,
                $(describe: $describe_list:expr,)?
                kind: $list_kind:expr,
                default: $list_usual:expr,
                $(change: $list_change:ident,)?
                sample: $list_sample:expr,
                example: $list_example:expr,
            })?
            $(also $($other:ident = $value:expr),+ ; {
                changes: $changes:expr,
                $(describe: $describe_other:expr,)?
                docs: $docs:expr,
            })?
        );+
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default)]
        $vis struct $Keys {
            $($( pub(crate) $field: Option<$crate::problem::Placed<$Type>>, )?
            $( pub(crate) $list: Vec<$crate::problem::Placed<$Item>>, )?)+
        }

        impl $Keys {
            /// Keys for the reference.
            pub(crate) const DOCS: &'static [$crate::reference::Docs] = &[
                $($( $crate::reference::Docs::Key($crate::reference::KeyDoc {
                    name: $name,
                    kind: $kind,
                    default: $usual,
                    $(change: $crate::reference::TakesEffect::$change,)?
                    $(only_in: Some($crate::keys::OnlyIn::$only_in),)?
                    sample: $sample,
                    example: $example,
                    ..$crate::reference::KeyDoc::USUAL
                }), )?
                $( $crate::reference::Docs::Key($crate::reference::KeyDoc {
                    name: $list_key,
                    kind: $list_kind,
                    default: $list_usual,
                    $(change: $crate::reference::TakesEffect::$list_change,)?
                    sample: $list_sample,
                    example: $list_example,
                    ..$crate::reference::KeyDoc::USUAL
                }), )?
                $( $crate::reference::Docs::Part($docs), )?)+
            ];

            /// Reads the keys of a table. Wrong values are reported.
            pub(crate) fn read(table: &mut $crate::reader::TomlTable<'_>) -> $Keys {
                $Keys {
                    $($( $field: $crate::keys::keys!(
                        @read table, $name, $read $(, reworded $reworded)? $(, renamed $old_name)?
                    ), )?
                    $( $list: $crate::keys::keys!(@list table, $list_key, $read_item $(, $by)?), )?)+
                }
            }

            /// Model of the table: the values of the file, and `default` for the rest.
            #[allow(clippy::clone_on_copy, clippy::useless_conversion, reason = "of some types only")]
            pub(crate) fn model(&self, $parsed: $Parsed, $default: $Model) -> $Model {
                $Model {
                    $($( $field: match &self.$field {
                        Some(found) => found.value.clone().into(),
                        None => $default.$field,
                    }, )?
                    $( $list: match self.$list.is_empty() {
                        true => $default.$list,
                        false => self.$list.iter().map(|found| found.value.clone()).collect(),
                    }, )?
                    $( $($other: $value,)+ )?)+
                }
            }

            /// Model after a reload: `wanted`, with the keys of `running` that need a restart.
            #[allow(dead_code, unused_variables, clippy::needless_update, reason = "few tables have such keys")]
            pub(crate) fn reloaded(wanted: $Model, running: &$Model) -> $Model {
                $Model {
                    $($( $( $field: $crate::keys::keys!(@$change running.$field), )? )?
                    $( $( $list: $crate::keys::keys!(@$list_change running.$list), )? )?)+
                    ..wanted
                }
            }

            /// Name and text of each key in this list.
            #[allow(dead_code, reason = "few tables need it")]
            pub(crate) fn shown(model: &$Model) -> Vec<(&'static str, String)> {
                vec![$($( (
                    $name,
                    $crate::keys::keys!(@shown model.$field $(, unset $unset)? $(, shown $shown)?),
                ), )?
                $( ($list_key, $crate::keys::list_of(&model.$list, $no_items)), )?)+]
            }

            /// Log text of the differences, in the order of the keys.
            #[allow(dead_code, reason = "some tables are reported as a whole")]
            pub(crate) fn changes(old: &$Model, new: &$Model) -> Vec<String> {
                let $Model { $($( $field: _, )? $( $list: _, )? $( $($other: _,)+ )?)+ } = old;
                let mut changes = Vec::new();
                $($( changes.extend($crate::diff::change(
                    $name,
                    $crate::keys::keys!(@shown old.$field $(, unset $unset)? $(, shown $shown)?),
                    $crate::keys::keys!(@shown new.$field $(, unset $unset)? $(, shown $shown)?),
                )); )?
                $( changes.extend($crate::diff::change(
                    $list_key,
                    $crate::keys::list_of(&old.$list, $no_items),
                    $crate::keys::list_of(&new.$list, $no_items),
                )); )?
                $( changes.extend($crate::keys::changes_of(old, new, $changes)); )?)+
                changes
            }

            /// Text of `convey check`, if frontends in these modes use the table.
            #[allow(dead_code, unused_mut, unused_variables, reason = "some tables are shown by another one")]
            pub(crate) fn describe(model: &$Model, modes: &[convey_model::Mode]) -> String {
                let mut text = String::new();
                $($( $( text.push_str(&$crate::keys::fragment(model, modes, $describe)); )? )?
                $( $( text.push_str(&$crate::keys::fragment(model, modes, $describe_list)); )? )?
                $( $( text.push_str(&$crate::keys::fragment(model, modes, $describe_other)); )? )?)+
                text
            }

            /// Places of the keys in the file that only some modes have.
            #[allow(dead_code, reason = "few tables have such keys")]
            pub(crate) fn of_some_modes(&self) -> Vec<(&$crate::problem::Place, $crate::keys::OnlyIn)> {
                let all: &[(Option<&$crate::problem::Place>, $crate::keys::OnlyIn)] = &[$($( $(
                    ($crate::keys::place(self.$field.as_ref()), $crate::keys::OnlyIn::$only_in),
                )? )?)+];
                all.iter().filter_map(|(place, modes)| Some(((*place)?, *modes))).collect()
            }
        }
    };
    (@Restart $running:expr) => { $running.clone() };
    (@read $table:ident, $name:literal, $read:expr) => { $table.optional($name, $read) };
    (@read $table:ident, $name:literal, $read:expr, reworded $reworded:expr) => {
        $table.reworded($name, $reworded, $read)
    };
    (@read $table:ident, $name:literal, $read:expr, renamed $old:literal) => {
        $table.renamed($old, $name, $read)
    };
    (@list $table:ident, $name:literal, $read:expr) => { $table.any_number($name, $read) };
    (@list $table:ident, $name:literal, $read:expr, $by:ident) => { $table.$by($name, $read) };
    (@shown $value:expr) => { $crate::keys::Shown::shown(&$value) };
    (@shown $value:expr, shown $shown:expr) => { $crate::keys::text_of(&$value, $shown) };
    (@shown $value:expr, unset $unset:literal) => {
        $crate::diff::or($value.as_ref().map($crate::keys::Shown::shown), $unset)
    };
    (@shown $value:expr, unset $unset:literal, shown $shown:expr) => {
        $crate::diff::or($value.as_ref().map(|value| $crate::keys::text_of(value, $shown)), $unset)
    };
}

pub(crate) use keys;

/// Omits a field from `changes`, because another entry reports its differences.
pub(crate) fn unreported<M>(_: &M, _: &M) -> Option<String> {
    None
}

/// Calls the `changes` closure of a list entry. (The closure gets its types here.)
pub(crate) fn changes_of<M, C: IntoIterator<Item = String>>(
    old: &M,
    new: &M,
    changes: impl Fn(&M, &M) -> C,
) -> C {
    changes(old, new)
}

/// Calls the `describe` closure of a list entry. (The closure gets its types here.)
pub(crate) fn fragment<M>(
    model: &M,
    modes: &[convey_model::Mode],
    describe: impl Fn(&M, &[convey_model::Mode]) -> String,
) -> String {
    describe(model, modes)
}

/// Values of a list, joined by commas; `none` if the list is empty.
pub(crate) fn list_of<T: Shown>(values: &[T], none: &str) -> String {
    let values: Vec<String> = values.iter().map(Shown::shown).collect();
    if values.is_empty() { none.to_owned() } else { values.join(", ") }
}

/// Calls the `shown` closure of a list entry. (The closure gets its types here.)
pub(crate) fn text_of<T>(value: &T, shown: impl Fn(&T) -> String) -> String {
    shown(value)
}

/// Place of a key; `None` if the key is not set.
pub(crate) fn place<T>(found: Option<&Placed<T>>) -> Option<&Place> {
    found.map(|found| &found.place)
}
