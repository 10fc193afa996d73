//! The appliances of one process: they share one EAL and start and end together.
//!
//! If an appliance cannot start, the appliances started before it are ended. The error is one sentence.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::{self, Access, AccessTally, AuditLog, EventLog, Observer, Server};
use config::{self, Config, MapLimit, RegionSection};
use dataplane::eal::{self, Eal};
use dataplane::memory::{Maps, Memory};
use dataplane::port::{Port, PortFactory};
use dataplane::{Dataplane, InterfaceId, WorkerId};

use super::budget::{Budget, HostMemory};
use super::core::{Core, Setup};
use super::ipsec::{self, Ipsec};
use super::loader::{self, LoadTask, LoadedMemory, Loader, Watch};
use super::ports::{self, PortView};
use super::programs::server::{BoundSocket, Sessions};
use super::start;
use super::thread::{Control, Driver, ManagerHandle, Signal};
use crate::descriptors;
use crate::dpdk_runtime;
use crate::files::Writer;
use crate::host::{self, HostPumps, SharedInterface};
use crate::notify::watchdog::{Pulse, WatchedAppliance};
use crate::notify::{Service, Socket};
use crate::sandbox::Sandbox;
use crate::shm;
use crate::waker::Waker;

/// Time-out for the workers to set up the configured regions and listeners.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// The running appliances of this process.
#[derive(Debug)]
pub struct Process {
    running: Vec<RunningAppliance>,
}

#[derive(Debug)]
struct RunningAppliance {
    name: String,
    control: Control,
    thread: JoinHandle<()>,
    server: Server,
    /// Server for observers, if configured.
    observer: Option<Observer>,
    /// Receives one message when all workers have the configured regions and listeners.
    set_up: Receiver<()>,
    watched: WatchedAppliance,
    /// Threads of the interfaces shared with the host's kernel.
    hosts: HostPumps,
}

impl Process {
    /// Starts the EAL and the appliances of these configurations. On return, every worker has all configured regions
    /// and listeners.
    ///
    /// # Errors
    /// Returns one sentence for the operator. In this case no appliance is running.
    pub fn start(configs: Vec<Config>) -> Result<Process, String> {
        let service = Service::new(Socket::open_named(None), configs.len());
        Process::start_with(configs, &service, &Sandbox::disabled())
    }

    /// Starts like [`start`](Self::start), notifies a service manager, and restricts the system calls of all threads.
    ///
    /// # Errors
    /// Returns one sentence for the operator. In this case no appliance is running.
    pub fn start_with(
        configs: Vec<Config>,
        service: &Service,
        sandbox: &Sandbox,
    ) -> Result<Process, String> {
        let references: Vec<&Config> = configs.iter().collect();
        if references.iter().any(|config| config.management.dpdk_telemetry) {
            dpdk_runtime::create(&dpdk_runtime::directory())?;
        }
        let eal = Eal::start(&start::eal_config(&references)?).map_err(|e| e.to_string())?;
        tracing::info!("{}", eal.statement());
        let ports = PortFactory::new(eal);
        // All ports are opened before any appliance starts: a ring link needs both ends.
        let mut opened = Vec::new();
        for config in &configs {
            let ports = open_ports(config, &ports)?;
            let macs: Vec<_> = ports.iter().map(|port| port.info().mac).collect();
            // Called before system calls are restricted, because it opens sockets.
            let shared = host::create_taps(config, &macs)?;
            // Called before system calls are restricted, because the name service may connect to servers, and because
            // modes and owners of files are changed.
            let sockets = Sockets::open(config)
                .map_err(|error| format!("appliance {}: {error}", config.name))?;
            opened.push(OpenResources { ports, shared_interfaces: shared, sockets });
        }
        if let Some(link) = ports.unjoined_links().first() {
            return Err(format!(
                "ring link {link:?} has one end only: start ddpd with the file of the other end too"
            ));
        }
        // The workers do not run yet. Each gets a narrower filter before its loop begins.
        sandbox.filter_all();
        let mut process = Process { running: Vec::new() };
        let host = HostLimits::read(&references, ports.eal())?;
        for (at, (config, opened)) in configs.into_iter().zip(opened).enumerate() {
            let name = config.name.clone();
            let (service, pulse) = (service.clone(), Arc::default());
            let place = ManagerHandle { service, appliance: at, pulse };
            match start_one(config, opened, &ports, host.clone(), place, sandbox) {
                Ok(running) => process.running.push(running),
                Err(error) => return Err(process.abort_start(&name, &error)),
            }
        }
        let is_late =
            |running: &&RunningAppliance| running.set_up.recv_timeout(SETUP_TIMEOUT).is_err();
        if let Some(name) = process.running.iter().find(is_late).map(|running| running.name.clone())
        {
            let error =
                format!("its workers have not set up the configuration within {SETUP_TIMEOUT:?}");
            return Err(process.abort_start(&name, &error));
        }
        Ok(process)
    }

