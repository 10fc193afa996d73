//! Properties: no bytes make the mirror panic. After any sequence of changes and losses the mirror has the kernel's
//! entries.

use std::collections::{BTreeMap, BTreeSet};

use ipsec::policy::{Action, Direction};
use netlink_packet_core::NLM_F_MULTIPART;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::*;
use proptest::prelude::*;
use xfrm::{Event, Mirror, SaId, SequenceState};

use crate::kernel::*;

/// Returns one message of each type that the mirror reads.
fn samples() -> Vec<Vec<u8>> {
    let mut kernel = ModelKernel::new();
    tunnel(1, 1).into_iter().for_each(|policy| kernel.set_policy(policy));
    tunnel(1, 2).into_iter().for_each(|policy| kernel.set_policy(policy));
    kernel.delete_policy(0);
    kernel.flush_policies();
    kernel.add_sa(with_esn(outbound(300, 1), 1, 2, 96));
    let separate = authentication("hmac(sha256)", 32, 128).into_iter();
    let mut message = bare_sa("192.0.2.2", "192.0.2.1", 301, 1);
    message.nlas.extend(separate.chain([encryption("cbc(aes)", 16)]));
    message.nlas.push(XfrmAttrs::ReplayState(Replay::default()));
    message.nlas.push(XfrmAttrs::EncapsulationTemplate(EncapTmpl::default()));
    message.nlas.push(sa_direction(1));
    kernel.add_sa(message.clone());
    kernel.send(XfrmMessage::UpdateSa(message));
    let state = outbound(300, 1).user_sa_info;
    let expire = UserExpire { state, hard: 1 };
    kernel.send(XfrmMessage::Expire(ExpireMessage { expire }));
    kernel.delete_sa(0);
    kernel.flush_sas();
    let pol = tunnel(1, 1)[0].user_policy_info;
    let expire = UserPolicyExpire { pol, hard: 1 };
    kernel.send(XfrmMessage::PolicyExpire(PolicyExpireMessage { expire, nlas: vec![] }));
    kernel.send(XfrmMessage::GetPolicyDefault(Default::default()));
    kernel.send(XfrmMessage::Migrate(Default::default()));
    let mut all: Vec<_> = kernel.socket.into();
    all.extend([2, 3, 4].map(|kind| numeric_message(kind, NLM_F_MULTIPART, 1, -1)));
    all
}

/// Returns a synced mirror with policies and SAs of both directions.
fn mirror_with_entries() -> Mirror {
    let (_, mirror, _) = synced_mirror(tunnel(1, 1), [outbound(300, 1), inbound(400, 1)]);
    mirror
}

#[test]
fn truncated_messages_are_counted() {
    for sample in samples() {
        for len in 0..sample.len() {
            // A truncated datagram is counted as malformed. With a matching length field, the same bytes are a message
            // too short for its type, which must not panic.
            let mut mirror = mirror_with_entries();
            mirror.input(&sample[..len]);
            assert_eq!(mirror.counters().malformed, u64::from(len > 0));
            let mut short = sample[..len].to_vec();
            if let Some(field) = short.first_chunk_mut::<4>() {
                *field = (len as u32).to_ne_bytes();
            }
            mirror.input(&short);
            while mirror.poll_event().is_some() || mirror.poll_transmit().is_some() {}
        }
    }
}

#[test]
fn messages_after_malformed_message_are_processed() {
    let (mut kernel, mut mirror, _) = synced_mirror([], []);
    kernel.set_policy(policy(XFRM_POLICY_OUT, "10.1.0.0/16", "10.2.0.0/16"));
    let mut both = datagram(XfrmMessage::Other((XFRM_MSG_NEWSA, vec![1; 20])), 0, 1);
    both.extend(kernel.socket.pop_front().unwrap());
    mirror.input(&both);
    assert_eq!((mirror.counters().malformed, mirror.policies().count()), (1, 1));
    // The number of waiting warnings is limited.
    (0..100).for_each(|_| mirror.input(&[1]));
    assert_eq!(mirror.counters().warnings_lost, 101 - 64);
    assert_eq!(std::iter::from_fn(|| mirror.poll_event()).count(), 65);
}

