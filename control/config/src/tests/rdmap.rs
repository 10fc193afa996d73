//! Tests of `ulp = "rdmap"` and the keys of RDMAP.

use tcp_lite::mpa::Peer;

use super::super::*;
use super::{parse, with};

const SCRATCH: &str =
    "\n[[region]]\nname = \"scratch\"\nsize = \"1 MiB\"\naccess = \"rw\"\nshared = true\n";

fn listener(keys: &str, rest: &str) -> Result<ListenerSection, String> {
    let text = format!(
        "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\nulp = \"rdmap\"\n{keys}\n{rest}"
    );
    Ok(parse(&with(&text))?.config.listeners.remove(0))
}

#[test]
fn defaults_suit_peers_without_markers() {
    let found = listener("", "").unwrap();
    let section = RdmapSection {
        service: ServiceKind::Region,
        ird: 32,
        ord: 32,
        peer: Peer::Standard,
        message_size: 4096,
    };
    assert_eq!(found.ulp, Ulp::Rdmap(section));
    let mpa = found.mpa;
    assert_eq!((mpa.revision_0, mpa.revision_1, mpa.revision_2), (false, true, true));
    assert!(!mpa.markers && mpa.crc && mpa.private_data_limit == 512);
    assert_eq!(found.queues, [], "no Send is expected");
    let siw = listener("peer = \"siw\"", "").unwrap();
    assert_eq!(siw.mpa.private_data_limit, 252);
}

#[test]
fn every_service_has_its_default_queues() {
    let queue = |buffers, buffer_size, deliver_to| {
        vec![QueueSection { qn: 0, buffers, buffer_size, deliver_to }]
    };
    for (word, regions, queues) in [
        ("region", "", vec![]),
        ("echo", "", queue(64, 65536, Delivery::Echo)),
        ("sink", "", queue(64, 65536, Delivery::Discard)),
        ("rping", "regions = [\"scratch\"]", queue(8, 64, Delivery::Discard)),
        ("perftest", "regions = [\"scratch\"]", queue(512, 65536, Delivery::Discard)),
    ] {
        let keys = format!("service = \"{word}\"\n{regions}");
        let found = listener(&keys, SCRATCH).unwrap();
        let rdmap = found.ulp.rdmap().unwrap();
        assert_eq!((rdmap.service.as_str(), &found.queues), (word, &queues));
    }
    let own = "service = \"echo\"\n[[listener.queue]]\nqn = 0\nbuffers = 3";
    assert_eq!(listener(own, "").unwrap().queues, queue(3, 65536, Delivery::Echo));
}

#[test]
fn invalid_rdmap_sections_are_refused() {
    let cases = [
        (
            "revisions = [3]",
            "",
            "listener.revisions: 3 is no revision of MPA: write some of 0, 1 and 2",
        ),
        (
            "service = \"fish\"",
            "",
            "listener.service: is \"fish\", but must be one of \"region\", \"echo\", \"sink\", \"rping\", \
             \"perftest\"",
        ),
        ("ird = 1025", "", "listener.ird: is 1025, but must be from 0 to 1024"),
        (
            "message_size = 8",
            "",
            "listener.message_size: has no meaning for service \"region\": remove it",
        ),
        (
            "peer = \"siw\"\nmarkers = true",
            "",
            "listener.markers: is true, but peer \"siw\" does not support markers: write false",
        ),
        (
            "peer = \"cxgb4\"\nprivate_data_limit = 253",
            "",
            "listener.private_data_limit: is 253, but peer \"cxgb4\" accepts at most 252: lower it",
        ),
        (
            "[[listener.queue]]\nqn = 1\ndeliver_to = \"discard\"",
            "",
            "listener.queue: has another number than 0: Sends have no other queue with ulp \"rdmap\"",
        ),
        (
            "service = \"sink\"\n[[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"",
            "",
            "listener.queue.deliver_to: has no meaning for this service: remove it",
        ),
        (
            "service = \"rping\"",
            "",
            "listener.regions: must name one region: the streams of service \"rping\" have a slot of it \
             each",
        ),
        (
            "service = \"rping\"\nregions = [\"scratch\"]\nlimits = { streams = 512 }",
            SCRATCH,
            "listener.regions: \"scratch\" has 1 MiB for 512 streams: give each 4 KiB or more, or lower \
             limits.streams",
        ),
    ];
    for (keys, rest, expected) in cases {
        let errors = listener(keys, rest).unwrap_err();
        let (_, sentence) = errors.split_once(": ").unwrap();
        assert_eq!(sentence, expected, "for {keys}");
    }
    let two =
        "\n[[listener]]\nname = \"m\"\ninterface = \"lan\"\nport = 2\nregions = [\"scratch\"]\n";
    let keys = "service = \"rping\"\nregions = [\"scratch\"]";
    let errors = listener(keys, &format!("{two}{SCRATCH}")).unwrap_err();
    assert!(errors.contains("\"scratch\" is named by listener \"m\" too"), "{errors}");
}