    /// Ends the appliances that were started, because another one failed. Returns the error.
    fn abort_start(self, name: &str, error: &str) -> String {
        self.signal(Signal::Abort);
        self.join();
        format!("appliance {name}: {error}")
    }

    /// Returns handles to all control threads, usable from any thread.
    pub fn controls(&self) -> Vec<Control> {
        self.running.iter().map(|running| running.control.clone()).collect()
    }

    /// Sends a signal to every control thread.
    pub fn signal(&self, signal: Signal) {
        self.running.iter().for_each(|running| running.control.signal(signal));
    }

    /// Returns the paths of the API sockets, in the order of the configurations.
    pub fn sockets(&self) -> Vec<&Path> {
        self.running.iter().map(|running| running.server.path()).collect()
    }

    /// Returns the control threads and workers that the watchdog checks.
    pub fn watched_appliances(&self) -> Vec<WatchedAppliance> {
        self.running.iter().map(|running| running.watched.clone()).collect()
    }

    /// Waits until all appliances have ended. Returns false if a control thread or a thread of an interface that is
    /// shared with the host panicked.
    pub fn join(self) -> bool {
        let mut sound = true;
        for RunningAppliance { name, thread, server, observer, hosts, .. } in self.running {
            if thread.join().is_err() {
                tracing::error!("appliance {name}: the control thread panicked");
                sound = false;
            }
            if !hosts.join() {
                tracing::error!("appliance {name}: the thread of the host's kernel panicked");
                sound = false;
            }
            drop(observer);
            if let Err(error) = server.stop() {
                tracing::warn!("appliance {name}: the API did not end cleanly: {error}");
            }
            tracing::info!("appliance {name} has ended");
        }
        sound
    }
}

/// Returns the path of the attach socket of local programs: the API's path with `.attach` appended.
pub fn attach_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".attach");
    path.into()
}

fn open_ports(config: &Config, ports: &PortFactory) -> Result<Vec<Port>, String> {
    let file = config.file.display();
    let mut opened = Vec::new();
    for section in &config.ports {
        let port_config = start::port_config(config, section)?;
        let port = ports.open(&port_config).map_err(|error| {
            format!("{file}: {error} ([[port]] {}, key {})", section.name, error.key())
        })?;
        opened.push(port);
    }
    Ok(opened)
}

/// Limits of the machine, shared by the appliances of this process.
#[derive(Clone)]
struct HostLimits {
    memory: Option<HostMemory>,
    map_limit: MapLimit,
    /// Count of the mappings of regions and jobs, which `map_limit` bounds.
    maps: Maps,
}

impl HostLimits {
    fn read(configs: &[&Config], eal: &Eal) -> Result<HostLimits, String> {
        let (memory, map_limit) = (host_memory(configs, eal)?, MapLimit::read());
        Ok(HostLimits { memory, map_limit, maps: Maps::new(map_limit.bound()) })
    }
}