/// An event in the kernel, or between the kernel and the mirror.
#[derive(Clone, Debug)]
enum ModelStep {
    Policy {
        net: u8,
        reqid: u32,
        priority: u32,
        block: bool,
    },
    DeletePolicy(usize),
    FlushPolicies,
    Sa {
        number: u32,
        reqid: u32,
        outbound: bool,
    },
    DeleteSa(usize),
    FlushSas,
    /// Delivers up to this many requests to the kernel or datagrams to the mirror.
    Deliver(u8),
    /// The oldest outbound SA requests sequence numbers, and the newest SA of either direction reports its use.
    Use,
    /// The socket overruns: it loses every queued datagram after the first `.0`, except those of a dump. The mirror is
    /// notified of the loss before it reads the others. No effect while a dump is in progress.
    Overrun(usize),
    /// ddpd ends and starts again.
    Restart,
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        4 => (0..4u8, 1..3u32, 1..4u32, prop::bool::weighted(0.1))
            .prop_map(|(net, reqid, priority, block)| ModelStep::Policy { net, reqid, priority, block }),
        2 => (0..8usize).prop_map(ModelStep::DeletePolicy),
        1 => Just(ModelStep::FlushPolicies),
        4 => (0..5u32, 1..3u32, any::<bool>())
            .prop_map(|(number, reqid, outbound)| ModelStep::Sa { number, reqid, outbound }),
        2 => (0..8usize).prop_map(ModelStep::DeleteSa),
        1 => Just(ModelStep::FlushSas),
        6 => (1..6u8).prop_map(ModelStep::Deliver),
        3 => Just(ModelStep::Use),
        1 => (0..3usize).prop_map(ModelStep::Overrun),
        1 => Just(ModelStep::Restart),
    ]
}

/// An SA in the data plane, according to the events.
#[derive(Clone, Copy)]
struct LiveSa {
    direction: Direction,
    spi: u32,
    /// Serial number of the SA among all SAs of the test.
    serial: u32,
}

/// The soft lifetime of an SA is its serial number times this number of packets, so that the lifetime identifies the SA
/// in events. Each SA uses fewer packets.
const PACKETS: u64 = 1_000_000;

/// Offset of the low byte of `nlmsg_flags` in a netlink message, on a little-endian host.
const NLMSG_FLAGS: usize = 6;

/// The kernel, the mirror, the state that its events have reported, and the sequence numbers used with each key.
struct ModelWorld {
    kernel: ModelKernel,
    mirror: Mirror,
    sas: BTreeMap<SaId, LiveSa>,
    list: Option<List>,
    /// Ranges of sequence numbers used with each key, for all SAs of the test.
    used: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Last permitted sequence number of each outbound SA.
    last: BTreeMap<SaId, u64>,
    /// Number of SAs that the test has added to the kernel.
    serials: u32,
}

impl ModelWorld {
    fn new() -> ModelWorld {
        let kernel = ModelKernel { chunk: 2, ..ModelKernel::new() };
        let mut world = ModelWorld {
            kernel,
            mirror: Mirror::new(CONFIG),
            sas: BTreeMap::new(),
            list: None,
            used: BTreeMap::new(),
            last: BTreeMap::new(),
            serials: 0,
        };
        world.mirror.request_dump();
        world
    }

