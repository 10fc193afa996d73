//! The OpenAPI description of the API, generated from the table of calls. The table contains the roles. Parameters and
//! bodies come from the signatures of the handlers, and schemas of objects from the serialised types. The module
//! `calls` adds summaries, answers and errors.

mod calls;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use schemars::generate::{Contract, SchemaSettings};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::ErrorKind;
use super::call_inputs::CallInputs;
use super::error::ApiError;
use super::routes::{RouteEntry, route_table as table};
use calls::{CallDescription, Content};

/// JSON pointer of the named schemas in the description.
const SCHEMAS: &str = "/components/schemas";

/// Returns the OpenAPI 3.1 description of the API.
pub fn openapi() -> Value {
    let mut requests = schema_generator(Contract::Deserialize);
    let mut answers = schema_generator(Contract::Serialize);
    let error = answers.subschema_for::<ApiError>();
    let words = calls::call_descriptions();
    let mut paths = Map::new();
    for call in table() {
        let words = words.iter().find(|words| describes(words, &call));
        let operation = describe_operation(&call, words, &mut requests, &mut answers, &error);
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        path[call.method.as_str().to_lowercase()] = operation;
    }
    let mut schemas = requests.take_definitions(true);
    for (name, schema) in answers.take_definitions(true) {
        let other = schemas.insert(name.clone(), schema.clone());
        // A type that is used in requests and in answers must have the same schema in both.
        assert!(other.is_none_or(|other| other == schema), "two schemas have the name {name}");
    }
    let mut description = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ddpd management API",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
            "description": "JSON over HTTP/1.1 on the Unix socket `management.socket`. `x-role` is the role that a call requires; \
                            fields that name files of the host require `admin`. docs/api.md has units, meanings and rules.",
        },
        "servers": [{"url": "http://ddpd", "description": "The Unix socket; the host name is ignored."}],
        "paths": paths,
        "components": {"schemas": schemas},
    });
    normalize(&mut description);
    description
}

fn describes(words: &CallDescription, call: &RouteEntry) -> bool {
    words.method == call.method.as_str() && words.path == call.path
}

fn schema_generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
        settings.contract = contract;
    });
    settings.into_generator()
}

fn describe_operation(
    call: &RouteEntry,
    words: Option<&CallDescription>,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
    error: &Schema,
) -> Value {
    let Some(words) = words else {
        panic!("{} {} has no description in api/openapi/calls.rs", call.method, call.path);
    };
    let mut operation = json!({
        "operationId": words.id,
        "summary": words.summary,
        "x-role": call.role.as_str(),
        "tags": [call.path.split('/').nth(2).unwrap_or_default()],
    });
    let inputs = &call.inputs;
    let mut parameters = Vec::new();
    if let Some(path) = inputs.path {
        parameters.push(path_parameter(call.path, path(requests)));
    }
    if let Some(query) = inputs.query {
        parameters.extend(query_parameters(query(requests)));
    }
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = inputs.body {
        let content = json!({"application/json": {"schema": body(requests)}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    if inputs.bytes {
        let content = json!({"application/octet-stream": {}});
        // The body is optional, because a request without a body is an input of zero bytes.
        operation["requestBody"] = json!({"required": false, "content": content});
    }
    operation["responses"] = describe_responses(call, words, answers, error);
    operation
}

fn path_parameter(path: &str, schema: Schema) -> Value {
    let name = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let name = name.map_or("", |(name, _)| name);
    json!({"name": name, "in": "path", "required": true, "schema": schema})
}

/// Returns the descriptions of a query's parameters. The value null is removed from their schemas, because a query
/// cannot express null.
fn query_parameters(query: Schema) -> Vec<Value> {
    let query = query.to_value();
    let required = query["required"].as_array().cloned().unwrap_or_default();
    let Some(properties) = query["properties"].as_object() else { return Vec::new() };
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        remove_null(&mut schema);
        let mut parameter = json!({
            "name": name,
            "in": "query",
            "required": required.contains(&json!(name)),
            "schema": schema,
        });
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameter
    };
    properties.iter().map(parameter).collect()
}

fn remove_null(schema: &mut Value) {
    let null = json!({"type": "null"});
    if let Some(types) = schema["type"].as_array_mut() {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            schema["type"] = only.clone();
        }
    } else if let Some(choices) = schema["anyOf"].as_array_mut() {
        choices.retain(|choice| *choice != null);
        if let [only] = &choices[..] {
            *schema = only.clone();
        }
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|name, value| name != "default" || !value.is_null());
        schema.retain(|_, value| !value.is_null());
    }
}

fn describe_responses(
    call: &RouteEntry,
    words: &CallDescription,
    answers: &mut SchemaGenerator,
    error: &Schema,
) -> Value {
    let content = match words.content {
        Content::Json(make) => json!({"application/json": {"schema": make(answers)}}),
        Content::Lines(page, line) => json!({
            "application/json": {"schema": page(answers)},
            "application/x-ndjson": {"schema": line(answers)},
        }),
        Content::Raw(kinds) => {
            kinds.iter().map(|kind| ((*kind).to_owned(), json!({}))).collect::<Map<_, _>>().into()
        }
    };
    let mut done = json!({"description": words.summary, "content": content});
    for (operation, parameter, member) in words.links {
        let from = format!("$response.body#{member}");
        done["links"][*operation] =
            json!({"operationId": operation, "parameters": {*parameter: from}});
    }
    let mut responses = Map::from_iter([(words.status.to_string(), done)]);
    for kind in error_kinds(call, words) {
        let response = json!({
            "description": kind.sentence(),
            "content": {"application/json": {"schema": error}},
        });
        responses.insert(kind.status().to_string(), response);
    }
    Value::Object(responses)
}

/// Returns the errors that a call can return, ordered by HTTP status.
fn error_kinds(call: &RouteEntry, words: &CallDescription) -> Vec<ErrorKind> {
    use ErrorKind::{BadRequest, Forbidden, Internal, NotFound, TooLarge, Unavailable};
    let CallInputs { path, query, body, bytes } = call.inputs;
    let mut kinds = vec![Forbidden, Internal, Unavailable];
    kinds.extend(words.refusals);
    kinds.extend(path.map(|_| NotFound));
    kinds.extend((query.is_some() || body.is_some() || bytes).then_some(BadRequest));
    kinds.extend(body.map(|_| TooLarge));
    let mut seen = BTreeSet::new();
    kinds.retain(|kind| seen.insert(kind.status()));
    kinds.sort_by_key(|kind| kind.status());
    kinds
}

/// Adds the maxima of unsigned integers, which the generator omits. Removes the brackets of rustdoc links from
/// descriptions.
fn normalize(value: &mut Value) {
    match value {
        Value::Object(members) => {
            let max: Option<Value> = match members.get("format").and_then(Value::as_str) {
                Some("uint8") => Some(u8::MAX.into()),
                Some("uint16") => Some(u16::MAX.into()),
                Some("uint32") => Some(u32::MAX.into()),
                Some("uint64" | "uint") => Some(u64::MAX.into()),
                _ => None,
            };
            if let Some(max) = max {
                members.entry("maximum").or_insert(max);
            }
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace("[`", "`").replace("`]", "`");
            }
            members.values_mut().for_each(normalize);
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}