/// Returns the memory available to the appliances; `None` if it cannot be determined.
fn host_memory(configs: &[&Config], eal: &Eal) -> Result<Option<HostMemory>, String> {
    // Without hugepages the packet buffer pools use ordinary memory. Memory shared through memif is always ordinary.
    let mut pools = match eal.has_hugepages() {
        true => 0,
        false => u64::from(start::eal_config(configs)?.memory_mib) << 20,
    };
    for config in configs {
        for section in &config.ports {
            pools += start::port_config(config, section)?.shared_bytes();
        }
    }
    let appliances = configs.len() as u64;
    Ok(config::machine_memory().map(|machine| HostMemory { machine, pools, appliances }))
}

/// Resources that are opened before system calls are restricted.
struct OpenResources {
    ports: Vec<Port>,
    shared_interfaces: Vec<SharedInterface>,
    sockets: Sockets,
}

/// Management sockets that listen but are not served yet.
struct Sockets {
    access: Access,
    api: api::BoundServer,
    attach: shm::Server,
    /// `None` without `[programs]`.
    programs: Option<BoundSocket>,
}

impl Sockets {
    fn open(config: &Config) -> Result<Sockets, String> {
        let management = &config.management;
        // Resolves user and group names, for which the name service may connect to servers.
        let access =
            Access::open(&management.access, &management.audit).map_err(|e| e.to_string())?;
        let api = api::BoundServer::new(&management.socket, &access).map_err(|e| e.to_string())?;
        let attach = attach_socket(&management.socket)?;
        let programs = BoundSocket::open(config)?;
        Ok(Sockets { access, api, attach, programs })
    }
}

/// Starts one appliance: its threads, then its workers, then its control thread and servers.
fn start_one(
    config: Config,
    OpenResources { mut ports, shared_interfaces: shared, sockets }: OpenResources,
    all: &PortFactory,
    host: HostLimits,
    place: ManagerHandle,
    sandbox: &Sandbox,
) -> Result<RunningAppliance, String> {
    let management = config.management.clone();
    let Sockets { access, api, attach: shm, programs } = sockets;
    let waker = Waker::new().map_err(|error| format!("no event descriptor: {error}"))?;
    let workers = config.workers.len();
    let budget = Budget::new(host.memory, &config.limits, workers).with_maps(host.maps);
    let regions = load_regions(&config, &budget)?;
    let wake = waker.clone();
    let writer = Writer::<Memory>::start("files", move || wake.wake())
        .map_err(|error| format!("cannot start the file writer: {error}"))?;
    let wake = waker.clone();
    let loader = Loader::start("loader", budget.clone(), move || wake.wake())
        .map_err(|error| format!("cannot start the loader: {error}"))?;
    let (requester, inbox) = api::channel().map_err(|error| format!("no queue: {error}"))?;
    let log = EventLog::new(config.limits.events as usize, config.limits.event_memory);
    let (buffers, note) = budget.buffers(&config.limits, workers);
    let maps_note = host.map_limit.region_limit_note(config.limits.regions);
    let maps_note = maps_note.map(|note| format!("limits.regions {note}"));
    maps_note.iter().for_each(|note| tracing::warn!("{}: {note}", config.name));
    let notes = note.into_iter().chain(maps_note).collect();
    let (protection, ipsec) = ipsec::start(&config)?;
    let mut dataplane_config = start::dataplane_config(&config, &buffers)?;
    dataplane_config.ipsec = protection;
    let confine = worker_sandbox(&config, sandbox);
    let mut dataplane =
        Dataplane::start_confined(&dataplane_config, &mut ports, all.eal(), confine)
            .map_err(|error| error.to_string())?;
    let hosts = HostPumps::start(shared, std::mem::take(&mut dataplane.hosts), sandbox)?;
    let body = config.limits.api_body;
    let name = config.name.clone();
    report(&config, &ports, &regions);
    let (access_tally, audit) = (access.tally(), access.audit_log());
    let observers_tally = access.tally();
    // Dropped as soon as the workers have their copies, because it contains keys.
    drop(dataplane_config);
    let programs = serve_programs(programs, &config, &budget, &waker)?;
    let parts = CoreParts {
        log: log.clone(),
        writer,
        shm,
        budget,
        notes,
        access_tally,
        audit,
        ipsec,
        programs,
    };
    let setup = setup(config, ports, &dataplane, all.eal(), parts);
    let control: Arc<Pulse> = Arc::clone(&place.pulse);
    let (appliance, workers) = (name.clone(), setup.counters.clone());
    let watched = WatchedAppliance { appliance, control, waker: waker.clone(), workers };
    let core = Core::new(setup, regions, Instant::now())?;
    let (set_up_done, set_up) = channel();
    let (driver, control) = Driver::new(core, dataplane, inbox, loader, waker, set_up_done, place);
    let observe = |at| Observer::start(at, requester.clone(), observers_tally);
    let observer =
        management.listen.address.map(observe).transpose().map_err(|error| error.to_string())?;
    if let Some(observer) = &observer {
        tracing::info!("metrics: http://{}/metrics", observer.address());
    }
    let server = api.serve(requester, log, body, access).map_err(|e| e.to_string())?;
    let thread = std::thread::Builder::new()
        .name("control".into())
        .spawn(move || driver.run())
        .map_err(|error| format!("cannot start the control thread: {error}"))?;
    Ok(RunningAppliance { name, control, thread, server, observer, set_up, watched, hosts })
}