    fn apply_step(&mut self, step: ModelStep) {
        let ModelWorld { kernel, mirror, .. } = self;
        match step {
            ModelStep::Policy { net, reqid, priority, block } => {
                for mut message in tunnel(net, reqid) {
                    message.user_policy_info.priority = priority;
                    message.user_policy_info.action = block.into();
                    kernel.set_policy(message);
                }
            }
            ModelStep::DeletePolicy(at) => kernel.delete_policy(at),
            ModelStep::FlushPolicies => kernel.flush_policies(),
            ModelStep::Sa { number, reqid, outbound: out } => {
                let spi = 300 + number * 2 + u32::from(out);
                if kernel.sas.iter().any(|(_, sa)| sa.user_sa_info.id.spi == spi) {
                    return;
                }
                // Each SA has its own key.
                self.serials += 1;
                let mut message = match out {
                    true => bare_sa("192.0.2.1", "192.0.2.2", spi, reqid),
                    false => bare_sa("192.0.2.2", "192.0.2.1", spi, reqid),
                };
                message.user_sa_info.seq = self.serials;
                let lifetime = &mut message.user_sa_info.lifetime_cfg;
                lifetime.soft_packet_limit = u64::from(self.serials) * PACKETS;
                let key = [&self.serials.to_be_bytes()[..], &[1; 16]].concat();
                message.nlas.push(aead("rfc4106(gcm(aes))", key, 128));
                message.nlas.push(XfrmAttrs::ReplayState(Replay::default()));
                kernel.add_sa(message);
            }
            ModelStep::DeleteSa(at) => kernel.delete_sa(at),
            ModelStep::FlushSas => kernel.flush_sas(),
            ModelStep::Deliver(times) => {
                for _ in 0..times {
                    self.deliver_message();
                }
            }
            ModelStep::Use => {
                if let Some((id, _)) =
                    self.sas.iter().find(|(_, of)| of.direction == Direction::Out)
                {
                    mirror.reserve_sequence(*id);
                }
                if let Some((id, _)) = self.sas.last_key_value() {
                    mirror.report_usage(*id, 1, 100, 1, 1);
                }
            }
            ModelStep::Overrun(kept) => {
                // Datagrams of a dump are not lost.
                if !kernel.is_listing() && kernel.socket.len() > kept {
                    let is_dump = |bytes: &Vec<u8>| bytes[NLMSG_FLAGS] & NLM_F_MULTIPART as u8 != 0;
                    let tail = kernel.socket.split_off(kept);
                    kernel.socket.extend(tail.into_iter().filter(is_dump));
                    mirror.request_dump();
                }
            }
            ModelStep::Restart => {
                kernel.reopen();
                *mirror = Mirror::new(CONFIG);
                self.sas.clear();
                self.last.clear();
                self.list = None;
                self.mirror.request_dump();
            }
        }
        self.handle_events();
    }

    /// Delivers one request or one datagram. Returns false if there is neither.
    fn deliver_message(&mut self) -> bool {
        if let Some(request) = self.mirror.poll_transmit() {
            self.kernel.handle_request(&request);
        } else if let Some(datagram) = self.kernel.socket.pop_front() {
            self.mirror.input(&datagram);
        } else if self.kernel.is_listing() {
            self.kernel.list_entries();
        } else {
            return false;
        }
        self.handle_events();
        true
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.mirror.poll_event() {
            match event {
                Event::Policies { list, unselected, protections } => {
                    assert!(self.mirror.is_synced());
                    let reported = (list, unselected, protections);
                    assert_ne!(self.list.as_ref(), Some(&reported), "the same list twice");
                    self.list = Some(reported);
                }
                Event::AddSa { id, direction, parameters, sequence, protection } => {
                    let (_, _, protections) = self.list.as_ref().unwrap();
                    assert!(protections.iter().any(|info| info.protection == protection));
                    let spi = parameters.spi;
                    let serial = parameters.soft.packets.unwrap().div_ceil(PACKETS) as u32;
                    assert!(self.sas.insert(id, LiveSa { direction, spi, serial }).is_none());
                    if let SequenceState::Outbound { first, numbers } = sequence {
                        self.record_sent(id, serial, first, first + numbers - 1);
                    }
                }
                Event::Reserved { id, last } => {
                    let first = self.last[&id] + 1;
                    self.record_sent(id, self.sas[&id].serial, first, last);
                }
                Event::SelectSa { id } => {
                    assert_eq!(self.sas[&id].direction, Direction::Out);
                }
                Event::RemoveSa { id } => {
                    assert!(self.sas.remove(&id).is_some());
                }
                Event::Refused { .. } => panic!("{event:?}"),
                Event::Warning(_) => {}
            }
        }
    }

