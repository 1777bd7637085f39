//! The OpenAPI document of an API (OpenAPI 3.1, whose schemas are those of JSON Schema 2020-12).

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{ApiInfo, ApiRequest, Audience, DOCUMENT_PATH, SchemaOf};
use crate::report::ErrorReport;

/// Returns the document of all requests of a table, the one for the document itself included.
#[must_use]
pub fn document<S>(info: ApiInfo, table: &[ApiRequest<S>]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = SchemaGenerator::new(settings);
    let error = schemas.subschema_for::<ErrorReport>();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for request in table {
        let operation = operation(request, &mut schemas);
        let methods = paths.entry(request.path).or_default();
        methods.insert(request.described.method.to_owned(), operation);
    }
    let own = json!({
        "summary": "Shows this document",
        "operationId": "get_openapi_json",
        "x-page": "viewer",
        "responses": {"200": {"description": "The document", "content": {"application/json": {}}}},
    });
    let own = Map::from_iter([("get".to_owned(), own)]);
    paths.insert(DOCUMENT_PATH, own);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": info.title,
            "description": info.description,
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": {
                "Error": {
                    "description": "The error: what, why, and what to do next",
                    "content": {"application/json": {"schema": error}},
                },
            },
        },
    })
}

fn operation<S>(request: &ApiRequest<S>, schemas: &mut SchemaGenerator) -> Value {
    let described = &request.described;
    let mut parameters = path_parameters(request.path);
    if let Some(question) = described.question {
        parameters.extend(query_parameters(&question(schemas)));
    }
    let mut content = |of: SchemaOf| json!({"application/json": {"schema": of(schemas)}});
    let mut answered = json!({"description": described.summary});
    if let Some(answer) = described.answer {
        answered["content"] = content(answer);
    } else if let Some(media_type) = described.media_type {
        answered["content"] = json!({media_type: {"schema": {"type": "string"}}});
    }
    let mut operation = json!({
        "summary": described.summary,
        "operationId": operation_id(request),
        "responses": {
            "200": answered,
            "default": {"$ref": "#/components/responses/Error"},
        },
    });
    if let Some(body) = described.body {
        operation["requestBody"] = json!({"required": true, "content": content(body)});
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    // The role that a session of the page needs.
    if request.audience == Audience::Page {
        let role = match request.described.method {
            "get" => "viewer",
            _ => "operator",
        };
        operation["x-page"] = role.into();
    }
    operation
}

/// Returns a name for code that is generated from the document: `post_uplinks_name_pause`.
fn operation_id<S>(request: &ApiRequest<S>) -> String {
    let path = request.path.trim_start_matches("/v1/");
    let words = path.split(|sign: char| !sign.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    let words: Vec<&str> = [request.described.method]
        .into_iter()
        .chain(words)
        .collect();
    words.join("_")
}

/// Returns the parameters in braces.
fn path_parameters(path: &str) -> Vec<Value> {
    let parts = path.split('/');
    let names = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names
        .map(|name| {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect()
}

/// Returns a parameter for each property of a query's type.
fn query_parameters(question: &Schema) -> Vec<Value> {
    let required = question.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let properties = question.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flatten();
    properties
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let described = schema.as_object_mut();
            let description = described.and_then(|schema| schema.remove("description"));
            let required = is_required(name);
            let mut parameter =
                json!({"name": name, "in": "query", "required": required, "schema": schema});
            if let Some(description) = description {
                parameter["description"] = description;
            }
            parameter
        })
        .collect()
}
