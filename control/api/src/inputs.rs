//! Inputs of handlers, derived from their signatures: the description of a call's parameters and
//! body cannot differ from the code.

use axum::body::Body;
use axum::extract::State;
use axum::handler::Handler;
use axum::http::HeaderMap;
use axum::routing::{self, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::access::Caller;
use crate::app::{App, Json, Name, Params};

/// Generates a schema; named ones are added to the generator's definitions.
pub(crate) type Make = fn(&mut SchemaGenerator) -> Schema;

/// The inputs of a call.
#[derive(Clone, Copy, Default)]
pub(crate) struct Inputs {
    /// The part of the path that names an object.
    pub(crate) path: Option<Make>,
    /// An object with the parameters of the query.
    pub(crate) query: Option<Make>,
    /// The body.
    pub(crate) body: Option<Make>,
    /// True if the body is raw bytes.
    pub(crate) bytes: bool,
}

/// A handler with its inputs.
pub(crate) struct Served {
    pub(crate) inputs: Inputs,
    pub(crate) answer: MethodRouter<App>,
}

macro_rules! methods {
    ($($method:ident)+) => {$(
        pub(crate) fn $method<H, T, P>(handler: H) -> Served
        where
            H: Handler<T, App> + Reads<P>,
            T: 'static,
        {
            Served { inputs: H::inputs(), answer: routing::$method(handler) }
        }
    )+};
}

methods! { get post delete }

/// An argument of a handler.
pub(crate) trait Part {
    /// Adds the inputs of this argument.
    fn describe(_: &mut Inputs) {}
}

impl Part for State<App> {}
impl Part for Caller {}
// No call depends on a header of its own; `/v1/metrics` follows `Accept`.
impl Part for HeaderMap {}

impl Part for Body {
    fn describe(inputs: &mut Inputs) {
        inputs.bytes = true;
    }
}

impl<T: JsonSchema> Part for Name<T> {
    fn describe(inputs: &mut Inputs) {
        inputs.path = Some(T::json_schema);
    }
}

impl<T: JsonSchema> Part for Params<T> {
    fn describe(inputs: &mut Inputs) {
        inputs.query = Some(T::json_schema);
    }
}

impl<T: JsonSchema> Part for Json<T> {
    fn describe(inputs: &mut Inputs) {
        inputs.body = Some(SchemaGenerator::subschema_for::<T>);
    }
}

/// A function with such arguments.
pub(crate) trait Reads<P> {
    /// Returns the inputs of the function.
    fn inputs() -> Inputs;
}

macro_rules! reads {
    ($($Part:ident)*) => {
        impl<F, Answer, $($Part: Part),*> Reads<($($Part,)*)> for F
        where
            F: FnOnce($($Part),*) -> Answer,
        {
            fn inputs() -> Inputs {
                let mut inputs = Inputs::default();
                $($Part::describe(&mut inputs);)*
                inputs
            }
        }
    };
}

reads! { A }
reads! { A B }
reads! { A B C }
reads! { A B C D }
