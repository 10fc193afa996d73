//! The control stream of a perftest client with `-R`, for servers of `ib_write_bw` and `ib_read_bw`. The module
//! [`super`] describes the messages. Each is a Send, answered by a Send of the same length.
//!
//! ```text
//!  messages of the client by number:
//!
//!  1 to 4   version, cycle buffer, cache line, MTU       10        end of the load
//!  5        then the data stream is opened               11 to 15  results
//!  6 to 9   memory of both ends; then the load begins    16        end of the exchange
//! ```

use super::{MEMORY_MESSAGE_LEN, RemoteBuffer, VERSION_MESSAGE_LEN, is_version, parse_memory};

/// Announced version: the version of the perftest release whose protocol this module implements.
const OWN_VERSION: &[u8] = b"6.06";
/// Minimum length of the server's buffer, bytes. perftest allocates at least its cycle buffer, one page, for any `-s`.
pub const CYCLE_BUFFER: u32 = 4096;
/// Announced cache line, bytes.
const CACHE_LINE: u32 = 64;
/// Announced MTU: 1024 bytes (`IBV_MTU_1024` is 3).
const MTU: &[u8] = b"3\0";
/// Maximum number of outstanding Reads, as perftest's client announces it.
const OUT_READS: u32 = 128;

/// Number of the message after which the data stream is opened.
const OPENING_MESSAGE: u32 = 5;
/// Number of the message whose answer describes the server's memory.
const MEMORY_MESSAGE: u32 = 7;
/// Number of the last message before the load.
const READY_MESSAGE: u32 = 9;
/// Number of the last message.
const END_MESSAGE: u32 = 16;

/// Next step of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send this message.
    Send(Vec<u8>),
    /// Open the data stream, then call [`Client::on_opened`].
    Open,
    /// Generate load to this memory, then call [`Client::end`].
    Load(RemoteBuffer),
    /// The server has received all reports: close both streams.
    Done,
    /// The peer does not behave like a perftest server. Contains the reason, one sentence.
    Failed(String),
}

/// Results of the run, which the server prints.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Message size, bytes.
    pub size: u32,
    /// Number of messages of the load.
    pub messages: u64,
    /// Throughput, MiB per second.
    pub mib_per_s: f64,
    /// Rate, millions of messages per second.
    pub millions_per_s: f64,
}

/// The control stream of one run.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Number of messages sent.
    sent: u32,
    /// Length of the last message while its answer is outstanding, else 0.
    awaited_len: usize,
    /// The server's memory. `None` before the answer to [`MEMORY_MESSAGE`].
    memory: Option<RemoteBuffer>,
    report: Report,
}

impl Client {
    /// Returns true once the answer to the last message has arrived.
    pub fn is_done(&self) -> bool {
        self.sent == END_MESSAGE && self.awaited_len == 0
    }

    /// Returns true while an answer of the server is outstanding.
    pub fn is_awaiting_answer(&self) -> bool {
        self.awaited_len > 0
    }

    /// Returns the first message.
    pub fn begin(&mut self) -> Next {
        self.send_next()
    }

    /// Continues once the data stream is open.
    pub fn on_opened(&mut self) -> Next {
        self.send_next()
    }

    /// Continues after the load. The next messages report these results to the server.
    pub fn end(&mut self, report: Report) -> Next {
        self.report = report;
        self.send_next()
    }

    /// Handles a Send of the server.
    pub fn on_received(&mut self, bytes: &[u8]) -> Next {
        let (number, awaited) = (self.sent, std::mem::take(&mut self.awaited_len));
        if awaited == 0 || bytes.len() != awaited {
            let (len, expected) = (bytes.len(), awaited);
            let sentence = format!("a Send of {len} bytes, {expected} are expected");
            return Next::Failed(sentence);
        }
        match number {
            1 if !is_version(bytes) => Next::Failed("its first Send is no version".into()),
            OPENING_MESSAGE => Next::Open,
            MEMORY_MESSAGE => match parse_memory(bytes) {
                None => Next::Failed("it names no memory".into()),
                memory => {
                    self.memory = memory;
                    self.send_next()
                }
            },
            READY_MESSAGE => match self.memory {
                Some(place) => Next::Load(place),
                None => Next::Failed("it names no memory".into()),
            },
            END_MESSAGE => Next::Done,
            _ => self.send_next(),
        }
    }

