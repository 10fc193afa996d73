//! Upper bound on the rate of IPsec-protected streams: the rate of AES-GCM-128 on one core. The data path's `Transform`
//! encrypts packets of the size of a protected stream's packets. A stream is slower, because the core also processes
//! the clear text.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ipsec::crypto::{ESP_HEADER, Keys, Transform};
use serde::{Deserialize, Serialize};

use crate::ipsec::ALGORITHM;
use crate::limits::pin_to_core;
use crate::row::Row;

/// Number of packets in the working set: one burst, which fits in the core's cache.
const PACKETS_PER_ROUND: usize = 32;
/// Bytes before the SPI: the IPv4 header.
const NETWORK: usize = 20;

/// Encryption rate of the cryptographic library, measured as a row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gcm {
    /// Name of the result row, unique in a run.
    pub name: String,
    /// Group of the benchmark plan to which the row belongs.
    pub group: String,
    /// Length of an IP packet, bytes.
    pub mtu: u16,
    /// Core that the measurement runs on.
    pub core: usize,
    /// Seconds of the measurement, both directions together.
    pub seconds: f64,
}

impl Gcm {
    /// Returns the row, without a value.
    pub fn row(&self) -> Row {
        Row::new(&self.group, &self.name, "Gbit/s").with("mtu", self.mtu)
    }

    /// Measures sealing and opening. The value is the slower rate. Only encrypted bytes are counted.
    pub fn measure(&self) -> anyhow::Result<Row> {
        pin_to_core(self.core)?;
        let mut row = self.row();
        let keys = Keys::new(vec![0x5a; ALGORITHM.key_len()], Vec::new());
        let transform = Transform::new(ALGORITHM, &keys)?;
        let time = Duration::from_secs_f64(self.seconds / 2.0);
        let [seal, open] = [false, true].map(|opens| self.rate(&transform, opens, time));
        let (seal, open) = (seal?, open?);
        for (name, rate) in [("seal", seal), ("open", open)] {
            row.add_extra(&format!("{name}_gbit_per_s"), rate * 8e-9);
            row.add_extra(&format!("{name}_ns"), self.encrypted_bytes() as f64 / rate * 1e9);
        }
        row.set(seal.min(open) * 8e-9);
        Ok(row)
    }

    /// Returns the number of encrypted bytes in a packet.
    fn encrypted_bytes(&self) -> usize {
        let around = NETWORK + ESP_HEADER + ALGORITHM.iv_len() + ALGORITHM.icv_len();
        usize::from(self.mtu) - around
    }

    /// Returns the encrypted bytes per second of sealing, or of opening if `opens`.
    fn rate(&self, transform: &Transform, opens: bool, time: Duration) -> anyhow::Result<f64> {
        let end = usize::from(self.mtu) - ALGORITHM.icv_len();
        let failed = |_| anyhow::anyhow!("the cryptographic library fails");
        let mut packets = vec![vec![7; usize::from(self.mtu)]; PACKETS_PER_ROUND];
        for (seq, packet) in (1..).zip(&mut packets) {
            transform.seal(packet, NETWORK, end, seq, true).map_err(failed)?;
        }
        let sealed = packets.clone();
        let (mut spent, mut rounds, mut seq) = (Duration::ZERO, 0, PACKETS_PER_ROUND as u64);
        let begin = Instant::now();
        while begin.elapsed() < time {
            if opens {
                // Opening overwrites the packets, so each round begins with a copy of them. The time of the copy is not
                // counted.
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
        Ok((rounds * PACKETS_PER_ROUND * self.encrypted_bytes()) as f64 / spent.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gcm_measures_sealing_and_opening_rate() {
        let gcm = Gcm { name: "x".into(), group: "g".into(), mtu: 1500, core: 0, seconds: 0.02 };
        let keys = Keys::new(vec![1; ALGORITHM.key_len()], Vec::new());
        let transform = Transform::new(ALGORITHM, &keys).unwrap();
        for opens in [false, true] {
            let rate = gcm.rate(&transform, opens, Duration::from_millis(5)).unwrap();
            assert!(rate > 1e6, "{rate}");
        }
    }
}
