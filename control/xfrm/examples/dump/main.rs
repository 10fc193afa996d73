//! Prints the kernel's policies and SAs as the data plane would receive them, then every change. Keys are not printed.
//!
//! usage: dump [--once] [--reserve]
//!
//! Needs CAP_NET_ADMIN. Outbound SAs appear as added only with `--reserve`. The kernel then records sequence numbers as
//! sent, so `--reserve` must not be used on a host whose kernel encrypts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod socket;

use std::io;

use socket::{Groups, Received, Socket};
use xfrm::{Event, Mirror, MirrorConfig};

/// `XFRM_MSG_NEWAE`, which reserves sequence numbers.
const NEWAE: [u8; 2] = 0x1eu16.to_ne_bytes();

fn main() -> io::Result<()> {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let (once, reserve) = (has("--once"), has("--reserve"));
    let socket = Socket::open(Groups::MIRROR, None)?;
    let mut mirror = Mirror::new(MirrorConfig::default());
    mirror.request_dump();
    loop {
        while let Some(request) = mirror.poll_transmit() {
            if reserve || request.get(4..6) != Some(&NEWAE) {
                socket.send(&request)?;
            }
        }
        while let Some(event) = mirror.poll_event() {
            print(&event);
        }
        if once && mirror.is_synced() {
            show(&mirror);
            return Ok(());
        }
        match socket.receive()? {
            Received::Datagram(datagram) => mirror.input(&datagram),
            Received::Overrun => {
                println!("messages were lost: everything is listed again");
                mirror.request_dump();
            }
            Received::Timeout => {}
        }
    }
}

fn print(event: &Event) {
    match event {
        Event::Policies { list, unselected, protections } => {
            println!("policies: {} ({unselected:?})", list.len());
            for policy in list {
                println!("  {policy:?}");
            }
            for protection in protections {
                println!("  protection {}: {protection}", protection.protection.0);
            }
        }
        other => println!("{other:?}"),
    }
}

fn show(mirror: &Mirror) {
    for policy in mirror.policies() {
        println!("{policy:?}");
    }
    for sa in mirror.sas() {
        println!("{sa:?}");
    }
}
