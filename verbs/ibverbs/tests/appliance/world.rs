//! Objects of the tests: a device with its PD, CQ and registered memory, and pairs of connected QPs.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ibverbs::api::completion::{ibv_create_comp_channel, ibv_create_cq};
use ibverbs::api::context::ibv_open_device;
use ibverbs::api::device::{ibv_free_device_list, ibv_get_device_list};
use ibverbs::api::domain::ibv_alloc_pd;
use ibverbs::api::memory::ibv_reg_mr;
use ibverbs::api::queue_pair::{ibv_create_qp, ibv_modify_qp};
use ibverbs::bindings::*;
use ibverbs::dispatcher::{ConnectionEvents, SessionEvents, set_connection_events};
use ibverbs::instance::Instance;
use ibverbs::queue_pair::QueuePair;
use verbs_client::{AcceptOptions, ConnectOptions, ConnectionRequest, PairEvent, Transport};

/// Time without progress after which a test fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Bytes of the registered memory.
pub(crate) const BYTES: usize = 1 << 16;

pub(crate) const ALL_RIGHTS: c_int = (IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC) as c_int;

struct Requests {
    sender: Mutex<Sender<ConnectionRequest>>,
    receiver: Mutex<Receiver<ConnectionRequest>>,
    hook: Mutex<Option<(u32, Hook)>>,
    /// Numbers of QPs whose connection has ended.
    ended: Mutex<HashSet<u32>>,
}

/// Function that the dispatcher's thread calls while it handles an event of a QP.
pub(crate) type Hook = Box<dyn FnOnce() + Send>;

static REQUESTS: OnceLock<Requests> = OnceLock::new();

impl SessionEvents for Requests {
    fn incoming(&self, request: ConnectionRequest) {
        let _ = self.sender.lock().unwrap().send(request);
    }

    fn ended(&self, _instance: &Arc<Instance>) {}
}

impl ConnectionEvents for Requests {
    fn pair(&self, pair: &Arc<QueuePair>, event: PairEvent) {
        if let PairEvent::Disconnected { .. } = event {
            self.ended.lock().unwrap().insert(pair.number());
        }
        let mut hook = self.hook.lock().unwrap();
        if let Some((_, hook)) = hook.take_if(|(number, _)| *number == pair.number()) {
            hook();
        }
    }
}

fn requests() -> &'static Requests {
    let requests = REQUESTS.get_or_init(|| {
        let (sender, receiver) = channel();
        Requests {
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            hook: Mutex::default(),
            ended: Mutex::default(),
        }
    });
    set_connection_events(requests);
    requests
}

/// A device with its PD, channel, CQ and registered memory. Not freed before the process ends.
pub(crate) struct World {
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) queue: *mut ibv_cq,
    pub(crate) region: *mut ibv_mr,
    memory: *mut u8,
}

impl World {
    pub(crate) fn new() -> World {
        let mut count = 0;
        // SAFETY: this library created the pointers, and they are valid.
        unsafe {
            let list = ibv_get_device_list(&raw mut count);
            assert!(!list.is_null() && count > 0, "no device: is DDPD_PROGRAMS_SOCKET set?");
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            let domain = ibv_alloc_pd(context);
            let channel = ibv_create_comp_channel(context);
            let queue = ibv_create_cq(context, 256, null_mut(), channel, 0);
            let memory = Box::leak(vec![0_u8; BYTES].into_boxed_slice()).as_mut_ptr();
            let region = ibv_reg_mr(domain, memory.cast(), BYTES, ALL_RIGHTS);
            assert!(!queue.is_null() && !region.is_null());
            World { context, domain, channel, queue, region, memory }
        }
    }

    pub(crate) fn create_pair(&self) -> *mut ibv_qp {
        self.create_pair_with(self.queue, null_mut())
    }

    pub(crate) fn create_pair_with(&self, queue: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let mut attr = ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            srq,
            cap,
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: the pointers are valid.
        let pair = unsafe { ibv_create_qp(self.domain, &raw mut attr) };
        assert!(!pair.is_null());
        assert!(attr.cap.max_send_wr >= 16 && attr.cap.max_inline_data >= 64);
        assert_eq!(modify(pair, IBV_QPS_INIT), 0);
        pair
    }

    /// Returns two connected QPs. The first one has connected, and sends first.
    pub(crate) fn connected(&self) -> (*mut ibv_qp, *mut ibv_qp) {
        let pairs = (self.create_pair(), self.create_pair());
        connect(pairs.0, pairs.1);
        pairs
    }

