//! Workers of the test appliance, which carry out posts between its programs.

use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, Opcode, Operation, Payload, ReceiveWork, Remote,
    SendWork, Sge, Status, WindowAccess, WindowBind,
};
use verbs_session::message::MemoryAccess;

use rustix::net::SendFlags;

use super::{Program, Region, World};

impl World {
    /// Carries out the posts of all queues whose doorbells were rung. Returns true if any was rung.
    pub(super) fn turn(&mut self) -> bool {
        let mut rung = Vec::new();
        for (number, program) in &mut self.programs {
            for (worker, at) in program.workers.iter_mut().enumerate() {
                let mut budget = 64;
                while let Some(queue) = at.scanner.next_queue(&mut budget) {
                    rung.push((*number, queue / 2, worker));
                }
            }
        }
        for &(program, pair, worker) in &rung {
            let Some(this) = self.programs.get_mut(&program).and_then(|p| p.pairs.get_mut(&pair))
            else {
                continue;
            };
            // The program does not know the worker of a QP that has ended without a connection, and rings the doorbells
            // at all workers.
            if this.ended && this.peer.is_none() && this.worker != worker {
                continue;
            }
            assert_eq!(this.worker, worker, "the doorbell of another worker");
            if this.ended {
                self.programs.get_mut(&program).unwrap().flush_posts(pair);
                continue;
            }
            if let Some(receives) = &mut this.receives {
                while let Some(units) = receives.pop().unwrap() {
                    this.receive.push_back(ReceiveWork::decode(&units).unwrap());
                }
                receives.release();
            }
            let peer = this.peer;
            self.serve_sends(program, pair);
            if let Some((other, number)) = peer {
                self.serve_sends(other, number);
            }
        }
        !rung.is_empty()
    }

    fn serve_sends(&mut self, program: u32, number: u32) {
        loop {
            let this = self.programs.get_mut(&program).and_then(|p| p.pairs.get_mut(&number));
            let Some(pair) = this.filter(|pair| !pair.ended) else { return };
            let Some(peer) = pair.peer else { return };
            let work = match pair.stalled.take() {
                Some(work) => work,
                None => match pair.sends.pop().unwrap() {
                    Some(units) => SendWork::decode(&units).unwrap(),
                    None => return,
                },
            };
            pair.sends.release();
            if let Err(work) = self.carry_out((program, number), peer, work) {
                let this = self.programs.get_mut(&program).unwrap();
                this.pairs.get_mut(&number).unwrap().stalled = Some(*work);
                return;
            }
        }
    }

    /// Carries out an operation. Returns the operation as an error if it must wait for a Receive of the peer.
    fn carry_out(
        &mut self,
        from: (u32, u32),
        to: (u32, u32),
        work: SendWork,
    ) -> Result<(), Box<SendWork>> {
        let mut status = Status::Success;
        let mut byte_len = 0;
        let is_lost = self.lost == Some(work.operation.opcode());
        match &work.operation {
            Operation::Send { payload, solicited }
            | Operation::SendInvalidate { payload, solicited, .. } => {
                let bytes = self.programs[&from.0].gather(payload);
                let carried = match work.operation {
                    Operation::SendInvalidate { stag, .. } => {
                        self.programs.get_mut(&to.0).unwrap().invalidate(stag);
                        Carried::Invalidated(stag)
                    }
                    _ => Carried::Nothing,
                };
                if !self.deliver(to, &bytes, *solicited, carried) {
                    return Err(Box::new(work));
                }
            }
            Operation::Immediate { data, solicited } => {
                if !self.deliver(to, &[], *solicited, Carried::Immediate(*data)) {
                    return Err(Box::new(work));
                }
            }
            Operation::Write { remote, payload } => {
                let bytes = self.programs[&from.0].gather(payload);
                match self.programs[&to.0].place(*remote, bytes.len(), |a| a.remote_write) {
                    Some(_) if is_lost => {}
                    Some(place) => self.programs[&to.0].store(place, &bytes),
                    None => status = Status::RemoteAccess,
                }
            }
            Operation::Read { remote, sinks } => {
                let mut bytes = vec![0; sinks.total_len() as usize];
                byte_len = sinks.total_len();
                match self.programs[&to.0].place(*remote, bytes.len(), |a| a.remote_read) {
                    Some(_) if is_lost => {}
                    Some(place) => {
                        self.programs[&to.0].load(place, &mut bytes);
                        self.programs[&from.0].scatter(sinks.sges(), &bytes);
                    }
                    None => status = Status::RemoteAccess,
                }
            }
            Operation::CompareSwap { remote, compare, swap, result } => {
                byte_len = 8;
                status = self.atomic(from.0, to.0, *remote, *result, |old| {
                    if old == *compare { *swap } else { old }
                });
            }
            Operation::FetchAdd { remote, add, result } => {
                byte_len = 8;
                status = self.atomic(from.0, to.0, *remote, *result, |old| old.wrapping_add(*add));
            }
            Operation::LocalInvalidate { stag } => {
                if !self.programs.get_mut(&from.0).unwrap().invalidate(*stag) {
                    status = Status::LocalProtection;
                }
            }
            Operation::BindWindow(bind) => {
                if !self.programs.get_mut(&from.0).unwrap().bind(bind) {
                    status = Status::WindowBind;
                }
            }
        }
        if work.signalled || status != Status::Success {
            self.complete_send(from, &work, status, byte_len);
        }
        Ok(())
    }