#[test]
fn file_region_that_service_never_saves_is_refused() {
    let file = |access: &str| {
        format!(
            "\n[[region]]\nname = \"scratch\"\nsize = \"1 MiB\"\naccess = \"{access}\"\nshared = true\npath = \"/f\"\n"
        )
    };
    for (service, access, refused) in [
        ("region", "rw", false),
        ("echo", "rw", true),
        ("echo", "r", false),
        ("sink", "w", true),
        ("rping", "r", true),
        ("perftest", "rw", true),
    ] {
        let keys = format!("service = \"{service}\"\nregions = [\"scratch\"]");
        let found = listener(&keys, &file(access));
        assert_eq!(found.is_err(), refused, "{service} {access}");
        if let Err(errors) = found {
            let expected = format!(
                "listener.regions: \"scratch\" has the file /f, which never gets what peers of service \"{service}\" \
                 write: use service \"region\", or a region without a file"
            );
            assert!(errors.ends_with(&expected), "{errors}");
        }
    }
    // A listener with bare DDP reports all tagged messages, so the file gets them.
    let text =
        "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\nregions = [\"scratch\"]\n";
    assert!(parse(&with(&format!("{text}{}", file("w")))).is_ok());
}

#[test]
fn bare_ddp_refuses_rdmap_keys() {
    let text =
        "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\nservice = \"echo\"\nird = 1\n";
    let errors = parse(&with(text)).unwrap_err();
    let expected = "t.toml:5: listener.service: has no meaning for ulp \"ddp\": remove it\n\
                    t.toml:6: listener.ird: has no meaning for ulp \"ddp\": remove it";
    assert_eq!(errors, expected);
}

#[test]
fn access_rights_are_word_or_list() {
    let region = |keys: &str| {
        let text = format!("[[region]]\nname = \"r\"\nsize = 8\n{keys}\n");
        parse(&with(&text)).map(|document| document.config.regions[0].clone())
    };
    for (keys, word) in [
        ("access = \"rwa\"", "rwa"),
        ("access = [\"remote-read\", \"remote-write\", \"atomic\"]", "rwa"),
        ("access = [\"remote-write\"]", "w"),
        ("access = []", "-"),
        ("access = \"none\"", "-"),
    ] {
        assert_eq!(region(keys).unwrap().access_word(), word, "{keys}");
    }
    for (keys, expected) in [
        (
            "access = [\"atomic\"]",
            "region.access: has \"atomic\", which needs \"remote-read\" and \"remote-write\" too",
        ),
        (
            "access = [\"read\"]",
            "region.access: is \"read\", but must be one of \"remote-read\", \"remote-write\", \"atomic\"",
        ),
        (
            "access = \"rwa\"\nbase_to = 4",
            "region.base_to: must be a multiple of 8 where atomics are allowed",
        ),
        (
            "access = \"w\"\nclear_between_peers = true",
            "region.clear_between_peers: needs a region that is not `shared` and open to remote reads and \
             writes: remove it",
        ),
    ] {
        let errors = region(keys).unwrap_err();
        assert_eq!(errors.split_once(": ").unwrap().1, expected);
    }
    assert!(region("access = \"rw\"").unwrap().clear_between_peers);
    assert!(!region("access = \"rw\"\nclear_between_peers = false").unwrap().clear_between_peers);
    assert!(!region("access = \"rw\"\nshared = true").unwrap().clear_between_peers);
    assert!(!region("access = \"w\"").unwrap().clear_between_peers);
}
