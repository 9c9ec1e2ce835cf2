//! Schemas of the types that the server sends and accepts.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::value;
use crate::{Buckets, PreciseTime, TraceLine, TraceRemark, WallTime};

/// Path of the schemas in the description.
const COMPONENTS: &str = "#/components/schemas/";

/// Schemas that the description needs.
pub(super) struct Schemas {
    sent: SchemaGenerator,
    accepted: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Schemas {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = COMPONENTS.trim_start_matches('#').trim_end_matches('/').into();
        });
        Schemas {
            sent: settings.clone().for_serialize().into_generator(),
            accepted: settings.for_deserialize().into_generator(),
        }
    }

    /// Schema of a value that the server sends.
    pub(super) fn sent<T: JsonSchema>(&mut self) -> Value {
        value(self.sent.subschema_for::<T>())
    }

    /// Schema of a value that the server accepts.
    pub(super) fn accepted<T: JsonSchema>(&mut self) -> Value {
        value(self.accepted.subschema_for::<T>())
    }

    /// Query parameters, from the fields of a type.
    pub(super) fn parameters<T: JsonSchema>(&mut self) -> Vec<Value> {
        let mut schema = value(T::json_schema(&mut self.accepted));
        finish(&mut schema);
        let required = schema["required"].take();
        let is_required =
            |name: &str| required.as_array().is_some_and(|all| all.iter().any(|one| one == name));
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let parameter = |(name, mut schema): (String, Value)| {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            let required = is_required(&name);
            json!({ "name": name, "in": "query", "required": required, "schema": schema, "description": description })
        };
        properties.into_iter().map(parameter).collect()
    }

    /// All schemas, by name.
    pub(super) fn components(mut self) -> Map<String, Value> {
        let remark = value(TraceRemark::json_schema(&mut self.sent));
        let line = value(TraceLine::json_schema(&mut self.sent));
        let mut all = self.sent.take_definitions(true);
        all.extend(self.accepted.take_definitions(true));
        let line = merged(&[remark, line], &mut all);
        all.insert("TraceLine".to_owned(), line);
        all.values_mut().for_each(finish);
        all
    }
}

/// One object for lines of all kinds: each kind has some of the properties.
fn merged(kinds: &[Value], all: &mut Map<String, Value>) -> Value {
    let (mut properties, mut events) = (Map::new(), Vec::new());
    kinds.iter().for_each(|kind| collect(kind, all, &mut properties, &mut events));
    all.remove("PacketLine");
    all.remove("RequestLine");
    let about = "The first three values are about the trace. `packet` occurs in packet modes, `request` in mode http, and the other values in the modes proxy and http.";
    properties.insert("event".to_owned(), json!({ "type": "string", "enum": events, "description": about }));
    json!({
        "type": "object",
        "description": "Line of a trace. It has no field for an unknown value.",
        "properties": properties,
        "required": ["event"],
    })
}

fn collect(schema: &Value, all: &Map<String, Value>, to: &mut Map<String, Value>, events: &mut Vec<Value>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix(COMPONENTS)) {
        collect(&all[name], all, to, events);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        match property.get("const") {
            Some(event) if name == "event" => events.push(event.clone()),
            _ => _ = to.entry(name).or_insert_with(|| property.clone()),
        }
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        schema[key].as_array().into_iter().flatten().for_each(|one| collect(one, all, to, events));
    }
}

/// Objects have no other properties, and a property that may be left out is never null.
fn finish(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(finish),
        Value::Object(object) => {
            let required = object.get("required").cloned().unwrap_or_default();
            if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
                let is_required =
                    |name: &str| required.as_array().is_some_and(|all| all.iter().any(|one| one == name));
                let optional = properties.iter_mut().filter(|(name, _)| !is_required(name));
                optional.for_each(|(_, property)| remove_null(property));
                object.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            object.remove("title");
            object.values_mut().for_each(finish);
        }
        _ => {}
    }
}

fn remove_null(property: &mut Value) {
    let Some(property) = property.as_object_mut() else { return };
    property.remove("default");
    if let Some(Value::Array(types)) = property.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            property.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(mut any)) = property.remove("anyOf") {
        any.retain(|one| one["type"] != "null");
        match &mut any[..] {
            [Value::Object(one)] => property.append(one),
            _ => _ = property.insert("anyOf".to_owned(), any.into()),
        }
    }
}

macro_rules! time {
    ($($time:ty),+) => {$(
        impl JsonSchema for $time {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                "Time".into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": "date-time" })
            }
        }
    )+};
}

time!(WallTime, PreciseTime);

impl JsonSchema for Buckets {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Buckets".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } })
    }
}
