//! Fields that a tolerant reader of a response expects, for tests. Pure.
//!
//! A program that has to read responses of other versions, such as `convey doctor`, reads them into
//! its own types with `#[serde(default)]`. A misspelled or renamed field would then silently be
//! empty, so a test compares its fields with the description of the API.

use std::cell::RefCell;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use serde_json::Value;

use crate::OPENAPI;

/// Text that is valid as a string, a path and a socket address.
const TEXT: &str = "127.0.0.1:80";

/// Fields that `T` reads, including nested ones, and that the schema does not have.
///
/// # Panics
/// `T` reads a value of a kind that responses do not have, such as bytes.
pub fn unknown_fields<T: DeserializeOwned>(schema: &str) -> Vec<String> {
    let fields = RefCell::default();
    let read = T::deserialize(Recorder { path: schema.to_owned(), fields: &fields });
    assert!(read.is_ok(), "{:?}", read.err());
    let openapi: Value = serde_json::from_str(OPENAPI).unwrap_or_default();
    let schemas = &openapi["components"]["schemas"];
    fields.into_inner().into_iter().filter(|path| !is_described(schemas, path)).collect()
}

/// Whether the schemas have a field. Its path is of the form `Status.frontends.*.tls`.
fn is_described(schemas: &Value, path: &str) -> bool {
    let mut parts = path.split('.');
    let mut schema = &schemas[parts.next().unwrap_or_default()];
    for part in parts {
        let alternatives = schema["anyOf"].as_array();
        schema = alternatives.and_then(|all| all.first()).unwrap_or(schema);
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            schema = &schemas[name];
        }
        schema = match part {
            "*" => &schema["additionalProperties"],
            "[]" => &schema["items"],
            field => &schema["properties"][field],
        };
    }
    schema.is_object()
}

/// Deserializer that has each field, and notes it.
#[derive(Clone)]
struct Recorder<'a> {
    path: String,
    fields: &'a RefCell<Vec<String>>,
}

impl Recorder<'_> {
    fn below(&self, part: &str) -> Self {
        Recorder { path: format!("{}.{part}", self.path), fields: self.fields }
    }
}

impl<'de> Deserializer<'de> for Recorder<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(false)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(0)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(0)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(0.0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXT)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXT)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once(Some(self.below("[]"))))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Entries { of: self, names: &["*"] })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.fields.borrow_mut().extend(names.iter().map(|name| self.below(name).path));
        visitor.visit_map(Entries { of: self, names })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

struct Once<'a>(Option<Recorder<'a>>);

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|one| seed.deserialize(one)).transpose()
    }
}

struct Entries<'a> {
    of: Recorder<'a>,
    names: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let name = self.names.first();
        name.map(|name| seed.deserialize(StrDeserializer::new(name))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, rest) = self.names.split_first().unwrap_or((&"", &[]));
        self.names = rest;
        seed.deserialize(self.of.below(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Reader {
        uptime_seconds: u64,
        ready: bool,
        backends: BTreeMap<String, OfBackend>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct OfBackend {
        servers: BTreeMap<String, OfServer>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct OfServer {
        total_connections: u64,
        ejected: Option<OfEjection>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct OfEjection {
        reason: String,
        why: String,
    }

    #[test]
    fn fields_that_the_api_lacks_are_found_at_any_depth() {
        let expected = ["Status.ready", "Status.backends.*.servers.*.ejected.why"];
        assert_eq!(unknown_fields::<Reader>("Status"), expected);
    }
}
