//! Generates `openapi.json` from the types, and compares the file with it.

mod operation;
mod paths;
mod schemas;
mod tests;

use schemars::Schema;
use serde_json::{Map, Value, json};

use self::schemas::Schemas;

/// The complete description.
fn description() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for operation in paths::operations(&mut schemas) {
        let of_path = paths.entry(operation.path).or_insert_with(|| json!({}));
        let names = paths::parameters(operation.path);
        if !names.is_empty() {
            of_path["parameters"] = names.into();
        }
        of_path[operation.method] = operation.description;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "convey",
            "version": "1",
            "description": "The control API of a running convey. The control socket serves all of it. The statistics address \
                serves it for reading, and with a token also for changes. For a path or method that is not described \
                here, convey returns 404 or 405 and an Error.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token in the file stats.token_file. Only the statistics address requires it.",
                },
            },
        },
    })
}

fn value(schema: Schema) -> Value {
    schema.into()
}