/// Returns the function that restricts a worker; each worker's thread calls it before its loop begins.
fn worker_sandbox(config: &Config, sandbox: &Sandbox) -> impl Fn(WorkerId) + Clone + Send + use<> {
    let ports = config.ports.iter().map(|port| (port.workers.clone(), port.kind.clone()));
    let (ports, sandbox) = (Arc::new(ports.collect::<Vec<_>>()), sandbox.clone());
    move |worker| {
        let own = ports.iter().filter(|(workers, _)| workers.contains(&usize::from(worker.0)));
        let kinds: Vec<_> = own.map(|(_, kind)| kind.clone()).collect();
        sandbox.filter_worker(&kinds);
    }
}

/// Inputs of the core in addition to its configuration.
struct CoreParts {
    log: EventLog,
    writer: Writer<Memory>,
    shm: shm::Server,
    budget: Budget,
    /// Notes about buffer bounds that the memory ceiling lowered, and about `limits.regions`, one sentence each.
    notes: Vec<String>,
    access_tally: Arc<AccessTally>,
    audit: AuditLog,
    ipsec: Ipsec,
    programs: Option<Sessions>,
}

fn setup(
    config: Config,
    ports: Vec<Port>,
    dataplane: &Dataplane,
    eal: &Eal,
    parts: CoreParts,
) -> Setup {
    let interfaces = 0..config.interfaces.len();
    let served = interfaces.map(|at| dataplane.workers_of(InterfaceId(at as u16)).to_vec());
    let served = served.collect();
    let mut notes = vec![eal.statement().to_owned()];
    for port in &ports {
        let of = |statement: &String| format!("port {}: {statement}", port.info().name);
        notes.extend(port.info().statements.iter().map(of));
    }
    notes.extend(parts.notes);
    notes.extend(descriptors::shortage().map(str::to_owned));
    let sections = config.ports.clone();
    let views = ports.into_iter().zip(sections);
    Setup {
        counters: dataplane.workers.iter().map(|worker| Arc::clone(worker.counters())).collect(),
        interface_workers: served,
        ports: views.map(|(port, section)| PortView { port, section }).collect(),
        log: parts.log,
        writer: parts.writer,
        shm: parts.shm,
        notes,
        dpdk_version: Some(eal::version().to_owned()),
        hugepages: eal.has_hugepages(),
        budget: parts.budget,
        access_tally: parts.access_tally,
        audit: parts.audit,
        ipsec: parts.ipsec,
        programs: parts.programs,
        config,
    }
}

fn load_regions(
    config: &Config,
    budget: &Budget,
) -> Result<Vec<(RegionSection, LoadedMemory)>, String> {
    let files = config.directories();
    let load = |section: &RegionSection| {
        let wanted = LoadTask::Region(section.clone());
        let loaded = loader::load(&wanted, budget, &files, &Watch::default());
        let line = config.source.line("region", std::slice::from_ref(&section.name), "");
        let loaded = loaded.map_err(|why| match line {
            Some(line) => format!("{}:{line}: {why}", config.file.display()),
            None => why,
        })?;
        Ok((section.clone(), loaded))
    };
    config.regions.iter().map(load).collect()
}

