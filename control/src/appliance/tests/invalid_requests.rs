//! Invalid requests, found with schemathesis, that earlier versions accepted or answered with an internal error.

use api::{
    BenchLoad, BenchPeer, BenchSpec, ConnectSpec, ErrorKind, GetSink, GetSpec, PutSpec,
    RemotePlace, Via,
};

use super::rdmap::rdmap_spec;
use super::*;

/// Earlier versions started a job for a request with invalid connection parameters, and the job failed later.
#[test]
fn job_with_invalid_connection_is_refused_at_once() {
    let mut bench = bench_with(&format!("{BASIC}\n[management]\nbench = true\n"));
    let mut spec = rdmap_spec();
    spec.rdmap.peer = "nobody".into();
    let mut revision = ConnectSpec { transport: config::Transport::Sctp, ..rdmap_spec() };
    revision.mpa.revision = Some(3);
    for spec in [spec, revision] {
        let place = RemotePlace::Tagged { stag: 1, to: 0 };
        let via = Via::Connect(spec.clone());
        let requests = [
            Request::Put(PutSpec {
                file: Some("/tmp/none".into()),
                via: via.clone(),
                target: place.clone(),
            }),
            Request::Get(GetSpec {
                via,
                source: place,
                length: Some(8),
                sink: GetSink::Region { name: "own".into(), offset: 0 },
            }),
            Request::Bench(BenchSpec {
                load: BenchLoad::Echo,
                connect: spec,
                target: None,
                peer: BenchPeer::Appliance,
                queue: 0,
                streams: 1,
                size: 1,
                depth: 1,
                time_us: 1,
                rate: None,
            }),
        ];
        for request in requests {
            let refused = answer(&mut bench.call(request)).unwrap_err();
            assert_eq!(refused.error, ErrorKind::BadRequest, "{refused}");
        }
    }
    let Ok(Reply::Jobs(jobs)) = answer(&mut bench.call(Request::Jobs)) else { panic!("no jobs") };
    assert!(jobs.is_empty(), "{jobs:?}");
}

/// A listener added by the API lists a region that was removed. No file can declare this state: saving it is a
/// conflict, not an internal error.
#[test]
fn state_no_file_can_declare_is_a_conflict() {
    let mut bench = bench();
    let mut removed = bench.call(Request::RemoveRegion { name: "common".into(), force: true });
    bench.acknowledge();
    answer(&mut removed).unwrap();
    let refused = answer(&mut bench.call(Request::ConfigText("/new.toml".into()))).unwrap_err();
    assert_eq!(refused.error, ErrorKind::Conflict, "{refused}");
    assert!(refused.message.contains("listener.regions: \"common\" does not exist"), "{refused}");
}
