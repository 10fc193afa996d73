//! A host: one worker on an in-memory port, and the test's part of the control thread.

use std::sync::Arc;

use base::Instant;
use dataplane::io::PortProperties;
use dataplane::net::path::TxChecksum;
use dataplane::port::ChecksumSite;
use dataplane::steering::Steering;
use dataplane::{
    Command, CommandError, DataplaneConfig, DrivenWorker, EndpointConfig, Event, Idle,
    InterfaceConfig, Limits, ListenerConfig, ListenerId, PortAttachment, PortId, Secret, Ticket,
    WorkerConfig, WorkerId,
};
use tcp_lite::mpa::{self, Revision};

use super::port::VectorPort;

/// Port of the listener of each host.
pub(super) const PORT: u16 = 4793;

pub(super) struct Host {
    worker: DrivenWorker<VectorPort>,
    /// Events that no call has taken yet.
    pub(super) events: Vec<Event>,
    tickets: u64,
}

impl Host {
    /// Creates the host with address 10.0.0.`number` and a listener.
    pub(super) fn new(number: u8, now: Instant) -> Host {
        let id = WorkerId(0);
        let limits = Limits {
            streams: 16,
            half_open: 16,
            neighbours: 8,
            commands: 64,
            events: 256,
            mesh: 8,
            path_mtus: 8,
            reassembly_packets: 8,
            ..Limits::default()
        };
        let interface = InterfaceConfig {
            name: "fuzz".into(),
            port: PortId(0),
            vlan: None,
            addresses: vec![format!("10.0.0.{number}/24").parse().expect("an address")],
            routes: Vec::new(),
            mtu: 1500,
            ip: Default::default(),
            local_ports: Default::default(),
            host: false,
        };
        let config = DataplaneConfig {
            workers: vec![WorkerConfig { id, core: None, idle: Idle::Poll }],
            ports: vec![PortAttachment { workers: vec![id] }],
            interfaces: vec![interface],
            limits,
            sctp_udp_port: None,
            ipsec: None,
            secret: Secret::from([number; 32]),
        };
        let facts = PortProperties {
            mac: [2, 0, 0, 0, 0, number],
            tx_checksum: TxChecksum::SOFTWARE,
            rx_checksum: ChecksumSite::Software,
            rx_sctp_checksum: ChecksumSite::Software,
            device_hash: false,
            steering: Steering::software(&[id]),
            workers: vec![id],
        };
        let worker = DrivenWorker::new(&config, [(facts, VectorPort::default())], now);
        let worker = worker.expect("a worker without a thread");
        let mut host = Host { worker, events: Vec::new(), tickets: 0 };
        let listener = Arc::new(ListenerConfig {
            id: ListenerId(1),
            interface: None,
            address: None,
            port: PORT,
            endpoint: endpoint(),
            ip: Default::default(),
            require: None,
            peers: Arc::default(),
            backlog: 8,
            credits: 8,
        });
        host.command(|ticket| Command::AddListener { listener, ticket });
        host
    }

    /// Sends a command to the worker. Returns its ticket.
    pub(super) fn command(&mut self, make: impl FnOnce(Ticket) -> Command) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.worker.handle.send(make(ticket)).expect("room in the command ring");
        ticket
    }

    /// Runs one turn of the worker and takes its events. Closes streams whose peers have closed. Returns true if there
    /// was work.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.worker.turn(now);
        while let Some(event) = self.worker.handle.poll() {
            busy = true;
            if let Event::PeerClosed { stream, .. } = event {
                self.command(|_| Command::Close { stream, abort: false });
            }
            self.events.push(event);
        }
        busy
    }

    /// Returns the in-memory port with its receive and transmit rings.
    pub(super) fn port(&mut self) -> &mut VectorPort {
        self.worker.port(0).expect("the port of this worker")
    }

    /// Returns the value of a counter.
    pub(super) fn count(&self, name: &str) -> u64 {
        let mut found = None;
        self.worker.handle.counters().for_each(|counter, value| {
            if counter.name == name {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Takes the first event for which `pick` returns a value. Returns that value. `None` if there is no such event.
    pub(super) fn take_event<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> Option<T> {
        let at = self.events.iter().position(|event| pick(event).is_some())?;
        pick(&self.events.remove(at))
    }

    /// Takes the answer to a command, if it has arrived.
    pub(super) fn take_answer(&mut self, ticket: Ticket) -> Option<Result<(), CommandError>> {
        self.take_event(|event| match event {
            Event::Done { ticket: of, result } if *of == ticket => Some(result.clone()),
            _ => None,
        })
    }
}

/// Returns the parameters of all streams: TCP with MPA revision 2.
pub(super) fn endpoint() -> EndpointConfig {
    let mpa = mpa::Config { initiate: Revision::Two, ..mpa::Config::default() };
    tcp_lite::endpoint::EndpointConfig { mpa, ..Default::default() }.into()
}