    pub(crate) fn address(&self, at: usize) -> u64 {
        self.memory.addr() as u64 + at as u64
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: within the memory, which no operation uses at this moment.
        unsafe { self.memory.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= BYTES);
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts(self.memory.add(at), length) }.to_vec()
    }

    pub(crate) fn sge(&self, at: usize, length: usize) -> ibv_sge {
        // SAFETY: the region exists.
        let lkey = unsafe { (*self.region).lkey };
        ibv_sge { addr: self.address(at), length: length as u32, lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region exists.
        unsafe { (*self.region).rkey }
    }

    /// Waits for the next completion.
    pub(crate) fn next(&self) -> ibv_wc {
        next(self.queue)
    }
}

pub(crate) fn modify(pair: *mut ibv_qp, state: ibv_qp_state) -> c_int {
    let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    // SAFETY: the pointers are valid.
    unsafe { ibv_modify_qp(pair, &raw mut attr, IBV_QP_STATE as c_int) }
}

/// Locks the receiver of connection requests: only one test connects at a time.
fn turn() -> MutexGuard<'static, Receiver<ConnectionRequest>> {
    requests().receiver.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn connect(from: *mut ibv_qp, to: *mut ibv_qp) {
    let requests = turn();
    let (from, to) = (QueuePair::find(from).unwrap(), QueuePair::find(to).unwrap());
    self::requests().ended.lock().unwrap().retain(|n| ![from.number(), to.number()].contains(n));
    let session = from.context().session().clone();
    let local = SocketAddr::new(session.devices()[0].addresses[0], 0);
    let listener = session.listen(local, Transport::Tcp, 4).unwrap();
    from.native().start_connect(listener.local(), &ConnectOptions::default()).unwrap();
    let request = requests.recv_timeout(LONG).unwrap();
    request.start_accept(to.native(), &AcceptOptions::default()).unwrap();
    for pair in [&from, &to] {
        wait("established", || pair.state() == IBV_QPS_RTS);
    }
}

/// Lets the dispatcher call `hook` at the next event of a QP, while it refers to the QP. A further call for any QP
/// replaces the hook.
pub(crate) fn hook_next_event(pair: *mut ibv_qp, hook: Hook) {
    let number = QueuePair::find(pair).unwrap().number();
    *requests().hook.lock().unwrap() = Some((number, hook));
}

/// Waits until the dispatcher has handled the end of a QP's connection.
pub(crate) fn wait_for_end(pair: *mut ibv_qp) {
    let number = QueuePair::find(pair).unwrap().number();
    wait("ended", || requests().ended.lock().unwrap().contains(&number));
}

/// Waits until a condition holds.
pub(crate) fn wait(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}: nothing for {LONG:?}");
        std::thread::yield_now();
    }
}

/// Polls at most one completion.
pub(crate) fn poll(queue: *mut ibv_cq) -> Option<ibv_wc> {
    let mut to = ibv_wc::default();
    // SAFETY: the queue exists, and there is room for one completion.
    let count = unsafe { (*(*queue).context).ops.poll_cq.unwrap()(queue, 1, &raw mut to) };
    assert!(count >= 0, "{count}");
    (count == 1).then_some(to)
}

pub(crate) fn next(queue: *mut ibv_cq) -> ibv_wc {
    let mut found = None;
    wait("completed", || {
        found = poll(queue);
        found.is_some()
    });
    found.unwrap()
}

/// Posts one send request.
pub(crate) fn post_send(pair: *mut ibv_qp, mut request: ibv_send_wr) -> c_int {
    let mut bad = null_mut();
    let first = &raw mut request;
    // SAFETY: the pointers are valid.
    let result = unsafe { (*(*pair).context).ops.post_send.unwrap()(pair, first, &raw mut bad) };
    assert!(if result == 0 { bad.is_null() } else { bad == first });
    result
}

/// Posts one receive.
pub(crate) fn post_recv(pair: *mut ibv_qp, wr_id: u64, mut sge: ibv_sge) -> c_int {
    let mut request = receive(wr_id, &mut sge);
    let mut bad = null_mut();
    // SAFETY: the pointers are valid.
    unsafe { (*(*pair).context).ops.post_recv.unwrap()(pair, &raw mut request, &raw mut bad) }
}

pub(crate) fn receive(wr_id: u64, sge: &mut ibv_sge) -> ibv_recv_wr {
    ibv_recv_wr { wr_id, next: null_mut(), sg_list: sge, num_sge: 1 }
}

/// Returns a signalled request with one SGE.
pub(crate) fn request(wr_id: u64, opcode: ibv_wr_opcode, sge: &mut ibv_sge) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        sg_list: sge,
        num_sge: 1,
        opcode,
        send_flags: IBV_SEND_SIGNALED,
        ..ibv_send_wr::default()
    }
}

pub(crate) fn rdma(mut request: ibv_send_wr, address: u64, rkey: u32) -> ibv_send_wr {
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = rkey;
    request
}

/// Returns the errno of the thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub(crate) const NULL: *mut c_void = null_mut();
