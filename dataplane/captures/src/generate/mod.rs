//! Generated captures. The same program always writes the same bytes.

mod connection;
mod messages;
mod session;

use connection::{Connection, Cut, Form, Setup};
use oracle::Flaw;

/// A generated capture: its frames, file name and snap length.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Name of the file without its extension. The file `NAME.after-N` omits the first N frames of `NAME`.
    pub name: &'static str,
    /// Ethernet frames in the order of the capture.
    pub frames: Vec<Vec<u8>>,
    /// Maximum captured bytes of a frame.
    pub snap: usize,
}

fn capture(name: &'static str, frames: Vec<Vec<u8>>) -> Capture {
    Capture { name, frames, snap: usize::MAX }
}

/// Returns all generated captures, each with its own name.
pub fn all() -> Vec<Capture> {
    let unmarked = plain(Setup::new(40100), Cut::Aligned);
    let marked = plain(Setup { markers: [true, true], ..Setup::new(40101) }, Cut::Aligned);
    let small = plain(Setup { markers: [true, false], ..Setup::new(40102) }, Cut::Aligned);
    let unchecked = Setup { crc: false, markers: [true, false], ..Setup::new(40103) };
    let unchecked = plain(unchecked, Cut::Aligned);
    vec![
        capture("startup", startup()),
        capture("markers", markers()),
        capture("segments", segments()),
        capture("messages", rdmap_messages()),
        capture("flaws", flaws()),
        capture("bare", messages::bare_ddp()),
        capture("reordered", reordered()),
        capture("duplicates", duplicates()),
        capture("sctp", session::sessions()),
        capture("unmarked.after-5", unmarked[5..].to_vec()),
        capture("unmarked", unmarked),
        capture("marked.after-5", marked[5..].to_vec()),
        capture("marked", marked),
        capture("unchecked.after-8", unchecked[8..].to_vec()),
        capture("unchecked", unchecked),
        Capture { name: "snapped", frames: small, snap: 120 },
    ]
}

/// Returns start-ups: every revision, form and combination of M and C, with IRD and ORD, reject, and private data.
fn startup() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut port = 41000;
    for form in [Form::Key, Form::Revision(0), Form::Revision(1), Form::Revision(2)] {
        for bits in 0..8 {
            let bit = |n: u8| bits >> n & 1 == 1;
            let setup = Setup { form, markers: [bit(0), bit(1)], crc: bit(2), ..Setup::new(port) };
            let sends = [messages::sweep(&[0, 1, 2, 3, 700]), messages::sweep(&[4, 500])];
            frames.extend(Connection::new(setup).play(&sends, Cut::Aligned));
            port += 1;
        }
    }
    for private_data in [Vec::new(), b"why not".to_vec(), vec![7; 508]] {
        for (reject, split) in [(false, Cut::Every(9)), (true, Cut::Aligned)] {
            let form = Form::Revision(2);
            let setup =
                Setup { form, reject, private_data: private_data.clone(), ..Setup::new(port) };
            let sends = if reject { [vec![], vec![]] } else { [messages::sweep(&[10]), vec![]] };
            frames.extend(Connection::new(setup).play(&sends, split));
            port += 1;
        }
    }
    frames
}

/// Returns frames with markers at every position of an FPDU, in each direction. An FPDU has 512 bytes and one marker of
/// 4 bytes, so the marker's position in the FPDU moves by 4 bytes from one FPDU to the next. 129 FPDUs cover all 128
/// positions.
fn markers() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let lengths: Vec<usize> = (0..129).map(|n| 506 - 14 - n % 4).collect();
    for (port, form) in (42000..).zip([Form::Key, Form::Revision(0), Form::Revision(2)]) {
        let setup = Setup { form, markers: [true, true], ..Setup::new(port) };
        let sends = [messages::sweep(&lengths), messages::sweep(&lengths)];
        frames.extend(Connection::new(setup).play(&sends, Cut::Aligned));
    }
    let form = Form::Revision(0);
    let setup = Setup { form, markers: [true, false], draft_pointers: true, ..Setup::new(42003) };
    frames.extend(Connection::new(setup).play(&[messages::sweep(&lengths), vec![]], Cut::Aligned));
    // FPDUs with several markers, and several FPDUs between two markers.
    let setup = Setup { markers: [true, false], isn: 0xffff_f000, ..Setup::new(42010) };
    let large: Vec<usize> = (0..20).map(|n| 1000 + 97 * n).chain((0..60).map(|n| n % 40)).collect();
    frames.extend(Connection::new(setup).play(&[messages::sweep(&large), vec![]], Cut::Aligned));
    frames
}

