//! Inputs of handlers: path, query and body. They are derived from the signatures of the handlers, so that the OpenAPI
//! description always agrees with the code.

use axum::body::Body;
use axum::extract::State;
use axum::handler::Handler;
use axum::http::HeaderMap;
use axum::routing::{self, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::access::Caller;
use crate::app::{App, Json, Params, PathParam};

/// Function that generates a JSON schema. Named schemas are added to the generator's definitions.
pub(crate) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

#[derive(Clone, Copy, Default)]
pub(crate) struct CallInputs {
    /// Schema of the path parameter, which names an object.
    pub(crate) path: Option<SchemaFn>,
    /// Schema of an object with the parameters of the query.
    pub(crate) query: Option<SchemaFn>,
    /// Schema of the JSON body; `None` if the call accepts no JSON.
    pub(crate) body: Option<SchemaFn>,
    /// True if the body is raw bytes.
    pub(crate) bytes: bool,
}

/// A handler with its inputs.
pub(crate) struct Route {
    pub(crate) inputs: CallInputs,
    pub(crate) handler: MethodRouter<App>,
}

macro_rules! methods {
    ($($method:ident)+) => {$(
        pub(crate) fn $method<H, T, P>(handler: H) -> Route
        where
            H: Handler<T, App> + DescribedHandler<P>,
            T: 'static,
        {
            Route { inputs: H::inputs(), handler: routing::$method(handler) }
        }
    )+};
}

methods! { get post delete }

/// Type of a handler's argument. Describes the inputs that the argument extracts.
pub(crate) trait HandlerArgument {
    /// Adds the inputs that this argument extracts. The default adds none.
    fn describe(_: &mut CallInputs) {}
}

impl HandlerArgument for State<App> {}
impl HandlerArgument for Caller {}
// Headers are not described as inputs. Only `/v1/metrics` reads a header, the standard header `Accept`.
impl HandlerArgument for HeaderMap {}

impl HandlerArgument for Body {
    fn describe(inputs: &mut CallInputs) {
        inputs.bytes = true;
    }
}

impl<T: JsonSchema> HandlerArgument for PathParam<T> {
    fn describe(inputs: &mut CallInputs) {
        inputs.path = Some(T::json_schema);
    }
}

impl<T: JsonSchema> HandlerArgument for Params<T> {
    fn describe(inputs: &mut CallInputs) {
        inputs.query = Some(T::json_schema);
    }
}

impl<T: JsonSchema> HandlerArgument for Json<T> {
    fn describe(inputs: &mut CallInputs) {
        inputs.body = Some(SchemaGenerator::subschema_for::<T>);
    }
}

/// A function whose arguments all implement [`HandlerArgument`].
pub(crate) trait DescribedHandler<P> {
    fn inputs() -> CallInputs;
}

macro_rules! described_handlers {
    ($($Argument:ident)*) => {
        impl<F, Answer, $($Argument: HandlerArgument),*> DescribedHandler<($($Argument,)*)> for F
        where
            F: FnOnce($($Argument),*) -> Answer,
        {
            fn inputs() -> CallInputs {
                let mut inputs = CallInputs::default();
                $($Argument::describe(&mut inputs);)*
                inputs
            }
        }
    };
}

described_handlers! { A }
described_handlers! { A B }
described_handlers! { A B C }
described_handlers! { A B C D }
