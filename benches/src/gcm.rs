//! What the cryptographic library does on one core: AES-GCM-128 of packets like those of a protected stream, by the `Transform` of
//! the data path. A limit: a core that protects can do no more than this beside what it does in clear.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ipsec::crypto::{ESP_HEADER, Keys, Transform};
use serde::{Deserialize, Serialize};

use crate::limits::pin;
use crate::protected::ALGORITHM;
use crate::row::Row;

/// Packets that a core has in its cache while it works on them: a burst.
const PACKETS: usize = 32;
/// Bytes before the SPI: an IPv4 header.
const NETWORK: usize = 20;

/// The library's rate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gcm {
    /// What the row is called.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// The core.
    pub core: usize,
    /// How long, for both directions together.
    pub seconds: f64,
}

impl Gcm {
    /// The row that it makes, still without number.
    pub fn row(&self) -> Row {
        Row::new(&self.group, &self.name, "Gbit/s").with("mtu", self.mtu)
    }

    /// Measures: the slower of sealing and opening is the value. Bytes are those that are encrypted.
    pub fn measure(&self) -> anyhow::Result<Row> {
        pin(self.core)?;
        let mut row = self.row();
        let keys = Keys::new(vec![0x5a; ALGORITHM.key_len()], Vec::new());
        let transform = Transform::new(ALGORITHM, &keys)?;
        let time = Duration::from_secs_f64(self.seconds / 2.0);
        let [seal, open] = [false, true].map(|opens| self.rate(&transform, opens, time));
        let (seal, open) = (seal?, open?);
        for (name, rate) in [("seal", seal), ("open", open)] {
            row.also(&format!("{name}_gbit_per_s"), rate * 8e-9);
            row.also(&format!("{name}_ns"), self.encrypted() as f64 / rate * 1e9);
        }
        row.set(seal.min(open) * 8e-9);
        Ok(row)
    }

    /// Bytes of a packet that are encrypted.
    fn encrypted(&self) -> usize {
        let around = NETWORK + ESP_HEADER + ALGORITHM.iv_len() + ALGORITHM.icv_len();
        usize::from(self.mtu) - around
    }

    /// Bytes per second.
    fn rate(&self, transform: &Transform, opens: bool, time: Duration) -> anyhow::Result<f64> {
        let end = usize::from(self.mtu) - ALGORITHM.icv_len();
        let failed = |_| anyhow::anyhow!("the library refuses");
        let mut packets = vec![vec![7; usize::from(self.mtu)]; PACKETS];
        for (seq, packet) in (1..).zip(&mut packets) {
            transform.seal(packet, NETWORK, end, seq, true).map_err(failed)?;
        }
        let sealed = packets.clone();
        let (mut spent, mut rounds, mut seq) = (Duration::ZERO, 0, PACKETS as u64);
        let begin = Instant::now();
        while begin.elapsed() < time {
            if opens {
                // What was opened is no packet any more; the copies are not counted.
                packets.clone_from(&sealed);
            }
            let round = Instant::now();
            for (n, packet) in (1..).zip(&mut packets) {
                if opens {
                    transform.open(packet, NETWORK, end, n, true).map_err(failed)?;
                } else {
                    seq += 1;
                    transform.seal(packet, NETWORK, end, seq, true).map_err(failed)?;
                }
            }
            spent += round.elapsed();
            black_box(&packets);
            rounds += 1;
        }
        Ok((rounds * PACKETS * self.encrypted()) as f64 / spent.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_have_a_rate() {
        let gcm = Gcm { name: "x".into(), group: "g".into(), mtu: 1500, core: 0, seconds: 0.02 };
        let keys = Keys::new(vec![1; ALGORITHM.key_len()], Vec::new());
        let transform = Transform::new(ALGORITHM, &keys).unwrap();
        for opens in [false, true] {
            let rate = gcm.rate(&transform, opens, Duration::from_millis(5)).unwrap();
            assert!(rate > 1e6, "{rate}");
        }
    }
}
