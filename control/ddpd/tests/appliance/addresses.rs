//! Transfer to a peer with several addresses. Only the last address accepts the connection.

use api::JobState;
use serde_json::json;

use super::REGION;
use super::common::{Ddpd, SINK, Setup};

#[test]
fn put_uses_the_answering_address_over_both_transports() {
    let over_sctp = REGION.replace("port = 7471", "port = 7471\ntransport = \"sctp\"");
    for (transport, sink) in [("tcp", REGION), ("sctp", &over_sctp)] {
        let ddpd = Ddpd::start(&Setup { sink, ..Setup::default() });
        let (file, bytes) = ddpd.file("file", 10_000);
        // In order: an address without a route, one without a host, one with a closed port, and the listener's.
        let job = ddpd.put(json!({
            "file": file,
            "via": { "connect": {
                "remote": "[fd09::1]:7471",
                "alternatives": ["10.9.0.77:7471", "10.9.0.1:9", SINK],
                "transport": transport,
            } },
            "target": { "region": { "name": "inbox" } },
        }));
        assert_eq!((job.state, job.error), (JobState::Done, None), "{transport}");
        assert_eq!(job.remote, SINK);
        let (status, dir) = ddpd.end();
        assert!(status.success());
        assert_eq!(std::fs::read(dir.path().join("inbox.bin")).unwrap()[..10_000], bytes);
    }
}
