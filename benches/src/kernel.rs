//! The baseline without this appliance: two kernel TCP sockets on `lo`. The receiver computes the CRC of each block and
//! copies the block into its region. Source and sink have the size of the regions in the other rows of the group.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ddp::RegionMemory;
use wire::crc32c;

use crate::end_config;
use crate::limits::pin_to_core;

/// Bytes that each CRC covers: about as many as in an FPDU at MTU 9000.
const BLOCK_LEN: usize = 8948;

/// Returns the bytes per second that a receiver on core `cores[1]` checks and copies. `region` is at least
/// [`BLOCK_LEN`], in bytes.
pub fn measure_bandwidth(cores: [usize; 2], region: u64, time: Duration) -> anyhow::Result<f64> {
    anyhow::ensure!(
        region >= BLOCK_LEN as u64,
        "a region of {region} bytes is shorter than a block"
    );
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> anyhow::Result<()> {
        pin_to_core(cores[0])?;
        let mut stream = TcpStream::connect(address)?;
        let mut source = vec![0; region as usize / BLOCK_LEN * BLOCK_LEN];
        for (n, block) in source.chunks_exact_mut(BLOCK_LEN).enumerate() {
            block.fill(n as u8);
            let crc = crc32c::to_field(crc32c::update(0, &block[..BLOCK_LEN - 4]));
            block[BLOCK_LEN - 4..].copy_from_slice(&crc);
        }
        // Writes until the receiver closes the connection.
        while stream.write_all(&source).is_ok() {}
        Ok(())
    });
    pin_to_core(cores[1])?;
    let (mut stream, _) = listener.accept()?;
    let sink = end_config::allocate_region(region)?;
    let mut buffer = vec![0; 32 * BLOCK_LEN];
    let (mut filled, mut at, mut bytes) = (0, 0u64, 0u64);
    let (mut begin, mut warm) = (Instant::now(), true);
    loop {
        let n = stream.read(&mut buffer[filled..])?;
        anyhow::ensure!(n > 0, "the sender closed");
        filled += n;
        let whole = filled / BLOCK_LEN * BLOCK_LEN;
        for block in buffer[..whole].chunks_exact(BLOCK_LEN) {
            let (payload, crc) = block.split_at(BLOCK_LEN - 4);
            anyhow::ensure!(crc32c::to_field(crc32c::update(0, payload)) == crc, "a broken block");
            if at + BLOCK_LEN as u64 > region {
                at = 0;
            }
            sink.write(at, payload);
            at += payload.len() as u64;
            bytes += payload.len() as u64;
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
        if warm && begin.elapsed() > time / 4 {
            (warm, begin, bytes) = (false, Instant::now(), 0);
        } else if !warm && begin.elapsed() > time {
            break;
        }
    }
    let rate = bytes as f64 / begin.elapsed().as_secs_f64();
    drop(stream);
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    Ok(rate)
}

/// Returns the median round-trip time of 64 bytes between two pinned threads, microseconds, with `TCP_NODELAY`.
pub fn measure_latency(cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> anyhow::Result<()> {
        pin_to_core(cores[1])?;
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message)?;
        }
        Ok(())
    });
    pin_to_core(cores[0])?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3)?;
    let (begin, mut message) = (Instant::now(), [7; 64]);
    while begin.elapsed() < time {
        let from = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        histogram.record(from.elapsed().as_nanos() as u64)?;
    }
    drop(stream);
    echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"))??;
    Ok(histogram.value_at_quantile(0.5) as f64 * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_shorter_than_block_is_refused() {
        let error = measure_bandwidth([0, 1], BLOCK_LEN as u64 - 1, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "a region of 8947 bytes is shorter than a block");
    }
}
