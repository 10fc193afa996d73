//! Calls of the management API: paths, methods, request bodies and status codes.
//!
//! `route_table` lists all calls. Most handlers send one `Request` to the control thread and return the reply. Events
//! and messages are read from the event log. Captures, inputs of jobs, and the calls about the configuration have
//! modules of their own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use config::{Backing, Delivery};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;

use super::access::{Access, Caller, Gate, RequiredRole, Role, guard};
use super::app::{App, Json, Params, PathParam, RouteResult};
use super::call_inputs::{CallInputs, Route, delete, get, post};
use super::capture;
use super::config_routes::{reload, save};
use super::input::input;
use super::log;
use super::schema_shapes::{self, ListenerKeys, RegionKeys};
use super::why;
use super::{
    ApiError, AtomicSpec, BenchSpec, ConnectSpec, ErrorKind, EventFilter, GetSink, GetSpec,
    MAX_PAGE, NamePage, PingSpec, PutSpec, Reply, Request, SendSpec, Severity, Stats, StreamId,
};
use crate::metrics;

/// Maximum time for which a long poll waits for an event.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a region in one response.
const MAX_READ: u64 = 16 * 1024 * 1024;

/// A call: method, path, required role and handler.
pub(super) struct RouteEntry {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) role: Role,
    /// Parameters and body of the handler, for the OpenAPI description.
    pub(super) inputs: CallInputs,
    handler: MethodRouter<App>,
}

fn route_entry(method: Method, path: &'static str, role: Role, served: Route) -> RouteEntry {
    let Route { inputs, handler: answer } = served;
    RouteEntry { method, path, role, inputs, handler: answer }
}

/// Returns all calls. The role `view` can read state. `operate` can also change state, and read captured frames and the
/// contents of regions. `admin` can also reload and save the configuration, and set the log filter. Four calls of
/// `operate` require `admin` if their body names a file: see [`Caller::require_file_access`].
pub(super) fn route_table() -> Vec<RouteEntry> {
    use Role::{Admin, Operate, View};
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const DELETE: Method = Method::DELETE;
    vec![
        route_entry(GET, "/v1/status", View, parameterless_route(Request::Status)),
        route_entry(GET, "/v1/ports", View, parameterless_route(Request::Ports)),
        route_entry(GET, "/v1/ports/{name}/capture", Operate, get(capture::begin_capture)),
        route_entry(DELETE, "/v1/ports/{name}/capture", Operate, delete(capture::end_capture)),
        route_entry(GET, "/v1/workers", View, parameterless_route(Request::Workers)),
        route_entry(GET, "/v1/regions", View, get(regions)),
        route_entry(POST, "/v1/regions", Operate, post(add_region)),
        route_entry(DELETE, "/v1/regions/{name}", Operate, delete(remove_region)),
        route_entry(POST, "/v1/regions/{name}/access", Operate, post(set_access)),
        route_entry(GET, "/v1/regions/{name}/data", Operate, get(region_data)),
        route_entry(GET, "/v1/listeners", View, get(listeners)),
        route_entry(POST, "/v1/listeners", Operate, post(add_listener)),
        route_entry(DELETE, "/v1/listeners/{name}", Operate, delete(remove_listener)),
        route_entry(GET, "/v1/streams", View, get(streams)),
        route_entry(GET, "/v1/streams/{id}", View, get(stream)),
        route_entry(DELETE, "/v1/streams/{id}", Operate, delete(close_stream)),
        route_entry(GET, "/v1/associations", View, parameterless_route(Request::Associations)),
        route_entry(GET, "/v1/associations/{id}", View, get(association)),
        route_entry(GET, "/v1/ipsec/sas", View, parameterless_route(Request::IpsecSas)),
        route_entry(GET, "/v1/ipsec/policies", View, parameterless_route(Request::IpsecPolicies)),
        route_entry(GET, "/v1/stats", View, parameterless_route(Request::Stats)),
        route_entry(GET, "/v1/events", View, get(events)),
        route_entry(GET, "/v1/messages", View, get(messages)),
        route_entry(POST, "/v1/connect", Operate, post(connect)),
        route_entry(POST, "/v1/put", Operate, post(put)),
        route_entry(POST, "/v1/send", Operate, post(send)),
        route_entry(POST, "/v1/get", Operate, post(get_bytes)),
        route_entry(POST, "/v1/ping", Operate, post(ping)),
        route_entry(POST, "/v1/atomic", Operate, post(atomic)),
        route_entry(POST, "/v1/bench", Operate, post(bench)),
        route_entry(GET, "/v1/programs", View, parameterless_route(Request::Programs)),
        route_entry(GET, "/v1/programs/{id}", View, get(program)),
        route_entry(DELETE, "/v1/programs/{id}", Operate, delete(kill_program)),
        route_entry(GET, "/v1/jobs", View, parameterless_route(Request::Jobs)),
        route_entry(GET, "/v1/jobs/{id}", View, get(job)),
        route_entry(DELETE, "/v1/jobs/{id}", Operate, delete(cancel_job)),
        route_entry(POST, "/v1/jobs/{id}/input", Operate, post(input)),
        route_entry(GET, "/v1/why/{what}", View, get(why::explain)),
        route_entry(POST, "/v1/drain", Operate, post(drain)),
        route_entry(POST, "/v1/undrain", Operate, post(undrain)),
        route_entry(POST, "/v1/reload", Admin, post(reload)),
        route_entry(GET, "/v1/config", View, parameterless_route(Request::Config)),
        route_entry(GET, "/v1/config/diff", View, parameterless_route(Request::ConfigDiff)),
        route_entry(POST, "/v1/config/save", Admin, post(save)),
        route_entry(GET, "/v1/log", View, parameterless_route(Request::Log)),
        route_entry(POST, "/v1/log", Admin, post(log::set_filter)),
        route_entry(GET, "/v1/metrics", View, get(prometheus)),
    ]
}

