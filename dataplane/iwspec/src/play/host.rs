//! Description of the tested host (ports, settings, known differences), and selection of the dialogues that apply to
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use dialogue::script::{Action, ChunkLine, Direction, Script, StepTime};
use dialogue::segment::Flags;
use serde::Deserialize;

use super::is_sctp;

/// Contents of a description file (TOML) of a tested host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Services of the host, in order of preference.
    #[serde(default, rename = "service")]
    pub services: Vec<Service>,
    /// Reason why the host may deviate from the script, by dialogue (`directory/name`). Such dialogues are still
    /// played.
    #[serde(default)]
    pub differs: BTreeMap<String, String>,
    /// Reason why a dialogue is not played, by dialogue (`directory/name`).
    #[serde(default)]
    pub skip: BTreeMap<String, String>,
}

/// A port of the host, and its service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// TCP or SCTP port of the service.
    pub port: u16,
    /// Protocol that the service expects.
    pub takes: ServiceProtocol,
    /// Settings of the service, with the keys of the scripts' `set` lines. The key `ip` is the address family, `4` or
    /// `6`.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// Protocol that a service expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceProtocol {
    /// Reads and ignores all bytes, writes none, and keeps the connection open.
    Bytes,
    /// Accepts as an MPA responder.
    Mpa,
    /// Accepts SCTP associations and sessions of RFC 5043.
    Sctp,
    /// The port is closed.
    Nothing,
}

impl std::str::FromStr for ServiceProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bytes" => Ok(ServiceProtocol::Bytes),
            "mpa" => Ok(ServiceProtocol::Mpa),
            "sctp" => Ok(ServiceProtocol::Sctp),
            "nothing" => Ok(ServiceProtocol::Nothing),
            _ => Err("write bytes, mpa, sctp or nothing".into()),
        }
    }
}

impl Host {
    /// Returns the service for `script`, whose name in the description is `name`.
    ///
    /// # Errors
    /// The reason why the script cannot be played against this host, as one clause.
    pub fn service_for(&self, name: &str, script: &Script) -> Result<&Service, String> {
        if let Some(reason) = self.skip.get(name) {
            return Err(reason.clone());
        }
        check_playable(script)?;
        let mut reason = String::from("no service of the host is known");
        for service in &self.services {
            match service.check(script) {
                Ok(()) => return Ok(service),
                // Prefers the reason "wrong setting" to "wrong protocol": a service with a wrong setting is the better
                // candidate. The text of `Setting` mismatches, and of no other, begins with "needs setting".
                Err(ServiceMismatch::Setting(what)) => reason = what,
                Err(ServiceMismatch::Kind(what)) if !reason.starts_with("needs setting") => {
                    reason = what
                }
                Err(ServiceMismatch::Kind(_)) => {}
            }
        }
        Err(reason)
    }
}

/// Returns the duration of `script` if every expected packet arrives in time.
pub fn duration(script: &Script) -> Duration {
    script.steps.iter().fold(Duration::ZERO, |time, step| match (step.time, &step.action) {
        (_, Action::Do(_) | Action::Event(_) | Action::Check(_)) | (StepTime::Any, _) => time,
        (StepTime::Absolute(at), _) => at,
        (StepTime::Relative(wait), _) => time + wait,
    })
}

/// Reason why a service does not suit a script.
enum ServiceMismatch {
    Kind(String),
    Setting(String),
}

impl Service {
    fn check(&self, script: &Script) -> Result<(), ServiceMismatch> {
        let wanted = suitable_protocols(script);
        if !wanted.contains(&self.takes) {
            let what = match wanted[0] {
                ServiceProtocol::Bytes => "needs a service that takes any bytes",
                ServiceProtocol::Mpa => "needs an MPA responder",
                ServiceProtocol::Sctp => "needs SCTP",
                ServiceProtocol::Nothing => "needs a port without a listener",
            };
            return Err(ServiceMismatch::Kind(what.into()));
        }
        for (key, value) in required_settings(script) {
            if self.settings.get(key) != Some(&value) {
                return Err(ServiceMismatch::Setting(format!("needs setting {key} {value}")));
            }
        }
        Ok(())
    }
}

