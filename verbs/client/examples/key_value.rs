//! A table of keys and values that clients read by RDMA Read. The serving program executes no code per lookup.
//!
//! ```text
//! key_value SOCKET serve ADDRESS:PORT CLIENTS KEY=VALUE ...
//! key_value SOCKET get ADDRESS:PORT KEY ...
//! ```
//!
//! The server exits after it has served CLIENTS clients. The private data of each accept describes the table:
//!
//! ```text
//!  byte 0      4          12
//!      | STag  | address  | slots |      little-endian; the table has `slots` slots of 64 bytes:
//!
//!  slot | length of key | length of value | key | value | zeros      each length is one byte; empty slot: zeros
//! ```

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use verbs_client::{
    AcceptOptions, CompletionQueue, ConnectOptions, MemoryAccess, MemoryRegion, PairEvent,
    QueuePair, QueuePairConfig, Remote, Session, Status, Transport, post,
};

/// Size of a slot in bytes.
const SLOT: usize = 64;
const SLOTS: u32 = 256;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the server (`serve`) or a client (`get`), and writes its results to `output`.
pub fn run(arguments: &[String], output: &mut impl Write) -> Outcome {
    let [socket, role, address, rest @ ..] = arguments else {
        return Err("usage: key_value SOCKET serve|get ADDRESS:PORT ...".into());
    };
    let session = Session::connect(socket)?;
    let address = address.parse()?;
    match (role.as_str(), rest) {
        ("serve", [clients, entries @ ..]) => {
            let listener = session.listen(address, Transport::Tcp, 8)?;
            let table = Table::build(&session, entries)?;
            writeln!(output, "listening at {}", listener.local())?;
            for _ in 0..clients.parse()? {
                let request = listener.next_request(None)?.ok_or("no request")?;
                let (_, pair) = create_pair(&session, &table.memory)?;
                let options =
                    AcceptOptions { private_data: table.name(), ..AcceptOptions::default() };
                request.accept(&pair, &options)?;
                while !matches!(pair.next_event(None)?, Some(PairEvent::Disconnected { .. })) {}
            }
            Ok(())
        }
        ("get", keys) => {
            let domain = session.create_domain()?;
            let access = MemoryAccess { local_write: true, ..MemoryAccess::default() };
            let slot = domain.alloc(SLOT, access)?;
            let (completions, pair) = create_pair(&session, &slot)?;
            let connection = pair.connect(address, &ConnectOptions::default())?;
            let (table, slots) = parse_name(&connection.private_data).ok_or("not a table")?;
            for key in keys {
                let value = get(&pair, &completions, &slot, (table, slots), key)?;
                writeln!(output, "{key}: {}", value.as_deref().unwrap_or("not found"))?;
            }
            pair.disconnect(Duration::from_secs(10))?;
            Ok(())
        }
        _ => Err("usage: key_value SOCKET serve|get ADDRESS:PORT ...".into()),
    }
}

/// Creates a QP in the domain of `memory`.
fn create_pair(session: &Session, memory: &MemoryRegion) -> Outcome<(CompletionQueue, QueuePair)> {
    let channel = session.create_channel()?;
    let completions = session.create_completion_queue(8, Some(&channel))?;
    let pair = memory.domain().create_queue_pair(&QueuePairConfig {
        send_completions: &completions,
        receive_completions: &completions,
        max_sends: 1,
        max_receives: 1,
        copy_sources: false,
        shared_receives: None,
    })?;
    Ok((completions, pair))
}

struct Table {
    memory: MemoryRegion,
}

impl Table {
    fn build(session: &Session, entries: &[String]) -> Outcome<Table> {
        let access = MemoryAccess { remote_read: true, ..MemoryAccess::default() };
        let memory = session.create_domain()?.alloc(SLOT * SLOTS as usize, access)?;
        let mut is_used = [false; SLOTS as usize];
        for entry in entries {
            let (key, value) = entry.split_once('=').ok_or("an entry is KEY=VALUE")?;
            let slot = [&[key.len() as u8, value.len() as u8], key.as_bytes(), value.as_bytes()];
            let slot = slot.concat();
            if slot.len() > SLOT {
                return Err(format!("{entry} is longer than {} bytes", SLOT - 2).into());
            }
            // Linear probing; clients probe in the same order.
            let place = (0..SLOTS).map(|n| (hash(key) + n) % SLOTS).find(|&n| !is_used[n as usize]);
            let place = place.ok_or("the table is full")? as usize;
            is_used[place] = true;
            memory.write(place * SLOT, &slot);
        }
        Ok(Table { memory })
    }

    /// Returns the private data that describes the table: STag, address and number of slots.
    fn name(&self) -> Vec<u8> {
        let Remote { stag, to } = self.memory.remote(0);
        [&stag.to_le_bytes()[..], &to.to_le_bytes(), &SLOTS.to_le_bytes()].concat()
    }
}

fn parse_name(bytes: &[u8]) -> Option<(Remote, u32)> {
    let (stag, rest) = bytes.split_first_chunk()?;
    let (to, rest) = rest.split_first_chunk()?;
    let slots = u32::from_le_bytes(*rest.first_chunk()?);
    let remote = Remote { stag: u32::from_le_bytes(*stag), to: u64::from_le_bytes(*to) };
    (slots > 0).then_some((remote, slots))
}

fn get(
    pair: &QueuePair,
    completions: &CompletionQueue,
    memory: &MemoryRegion,
    (table, slots): (Remote, u32),
    key: &str,
) -> Outcome<Option<String>> {
    for probe in 0..slots {
        let slot = u64::from((hash(key) + probe) % slots);
        let remote = Remote { to: table.to + slot * SLOT as u64, ..table };
        pair.post_send(&post::read(remote, &[memory.sge(0..SLOT)?])?)?;
        let completion = completions.next(TIMEOUT)?.ok_or("the Read is not complete")?;
        if completion.status != Status::Success {
            return Err(format!("the Read failed: {:?}", completion.status).into());
        }
        let mut bytes = [0; SLOT];
        memory.read(0, &mut bytes);
        let (key_end, value_end) =
            (2 + bytes[0] as usize, 2 + bytes[0] as usize + bytes[1] as usize);
        if key_end == 2 {
            return Ok(None);
        }
        let found = bytes.get(2..key_end).zip(bytes.get(key_end..value_end));
        let (found, value) = found.ok_or("a slot with impossible lengths")?;
        if found == key.as_bytes() {
            return Ok(Some(String::from_utf8_lossy(value).into_owned()));
        }
    }
    Ok(None)
}

/// Returns the first slot for `key`: its FNV-1a hash modulo [`SLOTS`].
fn hash(key: &str) -> u32 {
    let hash = key
        .bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % SLOTS
}
