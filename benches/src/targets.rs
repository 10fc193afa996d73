//! The promises, and what a run says of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::row::Row;

/// One promise beside what was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// What.
    pub name: String,
    /// The promise, in `unit`.
    pub target: f64,
    /// What was measured; `None` if the run did not.
    pub value: Option<f64>,
    /// Of both.
    pub unit: String,
    /// How much of the promise was kept: 1 and more is all of it, for upper bounds too.
    pub ratio: Option<f64>,
    /// Whether it was kept.
    pub met: bool,
    /// The promise is an upper bound.
    pub at_most: bool,
    /// What stands against an absolute number here.
    pub noisy: bool,
}

/// The rows of a run, by name.
pub struct Rows<'a>(BTreeMap<&'a str, &'a Row>);

impl<'a> Rows<'a> {
    /// By name.
    pub fn new(rows: &'a [Row]) -> Self {
        Rows(rows.iter().map(|row| (row.name.as_str(), row)).collect())
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.value
    }

    fn extra(&self, name: &str, what: &str) -> Option<f64> {
        self.0.get(name)?.extra.get(what).copied()
    }

    fn quotient(&self, of: &str, by: &str) -> Option<f64> {
        Some(self.value(of)? / self.value(by)?)
    }

    fn is_noisy(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|row| row.noisy)
    }
}

/// All promises, in their order.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let rows = Rows::new(rows);
    let mut list = List { rows: &rows, targets: Vec::new() };
    list.bulk();
    list.small();
    list.ports();
    list.peers();
    list.state();
    list.targets
}

struct List<'a> {
    rows: &'a Rows<'a>,
    targets: Vec<Target>,
}