/// Checks that the script needs no local action of the host and expects something on the wire.
fn check_playable(script: &Script) -> Result<(), String> {
    if script.settings.iter().any(|s| s.key == "role" && s.value == "active") {
        return Err("needs local action connect".into());
    }
    for step in &script.steps {
        if let Action::Do(args) = &step.action {
            let verb = args.positional(0).unwrap_or("?");
            // A responder accepts without a local action, with its own private data.
            if verb != "accept" || args.has("pd") {
                return Err(format!("needs local action {args}"));
            }
        }
    }
    // The script's absolute acknowledgement numbers require a known initial sequence number, but the host chooses it.
    let absolute = |action: &Action| match action {
        Action::Send(line) => line.args.get("ack").is_some_and(|ack| ack.starts_with("abs:")),
        _ => false,
    };
    if script.steps.iter().any(|step| absolute(&step.action)) {
        return Err("needs setting iss".into());
    }
    if initiates_session(script)
        && !script.steps.iter().any(|step| matches!(step.action, Action::Do(_)))
    {
        // The host would accept the session, at a time that the script does not define.
        return Err("needs a session that is not accepted".into());
    }
    let sees = |action: &Action| {
        matches!(action, Action::Expect(_) | Action::ExpectPacket(_) | Action::Quiet)
    };
    match script.steps.iter().any(|step| sees(&step.action)) {
        true => Ok(()),
        false => Err("shows nothing on the wire".into()),
    }
}

/// Returns true if the script initiates a session of RFC 5043.
fn initiates_session(script: &Script) -> bool {
    let initiate = |chunk: &ChunkLine| chunk.args.positional(0) == Some("initiate");
    script.steps.iter().any(|step| match &step.action {
        Action::SendPacket(line) => line.chunks.iter().any(initiate),
        _ => false,
    })
}

/// Returns the protocols of services that suit the script, the best one first. A script without a SYN of the tester
/// needs a closed port: its segments belong to no connection, and only a closed port answers all of them in the same
/// way, with resets.
fn suitable_protocols(script: &Script) -> &'static [ServiceProtocol] {
    let opens = |action: &Action| match action {
        Action::Send(line) => line.flags.has(Flags::SYN) && !line.flags.has(Flags::ACK),
        _ => false,
    };
    if is_sctp(script) {
        &[ServiceProtocol::Sctp]
    } else if !script.steps.iter().any(|step| opens(&step.action)) {
        &[ServiceProtocol::Nothing]
    } else if script.settings.iter().any(|s| s.key == "stack" && s.value == "mpa") {
        &[ServiceProtocol::Mpa]
    } else if script.pieces.iter().any(|piece| piece.direction == Direction::In) {
        &[ServiceProtocol::Bytes]
    } else {
        &[ServiceProtocol::Bytes, ServiceProtocol::Mpa]
    }
}