fn attach_socket(socket: &Path) -> Result<shm::Server, String> {
    let path = attach_path(socket);
    shm::Server::bind(&path).map_err(|error| {
        format!("cannot listen on {}: {error}; choose another management.socket", path.display())
    })
}

/// Starts to serve local programs, if the configuration has `[programs]`.
fn serve_programs(
    socket: Option<BoundSocket>,
    config: &Config,
    budget: &Budget,
    waker: &Waker,
) -> Result<Option<Sessions>, String> {
    let (Some(socket), Some(settings)) = (socket, &config.programs) else { return Ok(None) };
    let workers = config.workers.len() as u16;
    let sessions = socket.serve(settings.clone(), budget.clone(), workers, waker.clone());
    sessions.map(Some).map_err(|error| format!("cannot serve programs: {error}"))
}

/// Logs the ports, workers, regions and listeners.
fn report(config: &Config, ports: &[Port], regions: &[(RegionSection, LoadedMemory)]) {
    let name = &config.name;
    for (section, port) in config.ports.iter().zip(ports) {
        let (info, kind, device) = (port.info(), section.kind.name(), section.kind.location());
        tracing::info!(
            "{name}: port {}: {kind} {device} (driver {}), MTU {}, queues: {}, TCP checksums: {}",
            info.name,
            info.driver,
            info.mtu,
            info.queues,
            ports::checksum_owner(port)
        );
        for statement in &info.statements {
            tracing::warn!("{name}: port {}: {statement}", info.name);
        }
    }
    let cores: Vec<String> = config
        .workers
        .iter()
        .map(|worker| worker.core.map_or("any core".into(), |core| format!("core {core}")))
        .collect();
    tracing::info!("{name}: workers: {} ({})", cores.len(), cores.join(", "));
    let bytes: u64 = regions.iter().map(|(_, loaded)| loaded.len).sum();
    let locked = regions.iter().filter(|(_, loaded)| loaded.memory.is_locked()).count();
    tracing::info!(
        "{name}: regions: {}, {bytes} bytes, {locked} of them locked in memory",
        regions.len()
    );
    if config.ipsec.is_enabled() {
        tracing::info!("{name}: IPsec: AES-GCM by {}", ::ipsec::crypto::gcm_library());
    }
    for listener in &config.listeners {
        let on = |enabled| if enabled { "on" } else { "off" };
        tracing::info!(
            "{name}: listener {} on port {}: markers {}, CRC {}",
            listener.name,
            listener.port,
            on(listener.mpa.markers),
            on(listener.mpa.crc)
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn region_that_cannot_be_loaded_is_named_with_its_line_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let config = |region: &str| {
            let text = format!(
                "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n[[interface]]\nname = \"lan\"\nport = \"p\"\n\
                 addresses = [\"10.0.0.1/24\"]\n[[region]]\nname = \"in\"\naccess = \"w\"\n{region}\n"
            );
            config::Document::parse(Path::new("t.toml"), &text).unwrap().config
        };
        let error =
            |region: &str, budget: &Budget| load_regions(&config(region), budget).unwrap_err();
        let missing = dir.path().join("none");
        let path = format!("size = 4096\npath = \"{}/f\"", missing.display());
        assert_eq!(
            error(&path, &Budget::unlimited()),
            format!(
                "t.toml:9: region in: cannot open {0}/f: its directory {0} does not exist: mkdir -p {0}",
                missing.display()
            )
        );
        let large = "size = \"1 GiB\"";
        let machine = config::MachineMemory { bytes: 512 << 20, source: "RAM".into() };
        let host = HostMemory { machine, pools: 0, appliances: 1 };
        let budget = Budget::new(Some(host), &config(large).limits, 1);
        let error = error(large, &budget);
        assert!(error.starts_with("t.toml:9: region in: its memory: 1 GiB asked for, "), "{error}");
    }
}
