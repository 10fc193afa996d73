//! `ddpd check --capabilities`: the Linux capabilities that each configured port and the process need, and their union.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use config::Config;
use config::privilege::{
    Capabilities, Capability, Need, locked_memory_limit, port_needs, process_needs,
};

/// Capabilities that one port or the process needs.
#[derive(Debug, Serialize)]
struct Entry {
    appliance: String,
    /// Name of the port; `None` for the process.
    port: Option<String>,
    kind: Option<&'static str>,
    needs: Vec<Line>,
}

/// One needed capability, as printed.
#[derive(Debug, Serialize)]
struct Line {
    capability: &'static str,
    /// Another capability that is sufficient instead of `capability`.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'static str>,
    required: bool,
    why: &'static str,
}

/// Capabilities that the given configurations need: per port and process, and in total.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    entries: Vec<Entry>,
    required: Vec<&'static str>,
    optional: Vec<&'static str>,
    /// Required and optional capabilities, ordered by capability number.
    all: Vec<&'static str>,
}

impl Line {
    fn from_need(need: &Need) -> Line {
        Line {
            capability: need.capability.name(),
            instead: need.alternative.map(Capability::name),
            required: need.required,
            why: need.purpose,
        }
    }
}

impl Report {
    /// Determines the needed capabilities on the machine whose `/sys` and `/proc` are below `root`.
    pub(crate) fn for_configs<'c>(
        root: &Path,
        configs: impl IntoIterator<Item = &'c Config>,
    ) -> Report {
        let limits = std::fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
        // If the limit of locked memory is unknown, no limit is assumed, so that no unneeded capability is listed.
        let limit = locked_memory_limit(&limits).unwrap_or(None);
        let (mut required, mut optional) = (Capabilities::default(), Capabilities::default());
        let mut count = |needs: &[Need]| {
            for need in needs {
                let set = if need.required { &mut required } else { &mut optional };
                *set = set.with(need.capability);
            }
            needs.iter().map(Line::from_need).collect()
        };
        let mut entries = Vec::new();
        for config in configs {
            for port in &config.ports {
                let needs = count(port_needs(root, &port.kind));
                let (port, kind) = (Some(port.name.clone()), Some(port.kind.name()));
                entries.push(Entry { appliance: config.name.clone(), port, kind, needs });
            }
            let needs: Vec<Line> = count(&process_needs(config, limit));
            if !needs.is_empty() {
                let appliance = config.name.clone();
                entries.push(Entry { appliance, port: None, kind: None, needs });
            }
        }
        let all = Capabilities(optional.0 | required.0);
        let optional = Capabilities(optional.0 & !required.0);
        let names = |set: Capabilities| set.iter().map(Capability::name).collect();
        Report { entries, required: names(required), optional: names(optional), all: names(all) }
    }

    pub(crate) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    pub(crate) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for entry in &self.entries {
            match (&entry.port, entry.kind) {
                (Some(port), Some(kind)) => {
                    write!(out, "{}: port {port} ({kind}):", entry.appliance)?
                }
                _ => write!(out, "{}: the process:", entry.appliance)?,
            }
            writeln!(out, "{}", if entry.needs.is_empty() { " none" } else { "" })?;
            for Line { capability, instead, required, why } in &entry.needs {
                let or = instead.map(|other| format!(" (or {other})")).unwrap_or_default();
                let word = if *required { "needed" } else { "optional" };
                writeln!(out, "  {capability}{or}, {word}: {why}")?;
            }
        }
        let list = |names: &[&str]| match names {
            [] => "none".to_owned(),
            names => names.join(" "),
        };
        writeln!(out, "needed: {}", list(&self.required))?;
        writeln!(out, "optional: {}", list(&self.optional))?;
        // The lines have no comments: systemd does not support comments after a value.
        let both = self.all.join(" ");
        for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
            writeln!(out, "{key}={both}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Document;

    fn report(ports: &[(&str, &str)], more: &str) -> (tempfile::TempDir, Report) {
        let root = tempfile::tempdir().unwrap();
        let tables = ports.iter().enumerate().map(|(at, (name, port))| {
            format!(
                "[[port]]\nname = \"{name}\"\n{port}\n[[interface]]\nname = \"i{at}\"\nport = \"{name}\"\n\
                 addresses = [\"192.0.{at}.1/24\"]\n"
            )
        });
        let text = tables.collect::<String>() + more;
        let document = Document::parse(Path::new("box.toml"), &text).unwrap();
        let report = Report::for_configs(root.path(), [&document.config]);
        (root, report)
    }

    #[test]
    fn capabilities_are_listed_per_port_and_in_total() {
        let ports = [
            ("wan", "kind = \"af_packet\"\ndevice = \"eth1\""),
            ("vm", "kind = \"tap\"\ndevice = \"t0\""),
            ("in", "kind = \"ring\"\nlink = \"l\""),
        ];
        let (_, report) = report(&ports, "");
        let mut text = Vec::new();
        report.text(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "box: port wan (af_packet):\n  CAP_NET_RAW, needed: the packet socket\n  CAP_NET_ADMIN, optional: to \
             make the interface promiscuous\nbox: port vm (tap):\n  CAP_NET_ADMIN, needed: to make the interface\n\
             box: port in (ring): none\nneeded: CAP_NET_ADMIN CAP_NET_RAW\noptional: none\nAmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW\nCapabilityBoundingSet=CAP_NET_ADMIN \
             CAP_NET_RAW\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["required"], serde_json::json!(["CAP_NET_ADMIN", "CAP_NET_RAW"]));
        assert_eq!(json["entries"][0]["needs"][1]["required"], false);
    }

    #[test]
    fn privileged_metrics_port_is_a_need_of_the_process() {
        let listen = "[management.listen]\naddress = \"127.0.0.1:80\"\n";
        let (_, report) = report(&[("in", "kind = \"ring\"\nlink = \"l\"")], listen);
        assert_eq!(report.required, ["CAP_NET_BIND_SERVICE"]);
        let mut text = Vec::new();
        report.text(&mut text).unwrap();
        assert!(
            String::from_utf8(text)
                .unwrap()
                .contains("box: the process:\n  CAP_NET_BIND_SERVICE, needed")
        );
    }
}
