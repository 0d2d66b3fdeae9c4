//! Names, schemas, the catalogue and its search.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::time::Instant;

use serde_json::{Value, json};

use super::testing::tool;
use super::*;

fn never(_: Value) -> ToolFuture {
    Box::pin(std::future::pending())
}

fn code(name: &str, description: &str, schema: Value) -> &'static str {
    Tool::new(name, description, schema, never).map_or_else(|error| error.code(), |_| "ok")
}

#[test]
fn names_are_python_identifiers() {
    for name in ["search", "Search_2", "_private", "match", "print"] {
        assert_eq!(code(name, "", json!({})), "ok", "{name}");
    }
    let long = "x".repeat(65);
    for name in ["", "_", "__import__", "2nd", "a-b", "a.b", "a b", "é", "class", "None", &long] {
        assert_eq!(code(name, "", json!({})), "tool_name", "{name}");
    }
}

#[test]
fn schemas_are_compiled_and_refused_by_name() {
    for schema in [
        json!([]),
        json!(true),
        json!({"type": "objekt"}),
        json!({"pattern": "("}),
        json!({"properties": {"a": {"pattern": "(?=look)around"}}}),
        json!({"$ref": "https://example.com/schema.json"}),
    ] {
        assert_eq!(code("t", "", schema.clone()), "tool_schema", "{schema}");
    }
    let huge = json!({"description": "x".repeat(MAX_TOOL_SCHEMA_BYTES)});
    assert_eq!(code("t", "", huge), "tool_too_large");
    assert_eq!(code("t", &"x".repeat(MAX_TOOL_DESCRIPTION_BYTES + 1), json!({})), "tool_too_large");
}

#[test]
fn parameters_begin_with_the_required_ones() {
    let schema = json!({
        "properties": {"a": {}, "b": {}, "query": {}, "limit": {}},
        "required": ["query", "b"],
    });
    let tool = Tool::new("t", "", schema, never).unwrap();
    assert_eq!(tool.parameters(), ["query", "b", "a", "limit"]);
    let tool = tool.parameter_order(&["limit", "none", "query"]);
    assert_eq!(tool.parameters(), ["limit", "query", "b", "a"]);
}

#[test]
fn a_misfit_is_a_short_sentence() {
    let tool = tool("t", never);
    assert_eq!(tool.check_arguments(&json!({"a": 1})), Ok(()));
    let message = tool.check_arguments(&json!({"a": "x"})).unwrap_err();
    assert_eq!(
        message,
        r#"the arguments of `t` do not fit its schema at /a: "x" is not of type "integer""#
    );
    let message = tool.check_arguments(&json!({"a": "é".repeat(1 << 20)})).unwrap_err();
    assert!((4000..=MAX_TOOL_MESSAGE_BYTES).contains(&message.len()));
}

#[test]
fn a_set_has_each_name_once() {
    let mut set = ToolSet::new();
    set.add(tool("b", never)).unwrap();
    set.add(tool("a", never)).unwrap();
    assert_eq!(set.add(tool("a", never)).unwrap_err().code(), "tool_duplicate");
    assert_eq!((set.len(), set.get("a").is_some(), set.get("c").is_none()), (2, true, true));
    assert_eq!(set.iter().map(|tool| tool.name()).collect::<Vec<_>>(), ["a", "b"]);
    let description: Value = serde_json::from_str(&set.describe("a").unwrap()).unwrap();
    assert_eq!(description["description"], "A tool for tests.");
    assert_eq!(description["parameters"]["properties"]["a"]["type"], "integer");
    let names: Vec<fumehood_guest_abi::ToolName> = fumehood_guest_abi::decode(set.list()).unwrap();
    assert_eq!((names[0].name.as_str(), names[0].parameters.len()), ("a", 2));
}

#[test]
fn a_large_catalogue_is_searched_fast_and_in_order() {
    let mut set = ToolSet::new();
    let nouns = ["invoice", "customer", "order", "ticket", "report"];
    let started = Instant::now();
    for number in 0..10_000 {
        let noun = nouns[number % nouns.len()];
        let description =
            format!("Gets {noun} number {number} of the shop. It never changes anything.");
        let name = format!("get_{noun}_{number}");
        set.add(Tool::new(&name, &description, json!({"type": "object"}), never).unwrap()).unwrap();
    }
    println!("10 000 tools made: {:?}", started.elapsed());
    let names = |query: &str, limit| {
        set.search(query, limit).into_iter().map(|found| found.name).collect::<Vec<_>>()
    };
    assert_eq!(names("invoice 7500", 1), ["get_invoice_7500"]);
    assert_eq!(names("GET_ticket_3", 1), ["get_ticket_3"]);
    assert_eq!(names("cust 5551", 1), ["get_customer_5551"]);
    assert_eq!(names("report", 3), ["get_report_1004", "get_report_1009", "get_report_1014"]);
    assert_eq!(set.search("get", 1_000_000).len(), MAX_SEARCH_RESULTS);
    assert_eq!(
        set.search("invoice 7500", 1)[0].description,
        "Gets invoice number 7500 of the shop"
    );
    assert!(names("zebra", 9).is_empty() && names("", 9).is_empty() && names("get", 0).is_empty());
    for query in ["invoice 7500", "report about customers", "g", &"get 1 ".repeat(10_000)] {
        let started = Instant::now();
        let mut best = std::time::Duration::MAX;
        for _ in 0..20 {
            let one = Instant::now();
            std::hint::black_box(set.search(query, 20));
            best = best.min(one.elapsed());
        }
        let shown = query.get(..20.min(query.len())).unwrap();
        println!("search `{shown}`: best {best:?}, mean {:?}", started.elapsed() / 20);
    }
}