/// Returns the router of all calls in the table. A middleware checks the role of the caller before each handler.
pub(super) fn router(app: App, access: Arc<Access>) -> Router {
    let calls = route_table();
    let roles = calls.iter().map(|call| RequiredRole {
        method: call.method.clone(),
        path: call.path,
        role: call.role,
    });
    let gate = Gate::new(access, roles);
    let routes =
        calls.into_iter().fold(Router::new(), |routes, call| routes.route(call.path, call.handler));
    routes
        .fallback(path_not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(gate, guard))
        .layer(axum::middleware::from_fn(log::log_request))
        .with_state(app)
}

/// Returns the handler of a GET without parameters, which sends `request` to the control thread and returns the reply.
fn parameterless_route(request: Request) -> Route {
    get(move |State(app): State<App>| async move { app.respond_ok(request).await })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamePageQuery {
    /// Maximum number of objects, at most 1000. Default: 1000.
    limit: Option<usize>,
    /// Only objects with greater names. Default: from the beginning.
    after: Option<String>,
}

impl NamePageQuery {
    fn page(self) -> NamePage {
        NamePage { after: self.after, limit: bounded_limit(self.limit) }
    }
}

/// Returns the maximum number of objects on a page: `limit`, but at most [`MAX_PAGE`].
fn bounded_limit(limit: Option<usize>) -> usize {
    limit.unwrap_or(MAX_PAGE).min(MAX_PAGE)
}

async fn regions(State(app): State<App>, Params(query): Params<NamePageQuery>) -> RouteResult {
    app.respond_ok(Request::Regions(query.page())).await
}

async fn listeners(State(app): State<App>, Params(query): Params<NamePageQuery>) -> RouteResult {
    app.respond_ok(Request::Listeners(query.page())).await
}

async fn add_region(
    State(app): State<App>,
    caller: Caller,
    Json(RegionKeys(body)): Json<RegionKeys>,
) -> RouteResult {
    let region = config::region_from_json(&body).map_err(invalid_body)?;
    if let Backing::File { .. } = region.backing {
        caller.require_file_access("path")?;
    }
    app.respond(StatusCode::CREATED, Request::AddRegion(region)).await
}

async fn add_listener(
    State(app): State<App>,
    caller: Caller,
    Json(ListenerKeys(body)): Json<ListenerKeys>,
) -> RouteResult {
    let listener = config::listener_from_json(&body).map_err(invalid_body)?;
    if listener.queues.iter().any(|queue| matches!(queue.deliver_to, Delivery::File { .. })) {
        caller.require_file_access("queue.path")?;
    }
    app.respond(StatusCode::CREATED, Request::AddListener(listener)).await
}

fn invalid_body(errors: config::ConfigErrors) -> ApiError {
    let sentences: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    ApiError::bad_request(sentences.join("; "))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ForceQuery {
    /// True: aborts streams that use the region. False: the call fails with status 409 if the region is in use.
    #[serde(default)]
    force: bool,
}

async fn remove_region(
    State(app): State<App>,
    PathParam(name): PathParam<String>,
    Params(query): Params<ForceQuery>,
) -> RouteResult {
    app.respond_ok(Request::RemoveRegion { name, force: query.force }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rights {
    /// New rights of peers.
    #[schemars(schema_with = "schema_shapes::access_words")]
    access: String,
}

async fn set_access(
    State(app): State<App>,
    PathParam(name): PathParam<String>,
    Json(rights): Json<Rights>,
) -> RouteResult {
    let access = config::access_from_word(&rights.access).ok_or_else(|| {
        ApiError::bad_request(format!("access: is not {}", config::ACCESS_CHOICES))
    })?;
    app.respond_ok(Request::SetAccess { name, access }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RangeQuery {
    /// Offset of the first byte in the region.
    offset: u64,
    /// Length in bytes, at most 16 MiB.
    #[schemars(range(max = 16_777_216))]
    length: u64,
}

async fn region_data(
    State(app): State<App>,
    PathParam(name): PathParam<String>,
    Params(part): Params<RangeQuery>,
) -> RouteResult {
    if part.length > MAX_READ {
        let message = format!("at most {MAX_READ} bytes of a region are read at once");
        return Err(ApiError::bad_request(message));
    }
    let request = Request::ReadRegion { name, offset: part.offset, length: part.length };
    let Reply::Bytes(bytes) = app.request(request).await? else {
        return Err(ApiError::internal("the control thread did not answer with bytes"));
    };
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

async fn remove_listener(
    State(app): State<App>,
    PathParam(name): PathParam<String>,
) -> RouteResult {
    app.respond_ok(Request::RemoveListener { name }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StreamPage {
    /// Maximum number of streams, at most 1000. Default: 1000.
    limit: Option<usize>,
    /// Only streams with greater numbers. Default: from the beginning.
    after: Option<StreamId>,
    /// Names of the counters to return, separated by commas. Default: all.
    counters: Option<String>,
}

async fn streams(State(app): State<App>, Params(page): Params<StreamPage>) -> RouteResult {
    let (after, limit) = (page.after, bounded_limit(page.limit));
    let mut reply = app.request(Request::Streams { after, limit }).await?;
    if let (Reply::Streams(streams), Some(wanted)) = (&mut reply, &page.counters) {
        let wanted: Vec<&str> = wanted.split(',').collect();
        for stream in streams {
            stream.counters.retain(|name, _| wanted.contains(&&**name));
        }
    }
    Ok((StatusCode::OK, axum::Json(reply)).into_response())
}

async fn stream(State(app): State<App>, PathParam(id): PathParam<StreamId>) -> RouteResult {
    app.respond_ok(Request::Stream(id)).await
}

async fn association(State(app): State<App>, PathParam(id): PathParam<StreamId>) -> RouteResult {
    app.respond_ok(Request::Association(id)).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AbortQuery {
    /// True: resets the stream. False: closes it gracefully.
    #[serde(default)]
    abort: bool,
}

async fn close_stream(
    State(app): State<App>,
    PathParam(id): PathParam<StreamId>,
    Params(query): Params<AbortQuery>,
) -> RouteResult {
    app.respond_ok(Request::CloseStream { id, abort: query.abort }).await
}

async fn connect(State(app): State<App>, Json(spec): Json<ConnectSpec>) -> RouteResult {
    app.respond(StatusCode::CREATED, Request::Connect(spec)).await
}

async fn put(State(app): State<App>, caller: Caller, Json(spec): Json<PutSpec>) -> RouteResult {
    if let Some(file) = &spec.file {
        caller.require_file_access("file")?;
        if !file.is_absolute() {
            let message = format!("file: {} must be an absolute path", file.display());
            return Err(ApiError::bad_request(message));
        }
    }
    app.respond(StatusCode::ACCEPTED, Request::Put(spec)).await
}

async fn send(State(app): State<App>, Json(spec): Json<SendSpec>) -> RouteResult {
    app.respond_ok(Request::Send(spec)).await
}

async fn get_bytes(
    State(app): State<App>,
    caller: Caller,
    Json(spec): Json<GetSpec>,
) -> RouteResult {
    if let GetSink::File(file) = &spec.sink {
        caller.require_file_access("sink.file")?;
        if !file.is_absolute() {
            let message = format!("sink.file: {} must be an absolute path", file.display());
            return Err(ApiError::bad_request(message));
        }
    }
    app.respond(StatusCode::ACCEPTED, Request::Get(spec)).await
}

async fn ping(State(app): State<App>, Json(spec): Json<PingSpec>) -> RouteResult {
    app.respond_ok(Request::Ping(spec)).await
}

async fn atomic(State(app): State<App>, Json(spec): Json<AtomicSpec>) -> RouteResult {
    app.respond_ok(Request::Atomic(spec)).await
}

async fn bench(State(app): State<App>, Json(spec): Json<BenchSpec>) -> RouteResult {
    app.respond(StatusCode::ACCEPTED, Request::Bench(spec)).await
}

async fn program(State(app): State<App>, PathParam(id): PathParam<u32>) -> RouteResult {
    app.respond_ok(Request::Program(id)).await
}

async fn kill_program(State(app): State<App>, PathParam(id): PathParam<u32>) -> RouteResult {
    app.respond_ok(Request::KillProgram(id)).await
}

async fn job(State(app): State<App>, PathParam(id): PathParam<u64>) -> RouteResult {
    app.respond_ok(Request::Job(id)).await
}

async fn cancel_job(State(app): State<App>, PathParam(id): PathParam<u64>) -> RouteResult {
    app.respond_ok(Request::CancelJob(id)).await
}

async fn drain(State(app): State<App>) -> RouteResult {
    app.respond_ok(Request::Drain).await
}

async fn undrain(State(app): State<App>) -> RouteResult {
    app.respond_ok(Request::Undrain).await
}

async fn prometheus(State(app): State<App>, headers: HeaderMap) -> RouteResult {
    let Reply::Stats(stats) = app.request(Request::Stats).await? else {
        return Err(ApiError::internal("the control thread did not answer with counters"));
    };
    render_metrics(&stats, &headers)
        .map_err(|error| ApiError::internal(format!("the metrics cannot be written: {error}")))
}

/// Returns the metrics in the format that the `Accept` header requests.
pub(super) fn render_metrics(
    stats: &Stats,
    headers: &HeaderMap,
) -> Result<Response, std::fmt::Error> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = metrics::Format::from_accept_header(accept);
    let text = metrics::render(stats, format)?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

async fn path_not_found(uri: axum::http::Uri) -> ApiError {
    let path = uri.path();
    ApiError::not_found(format!("there is no {path}: docs/api.md lists the paths"))
}

async fn method_not_allowed(method: Method, uri: axum::http::Uri) -> ApiError {
    let message = format!("{method} is not possible on {}: see docs/api.md", uri.path());
    ApiError::new(ErrorKind::MethodNotAllowed, message)
}

/// Query parameters of `/v1/events` and `/v1/messages`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct EventQuery {
    /// Only events after this sequence number. Default: 0, all.
    after: u64,
    /// Maximum number of events, 1 to 1000. Default: 100.
    limit: usize,
    /// Time to wait for the first event, milliseconds, at most 60000. Default: 0.
    wait_ms: u64,
    /// True: streams events as they occur, one per line; the response does not end.
    follow: bool,
    /// Minimum severity.
    severity: Severity,
    /// Only events of this stream.
    stream: Option<StreamId>,
    /// Only events of this listener and of its streams.
    listener: Option<String>,
    /// Only events since this time, microseconds since 1970-01-01 UTC. Default: 0, all.
    since_us: u64,
    /// Only messages of this queue (`/v1/messages`).
    queue: Option<u32>,
}

impl Default for EventQuery {
    fn default() -> Self {
        Self {
            after: 0,
            limit: 100,
            wait_ms: 0,
            follow: false,
            severity: Severity::Info,
            stream: None,
            listener: None,
            since_us: 0,
            queue: None,
        }
    }
}

/// Query parameters of `/v1/events`: as [`EventQuery`], without `queue`, which applies to messages only.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transform = remove_queue)]
struct AnyEventQuery(EventQuery);

fn remove_queue(schema: &mut schemars::Schema) {
    if let Some(properties) = schema.get_mut("properties").and_then(|all| all.as_object_mut()) {
        properties.remove("queue");
    }
}

async fn events(
    State(app): State<App>,
    Params(AnyEventQuery(query)): Params<AnyEventQuery>,
) -> RouteResult {
    if query.queue.is_some() {
        let message = "queue selects messages: use it with /v1/messages";
        return Err(ApiError::bad_request(message));
    }
    read_events(app, query, false).await
}

async fn messages(State(app): State<App>, Params(query): Params<EventQuery>) -> RouteResult {
    read_events(app, query, true).await
}

async fn read_events(app: App, query: EventQuery, messages: bool) -> RouteResult {
    let EventQuery { after, limit, wait_ms, follow: for_ever, .. } = query;
    let EventQuery { severity, stream, listener, since_us, queue, .. } = query;
    let filter = EventFilter { severity, stream, listener, since_us, messages, queue };
    let limit = limit.clamp(1, MAX_PAGE);
    if for_ever {
        return Ok(follow_events(app, after, limit, filter));
    }
    let wait = Duration::from_millis(wait_ms).min(MAX_WAIT);
    let deadline = tokio::time::Instant::now() + wait;
    let mut page = app.events.read(after, limit, &filter);
    let mut closing = app.closing();
    while page.events.is_empty() {
        let more = tokio::select! {
            () = app.events.wait(page.next) => true,
            () = tokio::time::sleep_until(deadline) => false,
            _ = closing.wait_for(|&closing| closing) => false,
        };
        if !more {
            break;
        }
        let lost = page.lost;
        page = app.events.read(page.next, limit, &filter);
        page.lost += lost;
    }
    Ok(axum::Json(page).into_response())
}

/// Streams one JSON object per line until the server stops: events, and `{"lost": n}` where n events were overwritten
/// before they were sent.
fn follow_events(app: App, after: u64, limit: usize, filter: EventFilter) -> Response {
    let lines = stream::unfold((app, after, filter), move |(app, mut after, filter)| async move {
        let mut closing = app.closing();
        loop {
            let page = app.events.read(after, limit, &filter);
            after = page.next;
            let mut lines = String::new();
            if page.lost > 0 {
                lines = format!("{{\"lost\":{}}}\n", page.lost);
            }
            for event in &page.events {
                match serde_json::to_string(event) {
                    Ok(line) => lines = lines + &line + "\n",
                    Err(error) => return Some((Err(error), (app, after, filter))),
                }
            }
            if !lines.is_empty() {
                return Some((Ok(lines), (app, after, filter)));
            }
            tokio::select! {
                () = app.events.wait(after) => {}
                _ = closing.wait_for(|&closing| closing) => return None,
            }
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(lines)).into_response()
}
