//! The tester on a port, in real time. Dialogues are played one after the other, each from another source port.

use std::net::IpAddr;
use std::time::{Duration, Instant as Clock};

use base::Instant;
use dataplane::port::{Port, PortConfig, PortError, PortFactory, PortQueue, RxBatch};
use dpdk::{Eal, EalConfig, EalError, Hugepages, LogLevel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sim::dialogue::script::{Script, ScriptError};
use smoltcp::wire::EthernetAddress;

use crate::frames::{ETHERNET, ReceivedFrame, Station, TransportPacket};
use crate::player::chunks::SctpCodec;
use crate::player::segments::TcpCodec;
use crate::player::{DialogueCodec, PlaySummary, Player, Tolerance};

/// Interval of polls of a port without a file descriptor, or of a port whose interface is down.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Maximum number of attempts to resolve the next hop's hardware address, one per second.
const MAX_ADDRESS_REQUESTS: usize = 5;
/// First port of the dynamic range (RFC 6335 §6). Dialogues use consecutive source ports, which start at random within
/// the first 8192 ports of the range.
const FIRST_PORT: u16 = 49_152;

/// Reason why the tester cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// DPDK did not start.
    #[error("{0}")]
    Eal(#[from] EalError),
    /// The port did not open.
    #[error("{0}")]
    Port(#[from] PortError),
    /// The next hop's hardware address was not resolved; contains the IP address and the name of the protocol used.
    #[error(
        "{0} does not answer {1}: is it on this link, and the tester's address in its network?"
    )]
    Unresolved(IpAddr, &'static str),
    /// The system provides no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Reason why a dialogue failed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The host deviated from the script, or the script is invalid.
    #[error("{0}")]
    Script(#[from] ScriptError),
    /// The host sent a damaged packet; contains the reason.
    #[error("the host sent a damaged packet: {0}")]
    Damaged(String),
    /// The port has no free packet buffer, or the next hop is not resolved.
    #[error("the port has no free packet buffer")]
    NoBuffer,
    /// A packet of the script is longer than the port's MTU; contains its length, bytes.
    #[error("an IP packet of {0} bytes is longer than the MTU")]
    TooLong(usize),
}

/// Addresses of tester, host and router.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The tester's address.
    pub address: IpAddr,
    /// The host's address.
    pub host: IpAddr,
    /// Router to the host, if the host is on another link.
    pub via: Option<IpAddr>,
}

/// A tester on an open port, with its next hop resolved.
#[derive(Debug)]
pub struct Session {
    station: Station,
    queue: PortQueue,
    // Declared after `queue`, and so dropped after it. The device is closed when both are dropped.
    _port: Port,
    clock: Clock,
    own_port: u16,
    received: Vec<(Instant, ReceivedFrame)>,
}

impl Session {
    /// Opens the port and resolves the next hop. Only a PCI device uses hugepages, if available.
    ///
    /// # Errors
    /// DPDK or the port did not start, the next hop did not answer, or there are no random numbers.
    pub fn open(
        config: &PortConfig,
        ends: Addresses,
        log: fn(LogLevel, &str),
    ) -> Result<Session, SessionError> {
        let pci = Vec::from_iter(config.kind.eal_device());
        let hugepages = if pci.is_empty() { Hugepages::Never } else { Hugepages::Auto };
        let memory_mib = 64 + (config.pool_bytes() >> 20) as u32;
        let eal = EalConfig {
            hugepages,
            memory_mib,
            pci,
            log_level: LogLevel::Warning,
            log,
            ..EalConfig::default()
        };
        let mut port = PortFactory::new(Eal::start(&eal)?).open(config)?;
        let queue = port.take_queues().remove(0);
        let station = Station {
            mac: EthernetAddress(port.info().mac),
            address: ends.address,
            host: ends.host,
            next_hop: ends.via.unwrap_or(ends.host),
            next_mac: None,
        };
        let own_port = FIRST_PORT + random()? as u16 % 8192;
        let began = Clock::now();
        let mut session =
            Session { station, queue, _port: port, clock: began, own_port, received: Vec::new() };
        session.find_next_hop()?;
        Ok(session)
    }

    /// Plays `script` against the host's port `to`.
    ///
    /// # Errors
    /// Contains the first line that the host did not meet, with all packets so far; or a failure of the port.
    pub fn play(
        &mut self,
        script: Script,
        to: u16,
        tolerance: Tolerance,
    ) -> Result<(PlaySummary, String), PlayError> {
        self.own_port = self.own_port.checked_add(1).unwrap_or(FIRST_PORT);
        // A random initial sequence number or tag differs from that of a connection in TIME-WAIT or of an earlier run.
        let number = random().map_or(self.own_port.into(), |n| n & 0x3fff_ffff);
        let ports = (self.own_port, to);
        if is_sctp(&script) {
            let partner = SctpCodec::new(&script, number, ports)?;
            self.run(Player::new(script, partner, tolerance))
        } else {
            let partner = TcpCodec::new(&script, number, ports)?;
            self.run(Player::new(script, partner, tolerance))
        }
    }

    /// Plays the dialogue to its end, then ends the host's connection. Returns summary and transcript.
    fn run<P: DialogueCodec>(
        &mut self,
        mut player: Player<P>,
    ) -> Result<(PlaySummary, String), PlayError> {
        let played = self.play_to_end(&mut player);
        if let Some(farewell) = player.abort_packet() {
            self.send(&farewell)?;
        }
        played.map(|played| (played, player.transcript().to_owned()))
    }

    fn play_to_end<P: DialogueCodec>(
        &mut self,
        player: &mut Player<P>,
    ) -> Result<PlaySummary, PlayError> {
        player.handle_timeout(self.now());
        loop {
            while let Some(carried) = player.poll_transmit() {
                self.send(&carried)?;
            }
            if let Some(outcome) = player.outcome() {
                return Ok(outcome.clone()?);
            }
            self.receive(player.poll_timeout().unwrap_or(self.now()));
            for (time, received) in std::mem::take(&mut self.received) {
                match received {
                    ReceivedFrame::Transport(carried) => {
                        player.input(time, carried).map_err(PlayError::Damaged)?;
                    }
                    ReceivedFrame::Damaged(what) => return Err(PlayError::Damaged(what.into())),
                    ReceivedFrame::AddressRequest(_)
                    | ReceivedFrame::Resolved
                    | ReceivedFrame::Other => {}
                }
            }
            player.handle_timeout(self.now());
        }
    }

    fn find_next_hop(&mut self) -> Result<(), SessionError> {
        for _ in 0..MAX_ADDRESS_REQUESTS {
            let question = self.station.next_hop_request();
            // Without a free buffer or a link the request is not sent. The next attempt follows.
            let _ = self.frame(&question);
            let until = self.now() + Duration::from_secs(1);
            while self.now() < until {
                self.receive(until);
                self.received.clear();
                if self.station.next_mac.is_some() {
                    return Ok(());
                }
            }
        }
        let protocol =
            if self.station.address.is_ipv4() { "ARP" } else { "neighbour solicitations" };
        Err(SessionError::Unresolved(self.station.next_hop, protocol))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.elapsed().as_nanos() as u64)
    }

    fn send(&mut self, carried: &TransportPacket) -> Result<(), PlayError> {
        let frame = self.station.wrap(carried).ok_or(PlayError::NoBuffer)?;
        let packet = frame.len().saturating_sub(ETHERNET);
        if packet > usize::from(self.queue.info().mtu) {
            return Err(PlayError::TooLong(packet));
        }
        self.frame(&frame).ok_or(PlayError::NoBuffer)
    }

    fn frame(&mut self, bytes: &[u8]) -> Option<()> {
        let mut frame = self.queue.alloc()?;
        frame.append(bytes.len())?.copy_from_slice(bytes);
        self.queue.tx(frame);
        self.queue.flush();
        Some(())
    }

    /// Receives one burst. If no frame is ready, first sleeps until a frame arrives or `until`. A port without a file
    /// descriptor is polled again after at most [`POLL_INTERVAL`]. Answers ARP requests and neighbour solicitations,
    /// and appends other frames for the tester to `received`.
    fn receive(&mut self, until: Instant) {
        self.queue.flush();
        let mut batch = RxBatch::new();
        if self.queue.rx_burst(self.now(), &mut batch) == 0 {
            self.sleep(until.saturating_since(self.now()));
            self.queue.rx_burst(self.now(), &mut batch);
        }
        let now = self.now();
        for frame in batch {
            match self.station.input(frame.data()) {
                ReceivedFrame::Other => {}
                ReceivedFrame::AddressRequest(answer) => {
                    // If the answer is lost, the host repeats its request.
                    let _ = self.frame(&answer);
                }
                received => self.received.push((now, received)),
            }
        }
    }

    /// Sleeps until the port is readable or `time` has passed; without a file descriptor, at most [`POLL_INTERVAL`].
    fn sleep(&self, time: Duration) {
        let Some(fd) = self.queue.fd() else { return std::thread::sleep(time.min(POLL_INTERVAL)) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ };
        // A signal only shortens the wait.
        let ready = poll(&mut fds, Some(&time)).unwrap_or(0);
        if ready > 0 && !fds[0].revents().contains(PollFlags::IN) {
            // An error condition without data: the interface is down, perhaps for a moment.
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

pub(crate) fn is_sctp(script: &Script) -> bool {
    script.settings.iter().any(|s| s.key == "stack" && s.value == "sctp")
}

fn random() -> Result<u32, SessionError> {
    getrandom::u32().map_err(SessionError::Random)
}