    fn complete_send(&mut self, from: (u32, u32), work: &SendWork, status: Status, byte_len: u32) {
        let completed = Completed::Sent(work.operation.opcode());
        let qp_number = from.1;
        let completion = Completion { wr_id: work.wr_id, status, completed, byte_len, qp_number };
        let program = self.programs.get_mut(&from.0).unwrap();
        let pair = &program.pairs[&from.1];
        let (queue, worker) = (pair.send_queue, pair.worker);
        program.complete(queue, worker, &completion);
    }

    /// Places a message into the next Receive of a QP and completes it. Returns false if there is no Receive.
    fn deliver(&mut self, to: (u32, u32), bytes: &[u8], solicited: bool, carried: Carried) -> bool {
        let Some(program) = self.programs.get_mut(&to.0) else { return true };
        let Some(pair) = program.pairs.get_mut(&to.1) else { return true };
        let (queue, worker, shared) = (pair.receive_queue, pair.worker, pair.shared);
        let work = match shared {
            Some(shared) => {
                let units = program.shared[&shared].receives.pop().unwrap();
                units.map(|units| ReceiveWork::decode(&units).unwrap())
            }
            None => pair.receive.pop_front(),
        };
        let Some(work) = work else { return false };
        let fits = work.buffers.total_len() as usize >= bytes.len();
        if fits {
            program.scatter(work.buffers.sges(), bytes);
        }
        let completion = Completion {
            wr_id: work.wr_id,
            status: if fits { Status::Success } else { Status::LocalLength },
            completed: Completed::Received { solicited, carried },
            byte_len: bytes.len() as u32,
            qp_number: to.1,
        };
        program.complete(queue, worker, &completion);
        if let Some(shared) = shared {
            self.report_low(to.0, shared);
        }
        true
    }

    fn atomic(
        &self,
        from: u32,
        to: u32,
        remote: Remote,
        result: AtomicResult,
        change: impl Fn(u64) -> u64,
    ) -> Status {
        let Some(place) = self.programs[&to].place(remote, 8, |access| access.remote_atomic) else {
            return Status::RemoteAccess;
        };
        let mut old = [0; 8];
        self.programs[&to].load(place, &mut old);
        let new = change(u64::from_le_bytes(old));
        self.programs[&to].store(place, &new.to_le_bytes());
        let sge = Sge { address: result.address, len: 8, lkey: result.lkey };
        self.programs[&from].scatter(&[sge], &old);
        Status::Success
    }
}