/// Returns the settings that the script requires of the service.
fn required_settings(script: &Script) -> Vec<(&str, String)> {
    let script_only_keys = ["stack", "role", "peer-iss", "peer-tag", "peer-tsn"];
    let mut settings: Vec<(&str, String)> = script
        .settings
        .iter()
        .filter(|s| !script_only_keys.contains(&s.key.as_str()) && !s.key.contains('.'))
        .map(|s| (s.key.as_str(), s.value.clone()))
        .collect();
    // The MSS values in scripts are for IPv4. Over IPv6 the host's MSS is 20 bytes smaller, so a script that expects an
    // MSS requires IPv4 unless it sets `ip`.
    let says_mss = |action: &Action| match action {
        Action::Expect(line) => line.args.has("mss"),
        _ => false,
    };
    if settings.iter().all(|(k, _)| *k != "ip") && script.steps.iter().any(|s| says_mss(&s.action))
    {
        settings.push(("ip", "4".into()));
    }
    if suitable_protocols(script) == [ServiceProtocol::Mpa] {
        for key in ["markers", "crc"] {
            if settings.iter().all(|(k, _)| *k != key) {
                settings.push((key, "on".into()));
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        toml::from_str(
            "[[service]]\nport = 1\ntakes = \"bytes\"\n\
             [[service]]\nport = 2\ntakes = \"mpa\"\nsettings = { markers = \"on\", crc = \"on\" }\n\
             [[service]]\nport = 3\ntakes = \"mpa\"\nsettings = { markers = \"off\", crc = \"on\" }\n\
             [[service]]\nport = 4\ntakes = \"nothing\"\n\
             [[service]]\nport = 5\ntakes = \"sctp\"\n\
             [skip]\n\"a/b\" = \"a reason\"\n",
        )
        .expect("good description")
    }

    fn service(name: &str, text: &str) -> Result<u16, String> {
        let script = Script::parse(&format!("title x\n{text}")).expect("good script");
        host().service_for(name, &script).map(|service| service.port)
    }

    #[test]
    fn script_is_played_on_the_first_suitable_service() {
        let opening = "0 < S\n. > SA\n";
        assert_eq!(service("x/y", &format!("set stack tcp\n{opening}")), Ok(1));
        assert_eq!(service("x/y", &format!("set stack mpa\n{opening}")), Ok(2));
        assert_eq!(service("x/y", &format!("set stack mpa\nset markers off\n{opening}")), Ok(3));
        assert_eq!(service("x/y", "set stack tcp\n0 < A seq=1 ack=1\n. > R seq=1\n"), Ok(4));
        assert_eq!(service("x/y", &format!("set stack mpa\n{opening}. do accept\n")), Ok(2));
        assert_eq!(service("x/y", "set stack sctp\n0 < INIT\n. > INIT_ACK\n"), Ok(5));
    }

    #[test]
    fn unplayable_script_reports_the_reason() {
        for (name, text, reason) in [
            (
                "x/y",
                "set stack tcp\nset role active\n0 do connect\n. > S\n",
                "needs local action connect",
            ),
            ("x/y", "set stack tcp\n0 < S\n. > SA\n. do write e\n", "needs local action write e"),
            (
                "x/y",
                "set stack mpa\n0 < S\n. > SA\n. do accept pd=text:x\n",
                "needs local action accept pd=text:x",
            ),
            ("x/y", "set stack mpa\nset crc off\n0 < S\n. > SA\n", "needs setting crc off"),
            ("x/y", "set stack tcp\nset ecn on\n0 < S\n. > SA\n", "needs setting ecn on"),
            ("x/y", "set stack tcp\n0 < S\n. event Connected\n", "shows nothing on the wire"),
            ("x/y", "set stack tcp\n0 < S\n. > SA mss=1460\n", "needs setting ip 4"),
            ("a/b", "set stack tcp\n0 < S\n. > SA\n", "a reason"),
            (
                "x/y",
                "set stack sctp\n0 < DATA tsn=0 n=0 initiate\n. > SACK cum=0\n",
                "needs a session that is not accepted",
            ),
            (
                "x/y",
                "set stack sctp\nset streams 9\n0 < INIT\n. quiet\n",
                "needs setting streams 9",
            ),
        ] {
            assert_eq!(service(name, text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn script_duration_is_the_sum_of_its_times() {
        let script =
            Script::parse("title x\n0 < S\n. > SA\n1 < A\n+0.5 quiet\n* > FA\n99 check a=b\n");
        assert_eq!(duration(&script.expect("good script")), Duration::from_millis(1500));
    }

    #[test]
    fn unknown_description_keys_are_refused() {
        assert!(
            toml::from_str::<Host>("[[service]]\nport = 1\ntakes = \"mpa\"\nmarkers = true\n")
                .is_err()
        );
        assert!(toml::from_str::<Host>("[[service]]\nport = 1\ntakes = \"anything\"\n").is_err());
    }
}
