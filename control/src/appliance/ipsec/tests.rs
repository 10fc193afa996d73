//! SAs from files: sequence numbers across restarts, refused key files, and the start with kernel policies.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use config::Document;

use super::*;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        bench.key("out.key", &"11".repeat(20), 0o600);
        bench.key("in.key", &"22".repeat(20), 0o600);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn key(&self, name: &str, text: &str, mode: u32) {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn config(&self) -> Config {
        let dir = self.dir.path().display();
        let text = format!(
            r#"
            [workers]
            count = 2
            [[port]]
            name = "p"
            kind = "ring"
            link = "l"
            [[interface]]
            name = "i"
            port = "p"
            addresses = ["192.0.2.1/24"]
            [ipsec]
            laboratory = true
            [[ipsec.policy]]
            name = "icmp"
            remote = "192.0.2.0/24"
            protocol = "icmp"
            action = "bypass"
            [[ipsec.policy]]
            name = "peers"
            remote = "192.0.2.0/24"
            action = "protect"
            [[ipsec.sa]]
            name = "to-b"
            policy = "peers"
            direction = "out"
            spi = 0x1001
            algorithm = "aes128gcm16"
            key_file = "{dir}/out.key"
            sequence_file = "{dir}/out.sequence"
            [[ipsec.sa]]
            name = "from-b"
            policy = "peers"
            direction = "in"
            spi = 0x1002
            algorithm = "aes128gcm16"
            key_file = "{dir}/in.key"
            "#
        );
        Document::parse("test.toml".as_ref(), &text).unwrap().config
    }

    fn refusal(&self) -> String {
        start(&self.config()).unwrap_err()
    }
}

#[test]
fn sequence_numbers_continue_after_restart_without_reuse() {
    let bench = Bench::new();
    let mut next = 1;
    for _ in 0..3 {
        let (config, mut ipsec) = start(&bench.config()).unwrap();
        let config = config.unwrap();
        let SaDirectionConfig::Out { reserve: Some((first, numbers)), .. } =
            config.sas[0].direction_config
        else {
            panic!()
        };
        assert_eq!(first, next);
        assert_eq!(config.sas[1].direction(), SaDirection::In);
        let last = ipsec.reserve(config.sas[0].id).unwrap().unwrap();
        assert_eq!(last, first + 2 * numbers - 1);
        // The next start continues after all reserved numbers, used or not.
        next = last + 1;
        assert!(ipsec.reserve(config.sas[1].id).is_none());
        assert_eq!(ipsec.section(config.sas[0].id).unwrap().name, "to-b");
    }
}

#[test]
fn sequence_file_is_locked_to_one_process_and_one_sa() {
    let bench = Bench::new();
    let (_, running) = start(&bench.config()).unwrap();
    assert!(bench.refusal().contains("in use by another"), "{}", bench.refusal());
    drop(running);
    start(&bench.config()).unwrap();
    std::fs::write(bench.path("out.sequence"), "00002001 0000000001000000      \n").unwrap();
    assert!(bench.refusal().contains("SPI 0x2001"), "{}", bench.refusal());
    std::fs::write(bench.path("out.sequence"), "nonsense").unwrap();
    assert!(!bench.refusal().is_empty());
    std::fs::write(bench.path("out.sequence"), "00001001 ffffffffffffffff      \n").unwrap();
    assert!(!bench.refusal().is_empty());
    std::fs::remove_file(bench.path("out.sequence")).unwrap();
    start(&bench.config()).unwrap();
}

#[test]
fn readable_or_malformed_key_file_is_refused_without_quoting_it() {
    let bench = Bench::new();
    for mode in [0o640, 0o604, 0o620] {
        bench.key("out.key", &"11".repeat(20), mode);
        assert!(bench.refusal().contains("chmod 600"), "{}", bench.refusal());
    }
    for (text, why) in [
        ("ab".repeat(16), "has 16 bytes, but needs 20"),
        ("ab".repeat(19) + "xy", "not in hexadecimal"),
        ("ab".repeat(19) + "é", "not in hexadecimal"),
        (String::new(), "has no key of encryption"),
        (format!("{0}\n{0}", "ab".repeat(20)), "more keys"),
        ("ab".repeat(2000), "more than 1024 bytes"),
    ] {
        bench.key("out.key", &text, 0o600);
        let refusal = bench.refusal();
        assert!(refusal.contains(why), "{refusal}");
        assert!(!refusal.contains("abab"), "{refusal}");
    }
    for (bytes, why) in [
        (
            b"\xff\xfea\0b\0".to_vec(),
            "is UTF-16, little-endian, but must be UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW",
        ),
        (b"abab\xfcab".to_vec(), "is not UTF-8 in line 1"),
        (b"abab\0".to_vec(), "has a NUL byte in line 1: it is no text"),
    ] {
        std::fs::write(bench.path("out.key"), bytes).unwrap();
        let refusal = bench.refusal();
        assert!(refusal.contains(why) && !refusal.contains("abab"), "{refusal}");
    }
    bench.key("out.key", &("\u{feff}".to_owned() + &"ab".repeat(20) + "\r\n"), 0o600);
    start(&bench.config()).unwrap();
    bench.key("out.key", &("0x".to_owned() + &"AB".repeat(20) + "\n"), 0o600);
    start(&bench.config()).unwrap();
    // One key for both directions would use each nonce twice.
    bench.key("in.key", &"ab".repeat(20), 0o600);
    assert!(bench.refusal().contains("has the key of to-b"), "{}", bench.refusal());
    std::fs::remove_file(bench.path("in.key")).unwrap();
    assert!(bench.refusal().contains("cannot be read"), "{}", bench.refusal());
}

/// Reads the XFRM state of the host that runs the test, which may have any policies.
#[test]
fn ipsec_is_ready_only_after_kernels_first_answer() {
    let text = r#"
        [[port]]
        name = "p"
        kind = "ring"
        link = "l"
        [[interface]]
        name = "i"
        port = "p"
        addresses = ["192.0.2.1/24"]
        [ipsec]
        keys = "kernel"
    "#;
    let config = Document::parse("test.toml".as_ref(), text).unwrap().config;
    match start(&config) {
        Ok((given, mut ipsec)) => {
            let given = given.unwrap();
            // Until the kernel's policies arrive, the workers drop all packets except IKE, neighbour discovery and
            // multicast listener discovery.
            assert_eq!(given.policies, Spd::from_checked(Vec::new(), Unmatched::DROP));
            assert!(!ipsec.is_ready());
            let (events, _) = ipsec.kernel_mut().unwrap().poll_changes();
            assert!(events.iter().any(|event| matches!(event, xfrm::Event::Policies { .. })));
            assert!(ipsec.is_ready());
        }
        // Without privileges, or without XFRM, the start fails with the reason.
        Err(error) => assert!(error.contains("[ipsec] keys = \"kernel\""), "{error}"),
    }
}
