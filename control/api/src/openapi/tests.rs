//! Tests of the OpenAPI description. The description covers all calls, equals `docs/openapi.json`, and matches the
//! answers of the server.

use std::path::Path;

use super::super::tests::json_request;
use super::*;
use crate::fake::Fake;

fn operations() -> Vec<(String, String, Value)> {
    let description = openapi();
    let paths = description["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(|(method, operation)| (method.to_uppercase(), path.clone(), operation.clone()))
    });
    each.collect()
}

/// Returns a validator for the schema of an answer or body. The named schemas of the description are added.
fn validator(schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = openapi()["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

#[test]
fn openapi_describes_exactly_the_routes() {
    let described: BTreeSet<(String, String, String)> = operations()
        .into_iter()
        .map(|(method, path, operation)| {
            (method, path, operation["x-role"].as_str().unwrap().to_owned())
        })
        .collect();
    let called: BTreeSet<(String, String, String)> = table()
        .into_iter()
        .map(|call| (call.method.to_string(), call.path.to_owned(), call.role.as_str().to_owned()))
        .collect();
    assert_eq!(described, called);
    assert_eq!(
        calls::call_descriptions().len(),
        called.len(),
        "description of a call that does not exist"
    );
    let ids: BTreeSet<String> =
        operations().iter().map(|(_, _, operation)| operation["operationId"].to_string()).collect();
    assert_eq!(ids.len(), called.len(), "an operationId occurs twice");
    for (method, path, operation) in operations() {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
        assert_eq!(in_path, path.matches('{').count(), "{method} {path}");
    }
}

#[test]
fn openapi_schemas_are_valid() {
    let description = openapi();
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
            panic!("{name}: {}: {error}", error.instance_path());
        }
        // Fails if a referenced schema is missing.
        validator(schema);
    }
}

#[test]
fn openapi_document_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let text = format!("{:#}\n", openapi());
    if std::env::var_os("DDPD_WRITE_REFERENCE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let have = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(have == text, "docs/openapi.json is old: run this test with DDPD_WRITE_REFERENCE=1");
}

/// Makes each call with an example as input and validates the answer or the error response.
#[test]
fn responses_match_openapi_schemas() {
    let fake = Fake::start();
    let mut seen = BTreeSet::new();
    for (method, path, operation) in operations() {
        // A capture is omitted, because its answer ends only when the client disconnects.
        if path.ends_with("/capture") {
            continue;
        }
        let path = path
            .replace("/regions/{name}/data", "/regions/inbox/data?offset=0&length=4")
            .replace("{name}", "inbox")
            .replace("{id}", "7")
            .replace("{what}", "7");
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = if schema.is_null() { String::new() } else { "{}".to_owned() };
        let (status, answer) = json_request(&fake, &method, &path, &body);
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {path}: {status} {answer} is not described");
        if let Some(content) = response["content"].get("application/json") {
            let wrong: Vec<String> = validator(&content["schema"])
                .iter_errors(&answer)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert_eq!(wrong, [""; 0], "{method} {path}: {status} {answer}");
        }
        seen.insert(status);
    }
    assert!(seen.contains(&200) && seen.contains(&400), "{seen:?}");
}

/// The pattern in a schema matches a text if and only if the program accepts the text.
#[test]
fn schema_patterns_agree_with_parsers() {
    let spec = json!({"$ref": "#/components/schemas/ConnectSpec"});
    let validator = validator(&spec);
    let words = [
        "192.0.2.1:7471",
        "192.0.2.1:0",
        "192.0.2.1:65535",
        "192.0.2.1:65536",
        "192.0.2.256:1",
        "192.0.2.01:1",
        "192.0.2.1",
        "[::]:1",
        "[::1]:1",
        "[2001:db8::1]:7471",
        "[1:2:3:4:5:6:7:8]:9",
        "[1:2:3:4:5:6:7::]:9",
        "[1::3:4:5:6:7:8]:9",
        "[1:2:3:4:5:6:7:8:9]:9",
        "[1::2::3]:9",
        "[12345::]:9",
        "::1:9",
        "[::1]",
        "[fe80::1%3]:9",
        "[fe80::1%lan]:9",
        "",
        "peer:1",
    ];
    for word in words {
        let body = json!({ "remote": word });
        let parsed = serde_json::from_value::<super::super::ConnectSpec>(body.clone()).is_ok();
        assert_eq!(validator.is_valid(&body), parsed, "{word}");
    }
    let base64 = self::validator(&json!({"$ref": "#/components/schemas/Base64"}));
    for word in ["", "aA==", "aB==", "aGk=", "aGl=", "aGVs", "aGV", "aGVsbG8=", "a-_=", " aA=="] {
        let spec = json!({"via": {"stream": "7"}, "data": word});
        let parsed = serde_json::from_value::<super::super::SendSpec>(spec).is_ok();
        assert_eq!(base64.is_valid(&json!(word)), parsed, "{word}");
    }
}

/// Schema and program both refuse unknown members and values out of range.
#[test]
fn refused_bodies_violate_openapi_schemas() {
    let validator = validator(&json!({"$ref": "#/components/schemas/PingSpec"}));
    let good =
        json!({"connect": {"remote": "192.0.2.1:1"}, "count": 1, "size": 1, "timeout_us": 1});
    assert!(validator.is_valid(&good));
    for (member, value) in [
        ("count", json!(-1)),
        ("count", json!(0)),
        ("size", json!(65_537)),
        ("colour", json!(1)),
        ("connect", json!({"remote": "192.0.2.1:1", "ulp": "udp"})),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        assert!(!validator.is_valid(&bad), "{bad}");
    }
}

/// The 405 response to an unknown method lists the methods of the path in `Allow`.
#[test]
fn unknown_method_is_refused_with_allow_header() {
    let fake = Fake::start();
    let mut stream = std::os::unix::net::UnixStream::connect(fake.socket()).unwrap();
    let request = b"PATCH /v1/regions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, request).unwrap();
    let answer = std::io::read_to_string(stream).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 405") && answer.contains("\r\nallow: "), "{answer}");
    let allow = answer.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
    assert!(allow.contains("get") && allow.contains("post"), "{allow}");
}
