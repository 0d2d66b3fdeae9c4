//! Tools from functions.
//!
//! What: an async function, a blocking one, or either with typed arguments,
//! made a [`Tool`]. [`crate::SandboxBuilder`] has a method for each; these are
//! for tools that need more, such as a time limit of their own.
//!
//! Invariant: what a typed function gets was accepted by the schema of its
//! argument type, and an argument that the type does not know is refused.
//!
//! ```
//! use std::time::Duration;
//!
//! /// Looks up an order.
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Order {
//!     /// Its number.
//!     number: u32,
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let order = fumehood::tool::typed("order", |order: Order| async move {
//!     if order.number == 0 {
//!         return Err("there is no order 0".into());
//!     }
//!     Ok(format!("order {}", order.number))
//! })?;
//! assert_eq!(order.description(), "Looks up an order.");
//! let sandbox = fumehood::Sandbox::builder()
//!     .with_tool(order.timeout(Duration::from_secs(5)))
//!     .build()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use fumehood_host_fns::{Tool, ToolError, ToolFuture, ToolSetupError};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::Value;

/// A tool that is an async function of JSON. Its description is that of the
/// schema, the member `description`.
///
/// The function is called and first polled on the guest's thread: one that
/// ends without waiting costs no change of threads, one that blocks stops the
/// guest and cannot be interrupted. See [`blocking`].
///
/// # Errors
/// [`ToolSetupError`] if the name or the schema cannot be used.
pub fn plain<F, Fut>(name: &str, schema: Value, function: F) -> Result<Tool, ToolSetupError>
where
    F: Fn(Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
{
    let description = description(&schema);
    Tool::new(name, &description, schema, move |arguments| Box::pin(function(arguments)))
}

/// A tool that is a function of JSON which may block: it runs on a thread of
/// the runtime's pool for blocking work.
///
/// A call that was given up (a timeout, the end of the run) goes on until the
/// function returns; what it returns is dropped.
///
/// # Errors
/// [`ToolSetupError`] if the name or the schema cannot be used.
pub fn blocking<F>(name: &str, schema: Value, function: F) -> Result<Tool, ToolSetupError>
where
    F: Fn(Value) -> Result<Value, ToolError> + Send + Sync + 'static,
{
    let description = description(&schema);
    let function = Arc::new(function);
    Tool::new(name, &description, schema, move |arguments| {
        let function = Arc::clone(&function);
        off_thread(move || function(arguments))
    })
}

/// A tool that is an async function of a type. The schema is the type's, the
/// description its documentation comment, and positional arguments are given
/// in the order of its fields. An argument that the type does not have is
/// refused.
///
/// # Errors
/// [`ToolSetupError`] if the name cannot be used, or the type is not a struct
/// with named fields or the like.
pub fn typed<A, R, F, Fut>(name: &str, function: F) -> Result<Tool, ToolSetupError>
where
    A: DeserializeOwned + JsonSchema,
    R: Serialize,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    of_type::<A>(name, move |arguments| match A::deserialize(arguments) {
        Ok(arguments) => {
            let called = function(arguments);
            Box::pin(async move { json_of(&called.await?) })
        }
        Err(error) => Box::pin(std::future::ready(Err(unfit(&error)))),
    })
}

/// [`typed`] for a function that may block; see [`blocking`].
///
/// # Errors
/// [`ToolSetupError`] as [`typed`].
pub fn typed_blocking<A, R, F>(name: &str, function: F) -> Result<Tool, ToolSetupError>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize,
    F: Fn(A) -> Result<R, ToolError> + Send + Sync + 'static,
{
    let function = Arc::new(function);
    of_type::<A>(name, move |arguments| {
        let function = Arc::clone(&function);
        off_thread(move || {
            let arguments = A::deserialize(arguments).map_err(|error| unfit(&error))?;
            json_of(&function(arguments)?)
        })
    })
}

fn of_type<A: DeserializeOwned + JsonSchema>(
    name: &str,
    function: impl Fn(Value) -> ToolFuture + Send + Sync + 'static,
) -> Result<Tool, ToolSetupError> {
    let mut schema = schemars::schema_for!(A).to_value();
    let is_object = schema.get("type").is_none_or(|kind| kind == "object");
    if !is_object {
        let reason = "its type is not a struct with named fields; give it one".to_owned();
        return Err(ToolSetupError::Schema { name: name.to_owned(), reason });
    }
    if let Value::Object(members) = &mut schema {
        // What serde would skip is more often a misspelt name.
        let composed =
            ["$ref", "allOf", "anyOf", "oneOf"].iter().any(|key| members.contains_key(*key));
        let others = if composed { "unevaluatedProperties" } else { "additionalProperties" };
        members.entry(others).or_insert(Value::Bool(false));
    }
    let tool = Tool::new(name, &description(&schema), schema, function)?;
    Ok(tool.parameter_order(field_names::<A>()))
}

fn description(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn unfit(error: &serde_json::Error) -> ToolError {
    format!("the arguments do not fit: {error}").into()
}

fn json_of(result: &impl Serialize) -> Result<Value, ToolError> {
    serde_json::to_value(result)
        .map_err(|error| ToolError::with_source("the result is not JSON", error))
}

/// Calls a function on the runtime's pool for blocking work.
fn off_thread(function: impl FnOnce() -> Result<Value, ToolError> + Send + 'static) -> ToolFuture {
    Box::pin(async move {
        match tokio::task::spawn_blocking(function).await {
            Ok(result) => result,
            // The broker makes of it what it makes of every panic.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err("the host stopped it before it ended".into()),
        }
    })
}

/// The fields of a struct, in the order of its declaration; none if it is
/// something else or has flattened ones.
fn field_names<A: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It always fails; what it asked for is what is wanted.
    let _ = A::deserialize(Fields(&mut names));
    names
}

/// Remembers which fields a struct asks for, and gives none.
struct Fields<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("only the fields are asked for"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    /// Adds two numbers.
    #[derive(Deserialize, JsonSchema)]
    struct Sum {
        /// The first.
        zebra: i64,
        apple: Option<i64>,
        #[serde(default, rename = "third")]
        monkey: u8,
    }

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    #[test]
    fn a_type_gives_schema_description_and_order() {
        let tool = typed("add", |sum: Sum| async move {
            Ok(sum.zebra + sum.apple.unwrap_or(0) + i64::from(sum.monkey))
        });
        let tool = tool.unwrap();
        assert_eq!(tool.description(), "Adds two numbers.");
        assert_eq!(tool.parameters(), ["zebra", "apple", "third"]);
        assert_eq!(tool.schema()["required"], json!(["zebra"]));
        assert_eq!(tool.schema()["properties"]["zebra"]["description"], "The first.");
        let none = typed_blocking("none", |_: Nothing| Ok(())).unwrap();
        assert!(none.parameters().is_empty());
        for refused in [typed("bad", |_: ()| async { Ok(()) }).err(), {
            typed_blocking("bad", |(_, _): (u8, u8)| Ok(())).err()
        }] {
            assert_eq!(refused.unwrap().code(), "tool_schema");
        }
    }
}
