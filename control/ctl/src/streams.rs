//! `ddpctl streams`: selection, order and columns of the table of streams.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use base::address::{self, AddressError};
use clap::{Args as ClapArgs, ValueEnum};

use api::StreamInfo;
use config::Transport;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// Number of the stream
    Stream,
    /// Worker of the stream
    Worker,
    /// Listener that accepted the stream
    Listener,
    /// Transport: tcp or sctp
    Over,
    /// Local address and port
    Local,
    /// Address and port of the peer
    Remote,
    /// State of the stream
    State,
    /// MPA revision
    Rev,
    /// Directions with markers: both, sent, received or no
    Markers,
    /// Use of CRCs: yes or no
    Crc,
    /// Time since the stream was established, or before that, since it was requested
    Age,
    /// Smoothed round-trip time
    Rtt,
    /// Congestion window, bytes
    Cwnd,
    /// Bytes in flight
    InFlight,
    /// Delivery rate, bit/s
    Rate,
    /// Current limit on sending
    LimitedBy,
    /// Retransmitted bytes
    Retransmitted,
    /// Bytes that the peer placed in local regions
    Placed,
    /// Bytes of messages sent
    Sent,
}

impl Column {
    /// Columns of the table without `--columns`.
    pub const DEFAULT: [Column; 10] = [
        Column::Stream,
        Column::Listener,
        Column::Over,
        Column::Local,
        Column::Remote,
        Column::State,
        Column::Rev,
        Column::Markers,
        Column::Crc,
        Column::Age,
    ];

    /// Returns the column's heading.
    pub const fn title(self) -> &'static str {
        match self {
            Column::Stream => "STREAM",
            Column::Worker => "WORKER",
            Column::Listener => "LISTENER",
            Column::Over => "OVER",
            Column::Local => "LOCAL",
            Column::Remote => "REMOTE",
            Column::State => "STATE",
            Column::Rev => "REV",
            Column::Markers => "MARKERS",
            Column::Crc => "CRC",
            Column::Age => "AGE",
            Column::Rtt => "RTT",
            Column::Cwnd => "CWND",
            Column::InFlight => "IN FLIGHT",
            Column::Rate => "RATE",
            Column::LimitedBy => "LIMITED BY",
            Column::Retransmitted => "RETRANSMITTED",
            Column::Placed => "PLACED",
            Column::Sent => "SENT",
        }
    }

    /// Returns the numeric sort key of a stream; `None` if the column is sorted as text or the value is unknown.
    pub(super) fn sort_number(self, stream: &StreamInfo) -> Option<f64> {
        let flow = stream.flow.as_ref();
        let counter = |name| stream.counters.get(name).copied().map(|value| value as f64);
        match self {
            Column::Age => Some(stream.age_seconds),
            Column::Rtt => flow?.rtt_us.map(|us| us as f64),
            Column::Cwnd => Some(flow?.cwnd as f64),
            Column::InFlight => Some(flow?.in_flight as f64),
            Column::Rate => flow?.delivery_rate.map(|rate| rate as f64),
            Column::Retransmitted => counter("retransmitted_bytes"),
            Column::Placed => placed_bytes(stream).map(|bytes| bytes as f64),
            Column::Sent => counter("sent_bytes"),
            _ => None,
        }
    }

    /// Returns the textual sort key of a stream.
    fn sort_text(self, stream: &StreamInfo) -> String {
        match self {
            Column::Worker => format!("{:010}", stream.worker),
            Column::Listener => stream.listener.clone().unwrap_or_default(),
            Column::Over => stream.transport.as_str().into(),
            Column::Local => stream.local.clone(),
            Column::Remote => stream.remote.clone(),
            Column::State => stream.state.clone(),
            Column::LimitedBy => {
                stream.flow.as_ref().map(|flow| flow.limited_by.clone()).unwrap_or_default()
            }
            _ => stream.id.to_string(),
        }
    }
}

/// Returns the number of bytes that the peer has placed in local regions, in and out of order. `None` until the worker
/// has reported the stream.
pub(super) fn placed_bytes(stream: &StreamInfo) -> Option<u64> {
    let part = |name| stream.counters.get(name).copied();
    Some(part("placed_in_order_bytes")? + part("placed_out_of_order_bytes")?)
}

/// Filter, order and columns of a list of streams.
#[derive(Debug, Default, ClapArgs)]
pub struct Selection {
    /// Only streams accepted by this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only streams to this address, or address and port
    #[arg(long, value_name = "ADDRESS", value_parser = parse_remote)]
    remote: Option<Remote>,
    /// Only streams over this transport: tcp or sctp
    #[arg(long, value_name = "TRANSPORT", value_parser = parse_transport)]
    transport: Option<Transport>,
    /// Only streams in this state (established, closing, ...)
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only streams whose sending is currently limited by this: application, peer_window, send_window,
    /// congestion_window, pacing, port or path
    #[arg(long, value_name = "LIMIT")]
    limited_by: Option<String>,
    /// Column to sort by; numbers descending, text ascending
    #[arg(long, value_name = "COLUMN")]
    sort: Option<Column>,
    /// Maximum number of streams
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Columns to show, separated by commas
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Vec<Column>,
}

