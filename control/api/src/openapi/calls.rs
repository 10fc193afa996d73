//! Properties of the calls that the signatures of their handlers do not contain: summary, answer, and errors.

use schemars::{JsonSchema, SchemaGenerator};

use crate::ErrorKind::{self, *};
use crate::call_inputs::SchemaFn;
use crate::*;

/// Content of the answer to a successful call.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// JSON with this schema.
    Json(SchemaFn),
    /// JSON with the first schema. With `follow=true`, an endless body with one JSON object per line, of the second
    /// schema.
    Lines(SchemaFn, SchemaFn),
    /// Text or bytes with one of these content types.
    Raw(&'static [&'static str]),
}

/// Link from an answer to an operation that uses a member of this answer. The strings are the identifier of the
/// operation, the name of its parameter, and the JSON pointer of the member.
pub(super) type Link = (&'static str, &'static str, &'static str);

/// Description of a call.
pub(super) struct CallDescription {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) status: u16,
    pub(super) content: Content,
    /// Possible errors in addition to those of the call's inputs.
    pub(super) refusals: &'static [ErrorKind],
    pub(super) links: &'static [Link],
}

impl CallDescription {
    fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    fn with_refusals(self, refusals: &'static [ErrorKind]) -> Self {
        Self { refusals, ..self }
    }

    fn with_links(self, links: &'static [Link]) -> Self {
        Self { links, ..self }
    }
}

fn describe(
    call: &'static str,
    id: &'static str,
    summary: &'static str,
    content: Content,
) -> CallDescription {
    let (method, path) = call.split_once(' ').unwrap_or((call, ""));
    CallDescription { method, path, id, summary, status: 200, content, refusals: &[], links: &[] }
}

fn json<T: JsonSchema>() -> Content {
    Content::Json(SchemaGenerator::subschema_for::<T>)
}

/// A line of a response with `follow=true`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum EventLine {
    /// An event.
    Event(Box<Event>),
    /// Report of overwritten events.
    Lost {
        /// Number of events overwritten before they could be sent.
        lost: u64,
    },
}

fn events() -> Content {
    Content::Lines(
        SchemaGenerator::subschema_for::<EventPage>,
        SchemaGenerator::subschema_for::<EventLine>,
    )
}

const STREAM_LINKS: &[Link] =
    &[("getStream", "id", "/id"), ("closeStream", "id", "/id"), ("why", "what", "/id")];
const JOB_LINKS: &[Link] = &[("getJob", "id", "/id"), ("cancelJob", "id", "/id")];
const PUT_LINKS: &[Link] =
    &[("getJob", "id", "/id"), ("cancelJob", "id", "/id"), ("sendInput", "id", "/id")];
/// Errors of calls that open or use a stream to a peer.
const PEER_ERRORS: &[ErrorKind] = &[NotFound, Conflict, PeerRefused, Timeout];

/// Returns the descriptions of all calls.
pub(super) fn call_descriptions() -> Vec<CallDescription> {
    let mut all = state_calls();
    all.extend(object_calls());
    all.extend(transfer_calls());
    all.extend(service_calls());
    all
}

fn state_calls() -> Vec<CallDescription> {
    vec![
        describe("GET /v1/status", "getStatus", "Summary of the appliance", json::<Status>()),
        describe("GET /v1/ports", "listPorts", "Lists the ports", json::<Vec<PortInfo>>()),
        describe(
            "GET /v1/ports/{name}/capture",
            "capture",
            "Captures frames of a port to pcapng, until `limit`, DELETE or a disconnect",
            Content::Raw(&["application/x-pcapng"]),
        )
        .with_refusals(&[Conflict]),
        describe(
            "DELETE /v1/ports/{name}/capture",
            "endCapture",
            "Ends the capture of a port; its client receives the rest",
            json::<Done>(),
        ),
        describe("GET /v1/workers", "listWorkers", "Lists the workers", json::<Vec<WorkerInfo>>()),
        describe("GET /v1/stats", "getStats", "Counters, gauges and histograms", json::<Stats>()),
        describe("GET /v1/events", "listEvents", "Reads or follows events", events()),
        describe(
            "GET /v1/messages",
            "listMessages",
            "Reads or follows events of the kind `message`",
            events(),
        ),
        describe(
            "GET /v1/why/{what}",
            "why",
            "History of a stream, a job, a peer or a local program (`program-N`)",
            json::<Why>(),
        )
        .with_refusals(&[BadRequest]),
        describe(
            "GET /v1/metrics",
            "getMetrics",
            "All metrics in the format of Prometheus, or OpenMetrics if the client accepts it",
            Content::Raw(&["text/plain", "application/openmetrics-text"]),
        ),
    ]
}