    /// Asserts that none of the numbers `first` to `last` was used before with the same key, and that the kernel has
    /// recorded them as sent. `serial`: serial number of the SA, which identifies its key.
    fn record_sent(&mut self, id: SaId, serial: u32, first: u64, last: u64) {
        self.last.insert(id, last);
        let ranges = self.used.entry(serial).or_default();
        assert!(ranges.iter().all(|(from, to)| last < *from || *to < first), "used twice");
        ranges.push((first, last));
        // The kernel may have deleted the SA since.
        let live = self.kernel.sas.iter().find(|(_, sa)| sa.user_sa_info.seq == serial);
        if let Some((_, sa)) = live {
            assert!(self.kernel.oseq(sa.user_sa_info.id.spi) >= last, "not reserved");
        }
    }

    fn drain_and_check(mut self) {
        while self.deliver_message() {}
        self.mirror.request_dump();
        while self.deliver_message() {}
        let mut fresh = Mirror::new(CONFIG);
        fresh.request_dump();
        let mut kernel = self.kernel;
        let events = kernel.run(&mut fresh);
        let reported = self.list.as_ref().expect("a list");
        assert_eq!(comparable_list(reported), comparable_list(&list(&events)));
        let mut expected = BTreeSet::new();
        for event in &events {
            if let Event::AddSa { direction, parameters, .. } = event {
                expected.insert((*direction, parameters.spi));
            }
        }
        let live: BTreeSet<_> = self.sas.values().map(|of| (of.direction, of.spi)).collect();
        assert_eq!(live, expected);
        assert_eq!(self.sas.len(), expected.len());
        let shown: BTreeSet<_> = self.mirror.sas().filter_map(|info| info.id).collect();
        assert_eq!(shown, self.sas.keys().copied().collect());
    }
}

/// Returns a list as text, with the protections' properties instead of their numbers.
fn comparable_list((list, unselected, protections): &List) -> Vec<String> {
    let name = |policy: &ipsec::policy::Policy<_>| {
        let action = match &policy.action {
            Action::Protect(number) => {
                protections.iter().find(|info| info.protection == *number).unwrap().to_string()
            }
            other => format!("{other:?}"),
        };
        format!("{:?} {:?} {action} {unselected:?}", policy.direction, policy.selector)
    };
    list.iter().map(name).collect()
}

proptest! {
    #[test]
    fn arbitrary_datagrams_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        kind in 0..0x2au16,
        sequence in 0..9u32,
        multipart in any::<bool>(),
    ) {
        let flags = if multipart { NLM_F_MULTIPART } else { 0 };
        let mut mirror = mirror_with_entries();
        mirror.request_dump();
        mirror.poll_transmit();
        mirror.input(&bytes);
        mirror.input(&datagram(XfrmMessage::Other((kind, bytes)), flags, sequence));
        while mirror.poll_event().is_some() || mirror.poll_transmit().is_some() {}
    }

    #[test]
    fn mutated_messages_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let samples = samples();
        let mut sample = samples[which.index(samples.len())].clone();
        for (at, byte) in changes {
            let at = at.index(sample.len());
            sample[at] = byte;
        }
        let mut mirror = mirror_with_entries();
        mirror.input(&sample);
        while mirror.poll_event().is_some() || mirror.poll_transmit().is_some() {}
    }

    #[test]
    fn mirror_converges_to_kernel_state(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = ModelWorld::new();
        steps.into_iter().for_each(|step| world.apply_step(step));
        world.drain_and_check();
    }
}