impl Program {
    fn complete(&mut self, queue: u32, worker: usize, completion: &Completion) {
        let queue = self.queues.get_mut(&queue).unwrap();
        queue.producers[worker].push(completion).unwrap();
        if queue.producers[worker].must_signal()
            && let Some(channel) = queue.channel
        {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.channels[&channel], &[1], flags);
        }
    }

    /// Invalidates a window. Returns false if it is not bound with this STag.
    fn invalidate(&mut self, stag: u32) -> bool {
        let is_window = self.regions.get(&stag).is_some_and(|region| region.of.is_some());
        is_window && self.regions.remove(&stag).is_some()
    }

    /// Binds a window, or ends its binding if the length is 0. Returns false if the window or the range does not exist.
    fn bind(&mut self, bind: &WindowBind) -> bool {
        if !self.windows.contains(&(bind.window >> 8)) {
            return false;
        }
        self.regions.retain(|stag, _| stag >> 8 != bind.window >> 8);
        if bind.len == 0 {
            return true;
        }
        let remote = Remote { stag: bind.region, to: bind.address };
        let Some(place) = self.place(remote, bind.len as usize, |_| true) else { return false };
        let Place { parts, at } = place;
        let WindowAccess { remote_write, remote_read, remote_atomic, zero_based } = bind.access;
        let access = MemoryAccess { local_write: false, remote_write, remote_read, remote_atomic };
        let address = if zero_based { 0 } else { bind.address };
        let of = Some(bind.region);
        self.regions.insert(bind.window, Region { address, len: bind.len, parts, at, access, of });
        true
    }

    pub(super) fn flush_posts(&mut self, number: u32) {
        let pair = self.pairs.get_mut(&number).unwrap();
        let mut sends: Vec<(u64, Opcode)> = Vec::new();
        sends.extend(pair.stalled.take().map(|work| (work.wr_id, work.operation.opcode())));
        while let Some(units) = pair.sends.pop().unwrap() {
            let work = SendWork::decode(&units).unwrap();
            sends.push((work.wr_id, work.operation.opcode()));
        }
        while let Some(units) = pair.receives.as_mut().and_then(|own| own.pop().unwrap()) {
            pair.receive.push_back(ReceiveWork::decode(&units).unwrap());
        }
        let receives = std::mem::take(&mut pair.receive);
        let (send_queue, receive_queue, worker) =
            (pair.send_queue, pair.receive_queue, pair.worker);
        let flushed = |wr_id, completed| Completion {
            wr_id,
            status: Status::Flushed,
            completed,
            byte_len: 0,
            qp_number: number,
        };
        for (wr_id, opcode) in sends {
            self.complete(send_queue, worker, &flushed(wr_id, Completed::Sent(opcode)));
        }
        for work in receives {
            let completed = Completed::Received { solicited: false, carried: Carried::Nothing };
            self.complete(receive_queue, worker, &flushed(work.wr_id, completed));
        }
    }

    /// Returns the place of `len` bytes at `remote`, if they are within the region and `permits` accepts
    /// its access rights.
    fn place(
        &self,
        remote: Remote,
        len: usize,
        permits: impl Fn(MemoryAccess) -> bool,
    ) -> Option<Place> {
        let region = self.regions.get(&remote.stag)?;
        let at = remote.to.checked_sub(region.address)?;
        let within = at <= region.len && len as u64 <= region.len - at;
        (within && permits(region.access))
            .then_some(Place { parts: region.parts, at: region.at + at })
    }

    fn gather(&self, payload: &Payload) -> Vec<u8> {
        match payload {
            Payload::Inline(inline) => inline.bytes().to_vec(),
            Payload::Gather(list) => {
                let mut bytes = Vec::new();
                for sge in list.sges() {
                    let mut part = vec![0; sge.len as usize];
                    self.load(self.local(sge), &mut part);
                    bytes.extend(part);
                }
                bytes
            }
        }
    }

    fn scatter(&self, sges: &[Sge], mut bytes: &[u8]) {
        for sge in sges {
            let (part, rest) = bytes.split_at((sge.len as usize).min(bytes.len()));
            self.store(self.local(sge), part);
            bytes = rest;
        }
    }

    fn load(&self, place: Place, mut to: &mut [u8]) {
        place.for_each_part(to.len(), |at, len| {
            let (part, rest) = std::mem::take(&mut to).split_at_mut(len);
            self.arena.read(at, part);
            to = rest;
        });
    }

    fn store(&self, place: Place, mut bytes: &[u8]) {
        place.for_each_part(bytes.len(), |at, len| {
            let (part, rest) = bytes.split_at(len);
            self.arena.write(at, part);
            bytes = rest;
        });
    }

    fn local(&self, sge: &Sge) -> Place {
        let remote = Remote { stag: sge.lkey, to: sge.address };
        self.place(remote, sge.len as usize, |_| true).expect("an SGE within its region")
    }
}

/// Bytes of a region: `at` is the offset of the first byte in the concatenation of `parts`.
#[derive(Clone, Copy)]
struct Place {
    parts: &'static [(u64, u64)],
    at: u64,
}

impl Place {
    /// Splits the `len` bytes from this place on at the ends of parts. Calls `with` with the arena offset and the
    /// length of each piece.
    fn for_each_part(self, len: usize, mut with: impl FnMut(usize, usize)) {
        let (mut skip, mut left) = (self.at, len as u64);
        for &(start, end) in self.parts {
            let piece = (end - start).saturating_sub(skip).min(left);
            if piece > 0 {
                with((start + skip) as usize, piece as usize);
            }
            skip = skip.saturating_sub(end - start);
            left -= piece;
        }
        assert_eq!(left, 0, "bytes outside of the region's parts");
    }
}