fn object_calls() -> Vec<CallDescription> {
    const LISTENER: &[Link] = &[("removeListener", "name", "/name")];
    const REGION: &[Link] = &[
        ("removeRegion", "name", "/name"),
        ("setRegionAccess", "name", "/name"),
        ("readRegion", "name", "/name"),
    ];
    vec![
        describe("GET /v1/regions", "listRegions", "Lists the regions", json::<Vec<RegionInfo>>()),
        describe("POST /v1/regions", "addRegion", "Registers a region", json::<RegionInfo>())
            .with_status(201)
            .with_refusals(&[NotFound, Conflict])
            .with_links(REGION),
        describe(
            "DELETE /v1/regions/{name}",
            "removeRegion",
            "Deregisters a region; answers when all workers have removed its STag",
            json::<Done>(),
        )
        .with_refusals(&[Conflict]),
        describe(
            "POST /v1/regions/{name}/access",
            "setRegionAccess",
            "Changes the rights of peers on a region",
            json::<RegionInfo>(),
        )
        .with_refusals(&[Conflict]),
        describe(
            "GET /v1/regions/{name}/data",
            "readRegion",
            "Reads bytes of a region",
            Content::Raw(&["application/octet-stream"]),
        ),
        describe(
            "GET /v1/listeners",
            "listListeners",
            "Lists the listeners",
            json::<Vec<ListenerInfo>>(),
        ),
        describe("POST /v1/listeners", "addListener", "Adds a listener", json::<ListenerInfo>())
            .with_status(201)
            .with_refusals(&[NotFound, Conflict])
            .with_links(LISTENER),
        describe(
            "DELETE /v1/listeners/{name}",
            "removeListener",
            "Removes a listener, but not its streams",
            json::<Done>(),
        )
        .with_refusals(&[Conflict]),
        describe("GET /v1/streams", "listStreams", "Lists the streams", json::<Vec<StreamInfo>>()),
        describe("GET /v1/streams/{id}", "getStream", "Shows a stream", json::<StreamInfo>()),
        describe("DELETE /v1/streams/{id}", "closeStream", "Closes a stream", json::<Done>())
            .with_refusals(&[Conflict, Timeout]),
        describe(
            "GET /v1/associations",
            "listAssociations",
            "Lists the SCTP associations",
            json::<Vec<AssociationInfo>>(),
        ),
        describe(
            "GET /v1/associations/{id}",
            "getAssociation",
            "Shows an SCTP association",
            json::<AssociationInfo>(),
        ),
        describe(
            "GET /v1/ipsec/sas",
            "listIpsecSas",
            "Lists the IPsec security associations, without their keys",
            json::<Vec<IpsecSaInfo>>(),
        ),
        describe(
            "GET /v1/ipsec/policies",
            "listIpsecPolicies",
            "Lists the IPsec policies in the order of their evaluation",
            json::<Vec<IpsecPolicyInfo>>(),
        ),
    ]
}

fn transfer_calls() -> Vec<CallDescription> {
    vec![
        describe("POST /v1/connect", "connect", "Opens a stream", json::<StreamInfo>())
            .with_status(201)
            .with_refusals(PEER_ERRORS)
            .with_links(STREAM_LINKS),
        describe(
            "POST /v1/put",
            "put",
            "Writes a file, or the data of `sendInput`, into a peer's region",
            json::<JobInfo>(),
        )
        .with_status(202)
        .with_refusals(PEER_ERRORS)
        .with_links(PUT_LINKS),
        describe("POST /v1/send", "send", "Sends an untagged message", json::<Sent>())
            .with_refusals(PEER_ERRORS),
        describe(
            "POST /v1/get",
            "get",
            "Reads a peer's memory into a file or a region with RDMA Reads",
            json::<JobInfo>(),
        )
        .with_status(202)
        .with_refusals(PEER_ERRORS)
        .with_links(JOB_LINKS),
        describe("POST /v1/ping", "ping", "Measures round trips with rping", json::<PingReport>())
            .with_refusals(PEER_ERRORS),
        describe(
            "POST /v1/atomic",
            "atomic",
            "Performs an atomic operation on a peer's memory",
            json::<AtomicDone>(),
        )
        .with_refusals(PEER_ERRORS),
        describe("POST /v1/bench", "bench", "Generates a load on a peer", json::<JobInfo>())
            .with_status(202)
            .with_refusals(PEER_ERRORS)
            .with_links(JOB_LINKS),
        describe(
            "GET /v1/programs",
            "listPrograms",
            "Lists the local programs that use the appliance as their RDMA device",
            json::<Vec<ProgramInfo>>(),
        ),
        describe(
            "GET /v1/programs/{id}",
            "getProgram",
            "Shows a local program",
            json::<ProgramInfo>(),
        ),
        describe(
            "DELETE /v1/programs/{id}",
            "killProgram",
            "Ends a local program's session: its connections are reset and its memory is freed",
            json::<ProgramInfo>(),
        ),
        describe(
            "GET /v1/jobs",
            "listJobs",
            "Lists the jobs, including recently ended jobs",
            json::<Vec<JobInfo>>(),
        ),
        describe("GET /v1/jobs/{id}", "getJob", "Shows a job", json::<JobInfo>()),
        describe("DELETE /v1/jobs/{id}", "cancelJob", "Cancels a job", json::<JobInfo>())
            .with_refusals(&[Conflict]),
        describe(
            "POST /v1/jobs/{id}/input",
            "sendInput",
            "Sends the data of a put without a file; a truncated body fails the job",
            json::<Done>(),
        )
        .with_refusals(&[Conflict]),
    ]
}

fn service_calls() -> Vec<CallDescription> {
    vec![
        describe(
            "POST /v1/drain",
            "drain",
            "Refuses new streams and jobs from now on",
            json::<Status>(),
        ),
        describe(
            "POST /v1/undrain",
            "undrain",
            "Accepts new streams and jobs again",
            json::<Status>(),
        ),
        describe(
            "POST /v1/reload",
            "reload",
            "Applies the configuration file",
            json::<ReloadReport>(),
        )
        .with_refusals(&[Conflict]),
        describe("GET /v1/config", "getConfig", "Running configuration", json::<ConfigInfo>()),
        describe(
            "GET /v1/config/diff",
            "diffConfig",
            "Differences between the running configuration and the present file",
            json::<ConfigDiff>(),
        )
        .with_refusals(&[Conflict]),
        describe(
            "POST /v1/config/save",
            "saveConfig",
            "Writes the running configuration to a file",
            json::<Saved>(),
        )
        .with_refusals(&[Conflict]),
        describe("GET /v1/log", "getLog", "State of the process's log", json::<LogInfo>()),
        describe("POST /v1/log", "setLog", "Sets the log's filter", json::<LogInfo>())
            .with_refusals(&[Conflict]),
    ]
}
