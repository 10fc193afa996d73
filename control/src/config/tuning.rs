//! `[tcp]`, `[mpa]`, `[limits]` and `[management]`.

use std::time::Duration;

use super::errors::Places;
use super::reader::Section;
use super::types::*;
use super::values::*;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(super) fn tcp(mut section: Section<'_, '_>) -> TcpSection {
    let cookies =
        [("auto", SynCookies::Auto), ("always", SynCookies::Always), ("never", SynCookies::Never)];
    let window = size32(16 << 10, 1 << 30);
    let tcp = TcpSection {
        congestion: section.or("congestion", Congestion::Cubic, one_of(Congestion::NAMED)),
        initial_rto: section.or("initial_rto", ms(1000), duration(ms(1), ms(60_000))),
        min_rto: section.or("min_rto", ms(200), duration(ms(1), ms(60_000))),
        user_timeout: section.or("user_timeout", ms(120_000), duration(ms(100), 24 * HOUR)),
        keepalive: keepalive(&mut section),
        time_wait: section.or("time_wait", ms(10_000), duration(ms(0), ms(240_000))),
        delayed_ack: section.or("delayed_ack", ms(20), duration(ms(0), ms(500))),
        receive_window: section.or("receive_window", 4 << 20, &window),
        send_window: section.or("send_window", 4 << 20, &window),
        sack: section.or("sack", true, boolean),
        path_mtu_probing: section.or("path_mtu_probing", true, boolean),
        min_path_mtu: section.or("min_path_mtu", 576, int(68, 1280)),
        path_mtu_raise: section.or("path_mtu_raise", ms(600_000), duration(ms(300_000), 24 * HOUR)),
        timestamps: section.or("timestamps", true, boolean),
        pacing: section.or("pacing", true, boolean),
        tail_loss_probe: section.or("tail_loss_probe", true, boolean),
        ecn: section.or("ecn", true, boolean),
        zero_window_timeout: section.or(
            "zero_window_timeout",
            Some(ms(600_000)),
            duration_or_off(ms(1000), 24 * HOUR),
        ),
        syn_cookies: section.or("syn_cookies", SynCookies::Auto, one_of(&cookies)),
    };
    if tcp.min_rto > tcp.initial_rto {
        section.fail("min_rto", "is longer than `initial_rto`: lower it, or raise `initial_rto`");
    }
    if tcp.congestion.exact_ecn() && !tcp.ecn {
        section.fail("congestion", "works only with ECN: set `ecn = true`, or choose another one");
    }
    section.finish();
    tcp
}

fn keepalive(section: &mut Section<'_, '_>) -> Option<Keepalive> {
    let idle = section.or("keepalive", None, duration_or_off(ms(1000), 24 * HOUR));
    let rest = ["keepalive_interval", "keepalive_probes"];
    let Some(idle) = idle else {
        if section.has("keepalive") {
            section.allow(&rest);
        } else {
            section.only_for(&rest, "without `keepalive`");
        }
        return None;
    };
    Some(Keepalive {
        idle,
        interval: section.or("keepalive_interval", ms(10_000), duration(ms(100), HOUR)),
        probes: section.or("keepalive_probes", 5, int(1, 100)),
    })
}

pub(super) fn mpa(mut section: Section<'_, '_>) -> (MpaReceiveSection, Places) {
    let answers = [("error", OnBadCrc::Error), ("retransmit", OnBadCrc::Retransmit)];
    let on_bad_crc = section.or("on_bad_crc", OnBadCrc::Error, one_of(&answers));
    if on_bad_crc == OnBadCrc::Error && !section.has("on_bad_crc") {
        section.only_for(&["bad_crc_tries"], "without `on_bad_crc = \"retransmit\"`");
    }
    let mpa = MpaReceiveSection {
        max_fpdu: section.or("max_fpdu", 64 << 10, size32(1 << 10, 128 << 10)),
        on_bad_crc,
        bad_crc_tries: section.or("bad_crc_tries", 5, int(1, 100)),
    };
    (mpa, section.finish())
}

pub(super) fn limits(mut section: Section<'_, '_>) -> (Limits, Places) {
    let tib = 1u64 << 40;
    let streams = section.or("streams", 4096, int(1, 10_000_000));
    let limits = Limits {
        streams,
        streams_per_peer: section.optional("streams_per_peer", int(1, 10_000_000)),
        regions: section.or("regions", 1024, int(1, 1_000_000)),
        region_memory: section.or("region_memory", 16 << 30, size(4096, 64 * tib)),
        held_per_stream: section.or("held_per_stream", 4 << 20, size(64 << 10, tib)),
        held_per_worker: section.or("held_per_worker", 64 << 20, size(64 << 10, tib)),
        kept_per_worker: section.or("kept_per_worker", 64 << 20, size(64 << 10, tib)),
        buffers_per_worker: section.or("buffers_per_worker", 64 << 20, size(4096, tib)),
        neighbours: section.or("neighbours", 1024, int(8, 1_000_000)),
        events: section.or("events", 4096, int(16, 10_000_000)),
        event_memory: section.or("event_memory", 16 << 20, size(4096, tib)),
        api_body: section.or("api_body", 4 << 20, size(4096, 1 << 30)),
    };
    if limits.held_per_stream > limits.held_per_worker {
        section.fail(
            "held_per_stream",
            "is more than `held_per_worker`: lower it, or raise the other",
        );
    }
    if let Some(above) = limits.streams_per_peer.filter(|&n| n > streams) {
        section.fail(
            "streams_per_peer",
            format!("is {above}, more than `streams` ({streams}): lower it"),
        );
    }
    (limits, section.finish())
}

pub(super) fn management(mut section: Section<'_, '_>) -> (ManagementSection, Places) {
    let socket = section.or("socket", super::DEFAULT_SOCKET.into(), socket_path);
    let drain_timeout = section.or("drain_timeout", ms(10_000), duration(ms(0), HOUR));
    let log = section.or("log", "info".to_owned(), |value| {
        let filter = string(value)?;
        match filter.parse::<tracing_subscriber::EnvFilter>() {
            Ok(_) => Ok(filter),
            Err(_) => Err(format!(
                "is \"{}\", but must be a log filter such as \"info\" or \"info,control=debug\"",
                filter.escape_debug()
            )),
        }
    });
    (ManagementSection { socket, drain_timeout, log }, section.finish())
}