impl List<'_> {
    /// A promise, and the rows that it is made of.
    fn push(&mut self, name: &str, target: f64, unit: &str, value: Option<f64>, of: &[&str]) {
        self.add(name, target, unit, value, of, false);
    }

    fn push_most(&mut self, name: &str, target: f64, unit: &str, value: Option<f64>, of: &[&str]) {
        self.add(name, target, unit, value, of, true);
    }

    fn add(
        &mut self,
        name: &str,
        target: f64,
        unit: &str,
        value: Option<f64>,
        of: &[&str],
        at_most: bool,
    ) {
        let ratio = value.map(|value| match at_most {
            true if value == 0.0 => f64::MAX,
            true => target / value,
            false => value / target,
        });
        self.targets.push(Target {
            name: name.to_owned(),
            target,
            value,
            unit: unit.to_owned(),
            ratio,
            met: value.is_some_and(|value| if at_most { value <= target } else { value >= target }),
            at_most,
            noisy: of.iter().any(|row| self.rows.is_noisy(row)),
        });
    }

    fn bulk(&mut self) {
        for (mtu, gbit, share) in [(1500, 40.0, 0.45), (9000, 90.0, 0.6)] {
            let write = format!("write-{mtu}");
            let name = format!("writes of 1 MiB, MTU {mtu}");
            self.push(&name, gbit, "Gbit/s", self.rows.value(&write), &[&write]);
            let trusted = format!("write-{mtu}-trusted");
            let value = self.rows.value(&trusted);
            self.push(&format!("{name}, checksum trusted"), gbit, "Gbit/s", value, &[&trusted]);
            let limit = format!("handoff-{mtu}");
            let of = self.rows.quotient(&write, &limit);
            let rows = [&*write, &limit];
            self.push(&format!("{name}, of the hand-off"), share, "of it", of, &rows);
        }
        for mtu in [1500, 9000] {
            let (on, off) = (format!("write-{mtu}-markers"), format!("write-{mtu}"));
            let name = format!("markers on, of off, MTU {mtu}");
            self.push(&name, 0.85, "of it", self.rows.quotient(&on, &off), &[&on, &off]);
        }
    }

    fn small(&mut self) {
        let rate = self.rows.extra("messages-64", "messages_per_s").map(|rate| rate * 1e-6);
        self.push("writes of 64 octets", 12.0, "million/s", rate, &["messages-64"]);
        for (quantile, most) in [("p50", 2.0), ("p99", 10.0)] {
            let value = self.rows.extra("echo", &format!("{quantile}_us"));
            self.push_most(&format!("echo of 64 octets, {quantile}"), most, "us", value, &["echo"]);
        }
    }

    fn ports(&mut self) {
        for kind in ["af_packet", "af_xdp"] {
            let row = format!("{kind}-write-1500");
            let frames = self.rows.extra(&row, "frames_per_s");
            let limit = format!("testpmd-{kind}");
            let most = self.rows.value(&limit);
            let of = frames.zip(most).map(|(frames, most)| frames / most);
            let name = format!("{kind} on veth, of testpmd's frames");
            self.push(&name, 0.8, "of it", of, &[&row, &limit]);
        }
    }

    fn peers(&mut self) {
        for (peer, name) in [("ucx-put-bw", "UCX put"), ("sockets-crc-copy", "kernel sockets")] {
            let times = self.rows.quotient("write-9000", peer);
            self.push(&format!("bandwidth, of {name}"), 3.0, "times", times, &["write-9000", peer]);
        }
        for (peer, name) in [("ucx-put-lat", "UCX put"), ("sockets-latency", "kernel sockets")] {
            let of = self.rows.quotient("echo", peer);
            self.push_most(&format!("latency, of {name}"), 0.2, "of it", of, &["echo", peer]);
        }
    }

    fn state(&mut self) {
        let rows = self.rows;
        // 10 000 streams say it best; a quick run has 100.
        let many = ["memory-10000", "memory-100"].into_iter().find(|n| rows.value(n).is_some());
        let row = many.unwrap_or("memory-10000");
        self.push_most("an idle stream's state", 1024.0, "octets", rows.value(row), &[row]);
        let all = rows.extra("memory-10000", "idle_both_ends_octets");
        let all = all.map(|octets| octets / 2.0 / f64::from(1 << 20));
        self.push_most("10 000 idle streams", 16.0, "MiB", all, &["memory-10000"]);
        let of = rows.quotient("streams-10000", "streams-1");
        self.push(
            "10 000 active streams, of one",
            0.7,
            "of it",
            of,
            &["streams-10000", "streams-1"],
        );
        let cost = |name| rows.extra(name, "asked_busy_ns_per_octet");
        let times = cost("loss-1").zip(cost("loss-0")).map(|(with, without)| with / without);
        self.push_most(
            "receive cost per octet at 1 % loss",
            1.2,
            "times",
            times,
            &["loss-1", "loss-0"],
        );
        let held = rows.extra("loss-1", "located_held_octets_max");
        self.push_most("located octets held at 1 % loss", 0.0, "octets", held, &["loss-1"]);
        let rate = rows.value("set-up");
        self.push("streams set up and closed", 30_000.0, "streams/s", rate, &["set-up"]);
        let both = ["sctp-write-1m-1500", "tcp-write-1m-1500"];
        let of = rows.quotient(both[0], both[1]);
        self.push("writes of 1 MiB over SCTP, of TCP", 0.7, "of it", of, &both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: f64) -> Row {
        let mut row = Row::new("g", name, "u");
        row.sample(value);
        row
    }

    #[test]
    fn lower_and_upper_bounds_are_told_apart_and_what_is_missing_is_not_met() {
        let mut echo = row("echo", 1.0);
        echo.extra.insert("p50_us".into(), 1.0);
        echo.extra.insert("p99_us".into(), 20.0);
        let rows = [row("write-1500", 50.0), row("handoff-1500", 100.0), echo];
        let targets = targets(&rows);
        let find = |name: &str| targets.iter().find(|t| t.name == name).unwrap();
        let bulk = find("writes of 1 MiB, MTU 1500");
        assert_eq!((bulk.met, bulk.ratio), (true, Some(1.25)));
        assert_eq!(find("writes of 1 MiB, MTU 1500, of the hand-off").value, Some(0.5));
        let p50 = find("echo of 64 octets, p50");
        assert_eq!((p50.met, p50.ratio), (true, Some(2.0)));
        let p99 = find("echo of 64 octets, p99");
        assert_eq!((p99.met, p99.ratio), (false, Some(0.5)));
        let missing = find("writes of 1 MiB, MTU 9000");
        assert_eq!((missing.met, missing.value, missing.ratio), (false, None, None));
    }
}