    fn send_next(&mut self) -> Next {
        self.sent += 1;
        let bytes = self.message();
        self.awaited_len = bytes.len();
        Next::Send(bytes)
    }

    fn message(&self) -> Vec<u8> {
        let report = &self.report;
        match self.sent {
            1 => pad(OWN_VERSION, VERSION_MESSAGE_LEN),
            2 => CYCLE_BUFFER.to_be_bytes().to_vec(),
            3 => CACHE_LINE.to_be_bytes().to_vec(),
            4 => MTU.to_vec(),
            // The server does not access our memory; STag 0 means none.
            7..=10 | END_MESSAGE => {
                let mut bytes = vec![0; MEMORY_MESSAGE_LEN];
                bytes[4..8].copy_from_slice(&OUT_READS.to_be_bytes());
                bytes
            }
            11 => u64::from(report.size).to_be_bytes().to_vec(),
            12 => report.messages.to_be_bytes().to_vec(),
            // Messages 13 and 14 are the peak and average throughput. Only the average is known, so both contain it.
            13 | 14 => report.mib_per_s.to_be_bytes().to_vec(),
            15 => report.millions_per_s.to_be_bytes().to_vec(),
            _ => vec![0; MEMORY_MESSAGE_LEN],
        }
    }
}

fn pad(text: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize(len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use ddp::Stag;

    use super::*;

    fn expect_send(next: Next) -> Vec<u8> {
        let Next::Send(bytes) = next else { panic!("{next:?}") };
        bytes
    }

    /// Runs the client through messages 1 to 6; it opens the data stream after message 5. Returns message 7.
    fn greet(client: &mut Client) -> Vec<u8> {
        let mut message = expect_send(client.begin());
        for len in [16, 4, 4, 2] {
            assert_eq!(message.len(), len);
            message = expect_send(client.on_received(&message));
        }
        assert_eq!(client.on_received(&message), Next::Open);
        let sixth = expect_send(client.on_opened());
        assert_eq!(
            (message, sixth.clone()),
            (vec![0; MEMORY_MESSAGE_LEN], vec![0; MEMORY_MESSAGE_LEN])
        );
        expect_send(client.on_received(&sixth))
    }

    #[test]
    fn client_messages_match_perftest() {
        let mut client = Client::default();
        let mut message = greet(&mut client);
        assert_eq!((message.len(), &message[4..8]), (MEMORY_MESSAGE_LEN, &[0, 0, 0, 128][..]));
        let place = RemoteBuffer { stag: Stag(0x1234_5600), to: 0x7fff_0000_1000 };
        message[16..20].copy_from_slice(&place.stag.0.to_be_bytes());
        message[24..32].copy_from_slice(&place.to.to_be_bytes());
        let eighth = expect_send(client.on_received(&message));
        let ninth = expect_send(client.on_received(&eighth));
        assert_eq!(client.on_received(&ninth), Next::Load(place));
        let report = Report { size: 65_536, messages: 1000, mib_per_s: 2.0, millions_per_s: 0.5 };
        let mut message = expect_send(client.end(report));
        let mut lens = vec![message.len()];
        let mut numbers = Vec::new();
        // The client ignores the contents of the server's reports.
        while let Next::Send(next) = client.on_received(&vec![0xff; message.len()]) {
            message = next;
            lens.push(message.len());
            if let Ok(bytes) = message.as_slice().try_into() {
                numbers.push(u64::from_be_bytes(bytes));
            }
        }
        assert_eq!(lens, [56, 8, 8, 8, 8, 8, 56]);
        let floats = [2.0f64, 2.0, 0.5].map(f64::to_bits);
        assert_eq!(numbers, [&[65_536, 1000], &floats[..]].concat());
        assert_eq!(client.sent, END_MESSAGE);
    }

    #[test]
    fn non_perftest_server_fails_the_run() {
        let failed = |next| matches!(next, Next::Failed(_));
        let mut client = Client::default();
        client.begin();
        assert!(failed(client.on_received(&[0; VERSION_MESSAGE_LEN])), "no version");
        let mut client = Client::default();
        client.begin();
        assert!(failed(client.on_received(&[b'6'; 4])), "another length");
        let mut client = Client::default();
        assert!(failed(client.on_received(&[])), "nothing is expected");
        let mut client = Client::default();
        let seventh = greet(&mut client);
        assert!(failed(client.on_received(&seventh)), "STag 0");
        assert!(failed(client.on_received(&seventh)), "nothing is expected");
    }
}
