//! A method of a path: its request, and its responses by status.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use crate::ErrorReport;

/// Method of a path.
pub(super) struct Operation {
    pub(super) path: &'static str,
    pub(super) method: &'static str,
    pub(super) description: Value,
}

/// Builds an operation.
pub(super) struct Describe<'a> {
    path: &'static str,
    method: &'static str,
    schemas: &'a mut Schemas,
    fields: Map<String, Value>,
    responses: BTreeMap<u16, Value>,
}

const WRONG_TOKEN: &str = "The token differs from the token in stats.token_file.";
const NEEDS_TOKEN: &str = "stats.token_file is set, and the request has no token or a wrong token.";
const WRONG_HOST: &str =
    "The Host header is not a name or address of this machine, and the request has no token.";
const WRONG_TOKENS: &str = "This client address has sent too many wrong tokens.";
const READ_ONLY: &str =
    "The statistics address permits this only with a token, and stats.token_file is not set.";
const ENDING: &str = "convey is stopping, or an upgrade is in progress.";
const CLIENTS: &str = "The response contains addresses of clients. Without stats.token_file, the statistics address sends it only to this host.";
pub(super) const BAD: &str = "The request is invalid.";

impl<'a> Describe<'a> {
    /// Reads. Every client of the statistics address may do that.
    pub(super) fn read(schemas: &'a mut Schemas, path: &'static str, summary: &str) -> Self {
        let describe =
            Describe { path, method: "get", schemas, fields: Map::new(), responses: BTreeMap::new() };
        let describe = describe.with("summary", summary.into());
        describe.or(401, WRONG_TOKEN).or(421, WRONG_HOST).or(429, WRONG_TOKENS)
    }

    /// Describes a read-only operation whose response contains client addresses.
    pub(super) fn read_clients(schemas: &'a mut Schemas, path: &'static str, summary: &str) -> Self {
        Describe::read(schemas, path, summary).or(401, NEEDS_TOKEN).or(403, CLIENTS)
    }

    /// Describes an operation that changes the running program, or requires write access.
    pub(super) fn change(
        schemas: &'a mut Schemas,
        (method, path): (&'static str, &'static str),
        summary: &str,
    ) -> Self {
        let describe = Describe { method, ..Describe::read(schemas, path, summary) };
        let describe = describe.with("security", json!([{}, { "token": [] }]));
        describe.or(401, NEEDS_TOKEN).or(403, READ_ONLY).or(503, ENDING)
    }

    /// Adds query parameters.
    pub(super) fn query<T: JsonSchema>(self) -> Self {
        let parameters = self.schemas.parameters::<T>();
        self.with("parameters", parameters.into())
    }

    /// Adds the body of the request.
    pub(super) fn body<T: JsonSchema>(self) -> Self {
        let content = json(self.schemas.accepted::<T>());
        let body = json!({ "required": true, "content": content });
        self.with("requestBody", body).or(413, "The body is longer than 65536 bytes.")
    }

    /// Adds a successful response.
    pub(super) fn ok<T: JsonSchema>(self, status: u16, description: &str) -> Self {
        let content = json(self.schemas.sent::<T>());
        self.response(status, json!({ "description": description, "content": content }))
    }

    /// Adds a successful response with this content.
    pub(super) fn ok_with(self, description: &str, content: Value) -> Self {
        self.response(200, json!({ "description": description, "content": content }))
    }

    /// Adds a response with an error, or replaces its description.
    pub(super) fn or(self, status: u16, description: &str) -> Self {
        let content = json(self.schemas.sent::<ErrorReport>());
        self.response(status, json!({ "description": description, "content": content }))
    }

    /// Ends the description.
    pub(super) fn end(mut self) -> Operation {
        let responses = self.responses.into_iter().map(|(status, response)| (status.to_string(), response));
        let responses: Map<String, Value> = responses.collect();
        self.fields.insert("responses".to_owned(), responses.into());
        Operation { path: self.path, method: self.method, description: self.fields.into() }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.fields.insert(key.to_owned(), value);
        self
    }

    fn response(mut self, status: u16, response: Value) -> Self {
        self.responses.insert(status, response);
        self
    }
}

fn json(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}