#[derive(Clone, Copy, Debug)]
enum Remote {
    Host(IpAddr),
    Port(SocketAddr),
}

fn parse_remote(text: &str) -> Result<Remote, String> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let found = match address::parse(inner) {
        Err(AddressError::Syntax) => address::parse_socket(text).map(Remote::Port),
        host => host.map(Remote::Host),
    };
    found.map_err(|error| match error {
        AddressError::Syntax => {
            "an address, or an address and a port: 192.0.2.1, [2001:db8::1]:7471".into()
        }
        named => format!("this is {named}"),
    })
}

pub(super) fn parse_transport(text: &str) -> Result<Transport, String> {
    let known = [Transport::Tcp, Transport::Sctp];
    let found = known.into_iter().find(|transport| transport.as_str() == text);
    found.ok_or_else(|| "tcp or sctp".into())
}

impl Selection {
    /// Returns the columns of `--columns`, or the default columns.
    pub fn columns(&self) -> &[Column] {
        if self.columns.is_empty() { &Column::DEFAULT } else { &self.columns }
    }

    /// Removes the streams that do not match, and sorts the others.
    pub fn filter_and_sort(&self, mut streams: Vec<StreamInfo>) -> Vec<StreamInfo> {
        streams.retain(|stream| self.matches(stream));
        if let Some(column) = self.sort {
            streams.sort_by_cached_key(|stream| {
                let number = column.sort_number(stream).map(|number| number as u64);
                (Reverse(number), column.sort_text(stream))
            });
        }
        streams.truncate(self.top.unwrap_or(usize::MAX));
        streams
    }

    fn matches(&self, stream: &StreamInfo) -> bool {
        let remote = || stream.remote.parse::<SocketAddr>().ok();
        self.listener.as_ref().is_none_or(|name| stream.listener.as_ref() == Some(name))
            && self.transport.is_none_or(|transport| transport == stream.transport)
            && self.state.as_ref().is_none_or(|state| *state == stream.state)
            && self.limited_by.as_ref().is_none_or(|limit| {
                stream.flow.as_ref().is_some_and(|flow| flow.limited_by == *limit)
            })
            && self.remote.is_none_or(|wanted| match wanted {
                Remote::Host(host) => remote().is_some_and(|remote| remote.ip() == host),
                Remote::Port(port) => remote() == Some(port),
            })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use api::{FlowInfo, StreamId};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        selection: Selection,
    }

    fn shown(arguments: &[&str]) -> Vec<u64> {
        let line = Line::try_parse_from([&["x"], arguments].concat()).unwrap();
        line.selection
            .filter_and_sort(vec![stream(1, 10, 700), stream(2, 11, 900), stream(3, 10, 800)])
            .into_iter()
            .map(|stream| stream.id.0)
            .collect()
    }

    fn stream(id: u64, host: u8, rtt: u64) -> StreamInfo {
        let limited_by = if id == 2 { "pacing" } else { "application" }.to_owned();
        StreamInfo {
            id: StreamId(id),
            listener: (id < 3).then(|| "in".into()),
            remote: format!("192.0.2.{host}:700{id}"),
            flow: Some(FlowInfo { rtt_us: Some(rtt), limited_by, ..FlowInfo::default() }),
            ..api::fake::stream()
        }
    }

    #[test]
    fn streams_are_filtered_and_sorted() {
        assert_eq!(shown(&[]), [1, 2, 3]);
        assert_eq!(shown(&["--listener", "in"]), [1, 2]);
        assert_eq!(shown(&["--remote", "192.0.2.10"]), [1, 3]);
        assert_eq!(shown(&["--remote", "192.0.2.10:7003"]), [3]);
        assert_eq!(shown(&["--limited-by", "pacing"]), [2]);
        assert_eq!(shown(&["--sort", "rtt"]), [2, 3, 1]);
        assert_eq!(shown(&["--sort", "rtt", "--top", "1"]), [2]);
        assert_eq!(shown(&["--sort", "limited-by"]), [1, 3, 2]);
        assert_eq!(shown(&["--state", "closing"]), [0u64; 0]);
        assert_eq!(shown(&["--transport", "sctp"]), [0u64; 0]);
        assert!(Line::try_parse_from(["x", "--columns", "rtt,nothing"]).is_err());
        for remote in ["nobody", "10.1", "::ffff:192.0.2.10", "192.0.2.010:7003", "fe80::1%lan"] {
            assert!(Line::try_parse_from(["x", "--remote", remote]).is_err(), "{remote}");
        }
    }
}
