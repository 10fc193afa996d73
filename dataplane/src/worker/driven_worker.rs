//! A worker without a thread or a clock, for benchmarks and instruction counts. The caller provides frames and the
//! time.

use std::sync::Arc;

use base::Instant;

use super::{Core, CoreParts, PortSlot};
use crate::api::{DataplaneConfig, StartError, WorkerHandle, worker_link};
use crate::io::{PortIo, PortProperties};
use crate::mesh::Mesh;
use crate::wake::Wake;

/// The first worker of a configuration, run by its caller instead of a thread.
pub struct DrivenWorker<Io: PortIo> {
    core: Core<Io>,
    /// The control thread's end of the worker's command and event rings.
    pub handle: WorkerHandle,
}

impl<Io: PortIo> DrivenWorker<Io> {
    /// Creates the worker. `ports` contains the worker's ports in the order of the configuration.
    ///
    /// # Errors
    /// The configuration has no worker, or the system refuses a descriptor for wake-ups.
    pub fn new(
        config: &DataplaneConfig,
        ports: impl IntoIterator<Item = (PortProperties, Io)>,
        now: Instant,
    ) -> Result<Self, StartError> {
        let id = config.workers.first().ok_or(StartError::NoWorkers)?.id;
        let (control, limits) =
            (Arc::new(Wake::new().map_err(StartError::from_wake_error)?), config.limits);
        let (handle, link) = worker_link(id, limits.commands, limits.events, &control)?;
        let mesh = Mesh::full_mesh(std::slice::from_ref(&link.wake), limits.mesh);
        let mesh = mesh.into_iter().next().ok_or(StartError::NoWorkers)?;
        let ports = ports.into_iter().map(|(facts, io)| Some(PortSlot::new(io, Arc::new(facts))));
        let parts = CoreParts {
            id,
            ports: ports.collect(),
            interfaces: config.interfaces.clone(),
            hosts: Vec::new(),
            mesh,
            limits,
            sctp_udp_port: config.sctp_udp_port,
            link,
            secret: *config.secret.expose(),
            ipsec: config.ipsec.clone(),
        };
        Ok(DrivenWorker { core: Core::new(parts, now), handle })
    }

    /// Runs one turn of the worker's loop. Returns true if there was work.
    pub fn turn(&mut self, now: Instant) -> bool {
        self.core.turn(now)
    }

    /// Returns the worker's queues of the port with index `port`; `None` if there is no such port.
    pub fn port(&mut self, port: usize) -> Option<&mut Io> {
        self.core.env.ports.get_mut(port).map(|slot| slot.io.queues_mut())
    }
}
