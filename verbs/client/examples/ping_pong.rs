//! Two programs that send a message back and forth.
//!
//! ```text
//! ping_pong SOCKET listen ADDRESS:PORT
//! ping_pong SOCKET connect ADDRESS:PORT [COUNT]
//! ```
//!
//! SOCKET is the appliance's socket for programs. The two sides may use the same appliance.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use verbs_client::{
    AcceptOptions, CompletionQueue, ConnectOptions, MemoryAccess, MemoryRegion, QueuePair,
    QueuePairConfig, SendWork, Session, Status, Transport, post,
};

const MESSAGE: &[u8] = b"ping";
/// Size of the receive buffer in bytes: room for one message.
const ROOM: usize = 64;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the passive side (`listen`) or the active side (`connect`), and writes its results to `output`.
pub fn run(arguments: &[String], output: &mut impl Write) -> Outcome {
    let usage = "usage: ping_pong SOCKET listen|connect ADDRESS:PORT [COUNT]";
    let [socket, role, address, rest @ ..] = arguments else { return Err(usage.into()) };
    let address = address.parse()?;
    let side = Side::open(&Session::connect(socket)?)?;
    match role.as_str() {
        "listen" => {
            let listener = side.session.listen(address, Transport::Tcp, 1)?;
            writeln!(output, "listening at {}", listener.local())?;
            let request = listener.next_request(None)?.ok_or("no request")?;
            // Posts a receive before the accept, because the peer may send as soon as the connection is established.
            side.post_receive()?;
            request.accept(&side.pair, &AcceptOptions::default())?;
            side.answer(output)
        }
        "connect" => {
            let count = rest.first().map_or(Ok(1000), |count| count.parse())?;
            side.post_receive()?;
            let connection = side.pair.connect(address, &ConnectOptions::default())?;
            writeln!(output, "connected from {}", connection.local)?;
            side.ask(count, output)
        }
        _ => Err(usage.into()),
    }
}

struct Side {
    session: Session,
    memory: MemoryRegion,
    completions: CompletionQueue,
    pair: QueuePair,
}

impl Side {
    fn open(session: &Session) -> Result<Side, verbs_client::Error> {
        let domain = session.create_domain()?;
        let access = MemoryAccess { local_write: true, ..MemoryAccess::default() };
        let memory = domain.alloc(ROOM, access)?;
        let channel = session.create_channel()?;
        let completions = session.create_completion_queue(16, Some(&channel))?;
        let pair = domain.create_queue_pair(&QueuePairConfig {
            send_completions: &completions,
            receive_completions: &completions,
            max_sends: 4,
            max_receives: 4,
            copy_sources: false,
            shared_receives: None,
        })?;
        Ok(Side { session: session.clone(), memory, completions, pair })
    }

    fn post_receive(&self) -> Result<(), verbs_client::Error> {
        self.pair.post_receive(&post::receive(0, &[self.memory.sge(0..ROOM)?])?)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), verbs_client::Error> {
        let work = post::send(post::inline(bytes)?);
        self.pair.post_send(&SendWork { signalled: false, ..work })
    }

    /// Waits for a message and returns its bytes, or `None` if the connection has ended.
    fn message(&self) -> Result<Option<Vec<u8>>, Box<dyn Error + Send + Sync>> {
        let completion = self.completions.next(TIMEOUT)?.ok_or("no message came")?;
        match completion.status {
            Status::Success => {
                let mut bytes = vec![0; completion.byte_len as usize];
                self.memory.read(0, &mut bytes);
                Ok(Some(bytes))
            }
            Status::Flushed => Ok(None),
            status => Err(format!("the message failed: {status:?}").into()),
        }
    }

    fn ask(&self, count: u32, output: &mut impl Write) -> Outcome {
        let start = Instant::now();
        for round in 0..count {
            self.send(MESSAGE)?;
            let answer = self.message()?.ok_or("the peer has closed the connection")?;
            if answer != MESSAGE {
                return Err(format!("another message came back: {answer:?}").into());
            }
            if round + 1 < count {
                self.post_receive()?;
            }
        }
        let each = start.elapsed() / count.max(1);
        self.pair.disconnect(Duration::from_secs(10))?;
        writeln!(output, "{count} messages and answers, {each:?} each")?;
        Ok(())
    }

    fn answer(&self, output: &mut impl Write) -> Outcome {
        let mut count = 0;
        while let Some(message) = self.message()? {
            self.post_receive()?;
            self.send(&message)?;
            count += 1;
        }
        writeln!(output, "{count} messages answered")?;
        Ok(())
    }
}