/// Returns frames with several FPDUs in one segment, and with FPDUs that span segments.
fn segments() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let lengths: Vec<usize> = (0..50).map(|n| n * 37 % 900).collect();
    let cuts =
        [Cut::Packed(1460), Cut::Every(1000), Cut::Every(131), Cut::Every(5), Cut::Every(8948)];
    for (port, (cut, markers)) in
        (43000..).zip(cuts.into_iter().flat_map(|cut| [(cut, false), (cut, true)]))
    {
        let setup = Setup { markers: [markers; 2], isn: 0xffff_ff00, ..Setup::new(port) };
        let lengths = if matches!(cut, Cut::Every(5)) { &lengths[..12] } else { &lengths };
        let sends = [messages::sweep(lengths), messages::sweep(&[80, 90])];
        frames.extend(Connection::new(setup).play(&sends, cut));
    }
    frames
}

fn rdmap_messages() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (port, markers) in [(44000, false), (44001, true)] {
        let setup = Setup { markers: [markers; 2], ..Setup::new(port) };
        let all = messages::rdmap_ulpdus();
        frames.extend(Connection::new(setup).play(&[all.clone(), all], Cut::Packed(1460)));
    }
    for (port, terminate) in (44100..).zip(messages::terminates()) {
        let sends = [messages::sweep(&[8]), vec![(terminate, Flaw::None)]];
        frames.extend(Connection::new(Setup::new(port)).play(&sends, Cut::Aligned));
    }
    frames
}

/// Returns frames with bad CRCs, markers, pads and reserved bits.
fn flaws() -> Vec<Vec<u8>> {
    let flaws = [
        Flaw::BadCrc,
        Flaw::BadPointer(4),
        Flaw::BadPointer(2),
        Flaw::Pad(0xee),
        Flaw::MarkerReserved(0x1234),
        Flaw::BigEndianCrc,
    ];
    let mut frames = Vec::new();
    for (port, flaw) in (45000..).zip(flaws) {
        let setup = Setup { markers: [true, true], ..Setup::new(port) };
        let mut send = messages::sweep(&[600, 601, 602, 603, 20, 600]);
        for (_, each) in &mut send[1..5] {
            *each = flaw;
        }
        frames.extend(Connection::new(setup).play(&[send, vec![]], Cut::Aligned));
    }
    frames
}

fn plain(setup: Setup, cut: Cut) -> Vec<Vec<u8>> {
    let lengths: Vec<usize> = (0..40).map(|n| 300 + n * 53 % 1000).collect();
    let sends = [messages::sweep(&lengths), messages::sweep(&lengths)];
    Connection::new(setup).play(&sends, cut)
}

/// Returns frames with reordered segments.
fn reordered() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (port, (markers, cut)) in (46000..)
        .zip([false, true].into_iter().flat_map(|m| [(m, Cut::Aligned), (m, Cut::Every(1000))]))
    {
        let mut connection = plain(Setup { markers: [markers; 2], ..Setup::new(port) }, cut);
        // The start-up and the first segments stay in order.
        let data = connection.len();
        for at in (8..data.saturating_sub(6)).step_by(7) {
            connection.swap(at, at + 1);
        }
        for at in (11..data.saturating_sub(8)).step_by(13) {
            connection[at..at + 3].rotate_left(1);
        }
        frames.extend(connection);
    }
    frames
}

/// Returns frames with duplicated segments, some of them much later than the original.
fn duplicates() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (port, cut) in [(47000, Cut::Aligned), (47001, Cut::Every(1000))] {
        let connection = plain(Setup { markers: [true, false], ..Setup::new(port) }, cut);
        for (at, frame) in connection.iter().enumerate() {
            frames.push(frame.clone());
            if at > 6 && at % 5 == 0 {
                frames.push(frame.clone());
            }
            if at > 20 && at % 11 == 0 {
                frames.push(connection[at - 9].clone());
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    // The listing of a capture contains every encoded message.
    #[test]
    fn listings_are_complete_and_deterministic() {
        let (first, second) = (all(), all());
        for (one, two) in first.iter().zip(&second) {
            assert_eq!(one.frames, two.frames, "{}", one.name);
        }
        let count = |name: &str| {
            let found = first.iter().find(|capture| capture.name == name).expect("a capture");
            crate::listing::list(&found.frames).len()
        };
        assert_eq!(count("markers"), 3 * (2 + 2 * 129) + (2 + 129) + 2 + 80);
        assert_eq!(count("segments"), 10 * (2 + 50 + 2) - 2 * 38);
        // Reordering and duplication change no listed message.
        assert_eq!(count("unmarked"), 2 + 80);
        assert_eq!(count("reordered"), 4 * (2 + 80));
        assert_eq!(count("duplicates"), 2 * (2 + 80));
        assert_eq!(count("unmarked.after-5"), 0);
    }
}
