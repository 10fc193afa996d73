//! Hostile sessions: random calls and events in random order. Each call has one reply, and no object remains at the
//! end.

use proptest::prelude::*;
use verbs_session::message::WindowKind;

use super::*;

/// A random step of the test.
#[derive(Clone, Debug)]
enum Input {
    Call(Call),
    /// Lets the workers answer all commands.
    Settle,
    Establish,
    FailConnect,
    Request,
    EstablishAccepted,
    EndStream(usize),
    HangUp,
}

fn call() -> impl Strategy<Value = Call> {
    // Mostly numbers of existing objects.
    let number = || prop_oneof![9 => 0u32..3, 1 => any::<u32>()];
    let access = any::<[bool; 4]>().prop_map(|[w, a, b, c]| MemoryAccess {
        local_write: w,
        remote_write: a && w,
        remote_read: b,
        remote_atomic: c && w,
    });
    let parts = prop_oneof![
        9 => (0u64..3).prop_map(|at| vec![(at * PAGE, (at + 1) * PAGE)]),
        1 => prop::collection::vec(any::<(u64, u64)>(), 0..4),
    ];
    let request = || prop_oneof![9 => 1u64..8, 1 => any::<u64>()];
    let data = || prop::collection::vec(any::<u8>(), 0..520);
    let depths = || (0u16..140, 0u16..140).prop_map(|(ird, ord)| Depths { ird, ord });
    prop_oneof![
        1 => Just(hello()),
        3 => Just(Call::CreatePd),
        1 => number().prop_map(|pd| Call::RemovePd { pd }),
        4 => (number(), prop_oneof![Just(0), any::<u64>()], 0u64..9000, parts, access).prop_map(
            |(pd, address, len, parts, access)| {
                let offset = address % PAGE;
                Call::RegisterMemory { pd, address, len, offset, parts, access }
            }
        ),
        1 => any::<u32>().prop_map(|stag| Call::DeregisterMemory { stag }),
        2 => (number(), any::<bool>()).prop_map(|(pd, one)| {
            let kind = if one { WindowKind::One } else { WindowKind::Two };
            Call::AllocateWindow { pd, kind }
        }),
        1 => any::<u32>().prop_map(|stag| Call::DeallocateWindow { stag }),
        2 => Just(Call::CreateChannel),
        1 => number().prop_map(|channel| Call::RemoveChannel { channel }),
        3 => (0u32..300, prop::option::of(number()))
            .prop_map(|(entries, channel)| Call::CreateCompletionQueue { entries, channel }),
        1 => number().prop_map(|queue| Call::RemoveCompletionQueue { queue }),
        2 => (number(), 0u32..70)
            .prop_map(|(pd, max_receives)| Call::CreateSharedReceiveQueue { pd, max_receives }),
        1 => number().prop_map(|queue| Call::RemoveSharedReceiveQueue { queue }),
        1 => (number(), number()).prop_map(|(queue, limit)| Call::SetReceiveLimit { queue, limit }),
        5 => (number(), number(), number(), 0u32..70, 0u32..70, prop::option::of(number())).prop_map(
            |(pd, send_completions, receive_completions, max_sends, max_receives, shared_receives)| {
                let copy_sources = max_sends % 2 == 0;
                Call::CreateQueuePair {
                    pd,
                    send_completions,
                    receive_completions,
                    max_sends,
                    max_receives,
                    copy_sources,
                    shared_receives,
                }
            }
        ),
        2 => number().prop_map(|pair| Call::RemoveQueuePair { pair }),
        6 => (number(), depths(), data(), any::<bool>()).prop_map(
            |(pair, depths, private_data, is_known)| {
                let mut call = ConnectCall { depths, private_data, ..connect_call(pair) };
                if !is_known {
                    call.remote = LOCAL.parse().unwrap();
                }
                Call::Connect(call)
            }
        ),
        3 => prop_oneof![Just(4000), Just(0), any::<u16>()].prop_map(listen),
        1 => number().prop_map(|listener| Call::StopListening { listener }),
        5 => (request(), number(), depths(), data()).prop_map(
            |(request, pair, depths, private_data)| {
                Call::Accept { request, pair, depths, private_data }
            }
        ),
        1 => (request(), data())
            .prop_map(|(request, private_data)| Call::Reject { request, private_data }),
        2 => number().prop_map(|pair| Call::Disconnect { pair }),
        2 => number().prop_map(|pair| Call::EndQueuePair { pair }),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        12 => call().prop_map(Input::Call),
        4 => Just(Input::Settle),
        2 => Just(Input::Establish),
        1 => Just(Input::FailConnect),
        2 => Just(Input::Request),
        2 => Just(Input::EstablishAccepted),
        1 => (0usize..4).prop_map(Input::EndStream),
        1 => Just(Input::HangUp),
    ]
}

