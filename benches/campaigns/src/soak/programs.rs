//! Operations with local programs at the target: transfers, and a program that is killed at a step of its session.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::ProgramInfo;

use super::appliances::{PARTNER_PORT, PROGRAM_PORT};
use super::ops::{TRANSFER_TIMEOUT, Worker};
use crate::programs::pair::ProgramPair;
use crate::programs::partner::Partner;
use crate::programs::{STEPS, start_walk};
use crate::testbed::{self, PEER_V4, REGION_LEN};

/// Time-out of the removal of a killed program.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

impl Worker {
    /// Connects a program at the peer to one at the target, and transfers a few times. Returns the compared bytes.
    pub(super) fn run_programs(&mut self) -> Result<u64> {
        let local = testbed::target_address(PROGRAM_PORT + self.thread as u16);
        self.addresses.push(local);
        let [peer, target] = &self.programs;
        let pair = ProgramPair::connect(peer, target, local, REGION_LEN, TRANSFER_TIMEOUT)?;
        let mut sum = 0;
        for _ in 0..self.random.usize(1..4) {
            let mut bytes = vec![0; REGION_LEN];
            self.random.fill(&mut bytes);
            sum += pair.transfer(&bytes, TRANSFER_TIMEOUT)?;
        }
        Ok(sum)
    }

    /// Starts a program at the target and kills it at a random step of its session: before the step, or during it. The
    /// target must remove the program. Returns the number of compared bytes, as the other operations do: 0.
    pub(super) fn kill_program(&mut self) -> Result<u64> {
        let remote = SocketAddr::from((PEER_V4, PARTNER_PORT + self.thread as u16));
        self.addresses.push(remote);
        let [peer, target] = &self.programs;
        let partner = Partner::start(peer, remote).context("the peer of the killed program")?;
        let child = start_walk(target, remote)?;
        let pid = child.id();
        let complete_steps = self.random.usize(0..STEPS);
        let during = self.random.bool().then(|| Duration::from_micros(self.random.u64(0..3000)));
        let walked = Walk::new(child)?.kill_at(complete_steps, during);
        let removed = self.wait_for_removal(pid);
        drop(partner);
        walked.and(removed)?;
        Ok(0)
    }

    fn wait_for_removal(&self, pid: u32) -> Result<()> {
        let until = Instant::now() + REMOVAL_TIMEOUT;
        loop {
            let programs: Vec<ProgramInfo> = self.target.get("/v1/programs")?;
            if programs.iter().all(|program| program.pid != pid as i32) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "a killed program is not removed");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A program that, before each step, prints a line and waits for a line. The program is killed when this value is
/// dropped.
struct Walk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Walk {
    fn new(mut child: Child) -> Result<Walk> {
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Walk { child, input, output })
    }

    /// Lets the program do `steps` steps, then kills it: before the next step if `during` is `None`, otherwise `during`
    /// after the start of the next step.
    fn kill_at(mut self, steps: usize, during: Option<Duration>) -> Result<()> {
        for _ in 0..steps {
            self.await_step()?;
            self.input.write_all(b"\n")?;
        }
        self.await_step()?;
        if let Some(time) = during {
            self.input.write_all(b"\n")?;
            std::thread::sleep(time);
        }
        // The drop of `self` kills the program.
        Ok(())
    }

    /// Waits until the program is ready for its next step.
    fn await_step(&mut self) -> Result<()> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? > 0 {
            return Ok(());
        }
        let mut errors = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut errors)?;
        }
        anyhow::bail!("the program has ended: {}", errors.trim())
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // SIGKILL. An error means that the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
