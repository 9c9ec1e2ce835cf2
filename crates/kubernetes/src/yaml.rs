//! Parses YAML documents into JSON values. Pure.

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

/// Maximum nesting depth of lists and maps.
const MAX_DEPTH: usize = 64;

/// Parses the documents of a file.
///
/// # Errors
/// Operator-facing message: the text is not YAML, or uses unsupported features.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        builder.add(event).map_err(|why| format!("line {}: {why}", span.start.line()))?;
    }
    Ok(builder.documents)
}

#[derive(Default)]
struct Builder {
    documents: Vec<Value>,
    /// Open lists and maps, the outermost first.
    open: Vec<Collection>,
}

enum Collection {
    List(Vec<Value>),
    /// Map, and the key whose value comes next.
    Map(Map<String, Value>, Option<String>),
}

impl Builder {
    fn add(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::SequenceStart(_, tag) => self.begin(Collection::List(Vec::new()), tag.as_deref()),
            Event::MappingStart(_, tag) => self.begin(Collection::Map(Map::new(), None), tag.as_deref()),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Collection::List(items)) => self.put(Value::Array(items)),
                Some(Collection::Map(entries, _)) => self.put(Value::Object(entries)),
                None => Ok(()),
            },
            Event::Scalar(text, style, _, tag) => {
                let is_text = is_text(tag.as_deref())? || style != ScalarStyle::Plain;
                match self.open.last_mut() {
                    Some(Collection::Map(_, None)) if !is_text && text == "<<" => {
                        Err("merge keys are not supported".to_owned())
                    }
                    Some(Collection::Map(_, key @ None)) => {
                        *key = Some(text.into_owned());
                        Ok(())
                    }
                    _ if is_text => self.put(Value::String(text.into_owned())),
                    _ => self.put(plain(text.into_owned())),
                }
            }
            Event::Alias(_) => Err("aliases are not supported".to_owned()),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, collection: Collection, tag: Option<&Tag>) -> Result<(), String> {
        is_text(tag)?;
        if matches!(self.open.last(), Some(Collection::Map(_, None))) {
            return Err("only strings are supported as keys".to_owned());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} levels are not supported"));
        }
        self.open.push(collection);
        Ok(())
    }

    /// Adds a complete value to the innermost open list or map.
    fn put(&mut self, value: Value) -> Result<(), String> {
        match self.open.last_mut() {
            None => self.documents.push(value),
            Some(Collection::List(items)) => items.push(value),
            Some(Collection::Map(entries, key)) => {
                let key = key.take().unwrap_or_default();
                if entries.contains_key(&key) {
                    return Err(format!("duplicate key {key:?}"));
                }
                entries.insert(key, value);
            }
        }
        Ok(())
    }
}

/// Whether a tag makes a value a text, even if it looks like a number.
fn is_text(tag: Option<&Tag>) -> Result<bool, String> {
    match tag {
        None => Ok(false),
        Some(tag) if !tag.is_yaml_core_schema() || tag.suffix == "binary" => {
            // A password without quotes may begin with `!` and look like a tag.
            Err("custom tags are not supported; a string that begins with ! needs quotes".to_owned())
        }
        Some(tag) => Ok(tag.suffix == "str"),
    }
}

/// Value of an unquoted scalar. A number remains a text if formatting the number would change it.
fn plain(text: String) -> Value {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match text.parse::<Number>() {
            Ok(number) if number.to_string() == text => Value::Number(number),
            _ => Value::String(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_becomes_the_same_as_json() {
        let text = "a: [1, -2.5, 1e400, 0x10, 007, '1', \"2\", !!str 3]\n\
                    b: {c: true, d: \"true\", e: yes, f: ~, g: null, h: }\n\
                    i: |\n  two\n  lines\n\
                    j:\n- k: l\n  m: https://[::1]:6443\n- - n # a comment\n1: 'true: text'\n";
        let expected = json!({
            "a": [1, -2.5, "1e400", "0x10", "007", "1", "2", "3"],
            "b": { "c": true, "d": "true", "e": "yes", "f": null, "g": null, "h": null },
            "i": "two\nlines\n",
            "j": [{ "k": "l", "m": "https://[::1]:6443" }, ["n"]],
            "1": "true: text",
        });
        assert_eq!(documents(text), Ok(vec![expected.clone()]));
        assert_eq!(documents(&expected.to_string()), Ok(vec![expected]));
        assert_eq!(documents(""), Ok(vec![]));
        assert_eq!(
            documents("\u{feff}--- {a: 1}\n---\nb: 2\n...\n"),
            Ok(vec![json!({"a": 1}), json!({"b": 2})])
        );
    }

    #[test]
    fn unsupported_yaml_is_named() {
        let deep = "[".repeat(MAX_DEPTH + 1);
        let tag = "line 1: custom tags are not supported; a string that begins with ! needs quotes";
        for (text, expected) in [
            ("a: 1\nb: &x 1\nc: *x\n", "line 3: aliases are not supported"),
            ("a: 1\n<<: {b: 2}\n", "line 2: merge keys are not supported"),
            ("a: 1\na: 2\n", "line 2: duplicate key \"a\""),
            ("[a]: 1\n", "line 1: only strings are supported as keys"),
            ("a: !!binary x\n", tag),
            ("a: !secret x\n", tag),
            (&*deep, "line 1: more than 64 levels are not supported"),
        ] {
            assert_eq!(documents(text), Err(expected.to_owned()), "{text}");
        }
        assert!(documents("a: [").is_err() && documents("a: b: c").is_err());
        assert!(documents(&"- ".repeat(1_000_000)).is_err());
    }
}