/// Number of calls that a program has sent after [`begin`], including the hello.
const BEGIN: u32 = 6;

/// Creates a protection domain, a CQ, two QPs and a listener, so that most random calls find their objects.
fn begin(rig: &mut Rig, client: &mut Client) {
    let pair = client.create_pair(rig);
    client.create(rig, queue_pair(0, 0));
    client.create(rig, listen(4000));
    assert_eq!((pair, client.next), (0, BEGIN + 1));
}

fn perform(rig: &mut Rig, client: &mut Client, input: Input, next: &mut u64, stags: &[u32]) {
    match input {
        Input::Call(Call::DeregisterMemory { stag }) if !stags.is_empty() => {
            let stag = stags[stag as usize % stags.len()];
            client.send(rig, Call::DeregisterMemory { stag });
        }
        Input::Call(Call::DeallocateWindow { stag }) if !stags.is_empty() => {
            let stag = stags[stag as usize % stags.len()];
            client.send(rig, Call::DeallocateWindow { stag });
        }
        Input::Call(call) => drop(client.send(rig, call)),
        Input::Settle => rig.settle(),
        Input::Establish if !rig.connects.is_empty() => {
            *next += 1;
            rig.establish_connect(*next);
        }
        Input::FailConnect if !rig.connects.is_empty() => {
            rig.fail_connect(dataplane::ConnectError::Unreachable);
        }
        Input::Request if rig.listeners(0).iter().any(|listener| listener.port == 4000) => {
            *next += 1;
            rig.request(*next, 4000);
        }
        Input::EstablishAccepted => {
            if let Some((stream, _)) = rig.accepted.pop()
                && rig.open_streams().contains(&stream)
            {
                rig.establish_accepted(stream);
            }
        }
        Input::EndStream(at) => {
            if let Some(&stream) = rig.open_streams().get(at) {
                rig.end_stream(stream, CloseReason::PeerShutdown);
            }
        }
        Input::Establish | Input::FailConnect | Input::Request | Input::HangUp => {}
    }
    while rig.bench.core.handle_programs(rig.bench.now) {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_sessions_get_one_reply_per_call_and_leave_nothing(
        inputs in prop::collection::vec(input(), 1..150),
    ) {
        let mut rig = Rig::new(PROGRAMS);
        let (mut program, mut next) = (1, 0);
        let mut client = Client::attach(&mut rig, program);
        begin(&mut rig, &mut client);
        let (mut stags, mut answered) = (Vec::new(), BEGIN);
        for input in inputs {
            if let Input::HangUp = input {
                client.hang_up(&mut rig);
                rig.settle();
                program += 1;
                client = Client::attach(&mut rig, program);
                begin(&mut rig, &mut client);
                (stags, answered) = (Vec::new(), BEGIN);
                continue;
            }
            perform(&mut rig, &mut client, input, &mut next, &stags);
            client.read();
            for (reply, _) in client.replies.drain(..) {
                answered += 1;
                if let Ok(Answer::Registered { stag } | Answer::Window { stag }) = reply.result {
                    stags.push(stag);
                }
            }
            prop_assert!(answered < client.next);
        }
        rig.settle();
        client.read();
        answered += client.replies.drain(..).count() as u32;
        prop_assert_eq!(answered + 1, client.next, "a reply for each call");
        client.hang_up(&mut rig);
        rig.assert_empty();
    }
}
