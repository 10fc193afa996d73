//! Tests of completions and events as futures.

use super::world::Appliance;
use super::{Side, connect, create_pair};
use crate::{
    AcceptOptions, AsyncCompletions, AsyncEvents, ConnectOptions, Error, Event, PairEvent,
    SendWork, Transport, post,
};

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(future);
}

#[test]
fn messages_go_back_and_forth_between_two_tasks() {
    let appliance = Appliance::start();
    let sides = [0, 1].map(|_| Side::new(appliance.session(), 4));
    connect(&sides[0].pair, &sides[1].pair, &sides[1].session);
    run(async {
        let receive = post::receive(1, &[]).unwrap();
        let work = SendWork { signalled: false, ..post::send(post::inline(&[]).unwrap()) };
        sides.iter().for_each(|side| side.pair.post_receive(&receive).unwrap());
        sides[0].pair.post_send(&work).unwrap();
        let play = async |side: &Side| {
            let completions = AsyncCompletions::new(side.completions.clone()).unwrap();
            for _ in 0..500 {
                assert_eq!(completions.next().await.unwrap().wr_id, 1);
                side.pair.post_receive(&receive).unwrap();
                side.pair.post_send(&work).unwrap();
            }
        };
        tokio::join!(play(&sides[0]), play(&sides[1]));
    });
}

#[test]
fn events_and_the_end_of_the_session_are_reported() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
    run(async {
        let [mine, theirs] =
            [&client, &server].map(|side| AsyncEvents::new(side.session.clone()).unwrap());
        for port in [4000, 4001] {
            let address = ([10, 0, 0, 2], port).into();
            let listener = server.session.listen(address, Transport::Tcp, 1).unwrap();
            let from = create_pair(&client.domain, &client.completions, 4);
            let to = create_pair(&server.domain, &server.completions, 4);
            from.start_connect(address, &ConnectOptions::default()).unwrap();
            let Event::Incoming(request) = theirs.next().await.unwrap() else { panic!() };
            request.start_accept(&to, &AcceptOptions::default()).unwrap();
            for (events, pair) in [(&mine, &from), (&theirs, &to)] {
                let event = events.next().await.unwrap();
                let Event::Pair { pair: number, event: PairEvent::Established(_) } = event else {
                    panic!("{event:?}")
                };
                assert_eq!(number, pair.number());
            }
            drop((from, listener));
            let event = theirs.next().await.unwrap();
            assert!(matches!(event, Event::Pair { event: PairEvent::Disconnected { .. }, .. }));
        }
        appliance.stop();
        assert!(matches!(mine.next().await, Err(Error::Disconnected(_))));
    });
}
