//! A capture as a pcapng file: section header, description of the port as an interface, frames, statistics.
//!
//! The file is always big-endian: `pcap-file` writes the times of statistics as one 64-bit number, but the format
//! requires the upper 32 bits first. In a big-endian file the two layouts are identical.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use dataplane::capture::{Direction, Fate, Record};
use dataplane::{Counters, DropCount};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};

/// Bytes reserved for the statistics block at the end.
const STATISTICS_RESERVE: u64 = 256;
/// Maximum length of a frame's block without the frame itself, bytes. Includes the longest comment.
const BLOCK_OVERHEAD: u64 = 256;
/// Time resolution: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Port, filter, limits and start time of a capture.
pub(super) struct CaptureParams {
    /// Name of the port.
    pub(super) name: String,
    /// Kind and location of the port.
    pub(super) description: String,
    /// Filter expression.
    pub(super) filter: String,
    /// Maximum number of captured bytes per frame.
    pub(super) snap: u32,
    /// Maximum length of the file, bytes.
    pub(super) limit: u64,
    /// Start of the capture, nanoseconds since the Unix epoch.
    pub(super) started_at: u64,
}

/// Encoder of the file. Keeps the encoded bytes until [`take`](Self::take).
pub(super) struct CaptureFile {
    writer: PcapNgWriter<OutputBuffer>,
    /// Start of the capture, nanoseconds since the Unix epoch.
    started_at: u64,
    /// Bytes that frames may still occupy in the file.
    remaining: u64,
    /// Names of the drop reasons, indexed by their number.
    reasons: Vec<String>,
}

/// Encoded bytes that have not been taken yet.
#[derive(Default)]
struct OutputBuffer(Vec<u8>);

impl Write for OutputBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl CaptureFile {
    pub(super) fn new(params: CaptureParams) -> CaptureFile {
        let application = concat!("ddpd ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Big,
            options: vec![SectionHeaderOption::UserApplication(application.into())],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(OutputBuffer::default(), section);
        let mut writer = writer.expect("writing to memory cannot fail");
        let mut options = vec![
            InterfaceDescriptionOption::IfName(params.name.into()),
            InterfaceDescriptionOption::IfDescription(params.description.into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        if !params.filter.is_empty() {
            // A filter option that starts with 0 contains the filter as text.
            let filter = [&[0], params.filter.as_bytes()].concat();
            options.push(InterfaceDescriptionOption::IfFilter(Cow::Owned(filter)));
        }
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: params.snap,
            options,
        };
        write(&mut writer, interface);
        let drops = Counters::default();
        let reasons = drops.drops.iter();
        let reasons = reasons.map(|DropCount { layer, reason, .. }| format!("{layer}_{reason}"));
        let left =
            params.limit.saturating_sub(writer.get_ref().0.len() as u64 + STATISTICS_RESERVE);
        CaptureFile {
            reasons: reasons.collect(),
            started_at: params.started_at,
            remaining: left,
            writer,
        }
    }

    /// Adds a frame. Returns false if the frame might exceed the file's limit; later frames are then also refused.
    pub(super) fn add(&mut self, record: &Record) -> bool {
        let most = record.bytes.len() as u64 + BLOCK_OVERHEAD;
        if most > self.remaining {
            self.remaining = 0;
            return false;
        }
        let direction = match record.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        options.extend(self.comment(record.fate).map(EnhancedPacketOption::Comment));
        let before = self.len();
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(record.time),
            original_len: record.len,
            data: Cow::Borrowed(&record.bytes),
            options,
        };
        write(&mut self.writer, block);
        self.remaining = self.remaining.saturating_sub((self.len() - before) as u64);
        true
    }

    /// Returns the comment for a frame that a worker dropped or handed to another worker; `None` for any other frame.
    fn comment(&self, fate: Fate) -> Option<Cow<'static, str>> {
        Some(match fate {
            Fate::Passed => return None,
            Fate::Forwarded => "taken by another worker, which owns its flow".into(),
            Fate::QueueFull => {
                "dropped: tx_dropped: the device took no frames, and the queue before it is full"
                    .into()
            }
            Fate::LinkDown => "dropped: tx_dropped: the link is down".into(),
            Fate::Dropped(reason) => {
                let reason = self.reasons.get(usize::from(reason));
                format!("dropped: {}", reason.map_or("unknown", String::as_str)).into()
            }
        })
    }

    /// Adds the statistics block. `now`: nanoseconds since the Unix epoch. `seen`: number of frames at the port,
    /// `lost`: frames that the capture lost, `delivered`: frames in the file.
    pub(super) fn end(&mut self, now: u64, seen: u64, lost: u64, delivered: u64) {
        let block = InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: now,
            options: vec![
                InterfaceStatisticsOption::IsbStartTime(self.started_at),
                InterfaceStatisticsOption::IsbEndTime(now),
                InterfaceStatisticsOption::IsbIfRecv(seen),
                InterfaceStatisticsOption::IsbIfDrop(0),
                InterfaceStatisticsOption::IsbFilterAccept(delivered + lost),
                InterfaceStatisticsOption::IsbOsDrop(lost),
                InterfaceStatisticsOption::IsbUsrDeliv(delivered),
            ],
        };
        write(&mut self.writer, block);
    }

    /// Returns the number of encoded bytes that have not been taken yet.
    pub(super) fn len(&self) -> usize {
        self.writer.get_ref().0.len()
    }

    /// Removes and returns the encoded bytes.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.writer.get_mut().0)
    }

    /// Discards the encoded bytes after the client has disconnected.
    pub(super) fn discard(&mut self) {
        self.writer.get_mut().0.clear();
    }
}

fn write<'a>(
    writer: &mut PcapNgWriter<OutputBuffer>,
    block: impl pcap_file::pcapng::PcapNgBlock<'a>,
) {
    writer
        .write_pcapng_block(block)
        .expect("writing to memory cannot fail, and the interface exists");
}
