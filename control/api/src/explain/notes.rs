//! The kinds of notes of `/v1/status`.

base::explained! {
    /// Kind of a note.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum NoteKind {
        /// A result of the check at start, for hugepages, ports or the limit of file descriptors: a problem, or where
        /// the packet buffers are. The note remains until a restart.
        #[explain("at_start",
            cause = "Too few hugepages, a device that lacks an offload, or machine limits that are too low.",
            remedy = "`ddpd doctor --config FILE` has each finding with its remedy as a command. Packet buffers \
                      should be in hugepages.")]
        AtStart,
        /// A region's memory is not locked, or does not have the page size that `backing` requests. The note expires
        /// with the region.
        #[explain("region_memory",
            cause = "The limit of locked memory (`ulimit -l`, `LimitMEMLOCK=`) is below the size of the regions, or \
                     the hugepages are used up.",
            remedy = "Raise `LimitMEMLOCK=` of the unit or reserve hugepages, and restart. Until then a write into \
                      the region may wait for the disk.")]
        RegionMemory,
        /// The link of a port is down.
        #[explain("link_down",
            cause = "A defective cable, transceiver or switch port, an interface that is set down, or a memif or \
                     vhost-user port without its other process.",
            remedy = "`ip link set DEVICE up`, then check the other end. `ddpctl ports` has the state of all links.")]
        LinkDown,
        /// The Linux interface of a port has changed or disappeared.
        #[explain("device",
            cause = "The interface was deleted, renamed, moved to another namespace, or set down, or its MTU or MAC \
                     address was changed.",
            remedy = "The sentence has the command. An `af_packet` port is bound again automatically; other ports \
                      need a restart of ddpd after their interface was created again.")]
        Device,
        /// A host sends packets without checksums. The packets are dropped, and the host's connections time out. The
        /// note expires when such packets no longer arrive.
        #[explain("unfinished_checksums",
            cause = "The port's device is one end of a veth, and the host at the other end leaves checksums to a \
                     device that does not fill them in.",
            remedy = concat!("`", base::veth_peer_offloads_off!(), "` in that host's network namespace, where PEER is its interface."))]
        UnfinishedChecksums,
        /// Keys of the configuration file were changed and take effect only after a restart.
        #[explain("restart",
            cause = "A reload applies only regions, listeners and some other keys.",
            remedy = "`ddpctl reload --dry-run` lists the keys. Restart ddpd, or revert the changes and reload.")]
        Restart,
        /// A file of a queue or a region cannot be written.
        #[explain("file",
            cause = "The disk is full, its quota is reached, or the file's directory was removed or made read-only.",
            remedy = "Free space or repair the directory. The write is retried every second; the note expires when it \
                      succeeds.")]
        File,
        /// Another host uses an address of an interface. The note expires when the conflict is no longer seen.
        #[explain("address_conflict",
            cause = "Two hosts, or two appliances on one link, have the same address: peers reach one of them at \
                     random.",
            remedy = "Give one of them another address; the note has the other's MAC address.")]
        AddressConflict,
        /// A local program has reached one of its limits. The note expires with the program.
        #[explain("program_limit",
            cause = "The program needs more queue pairs, completion queues, memory regions, bytes or listeners than \
                     `[programs]` allows.",
            remedy = "Raise the limit that the note names, and restart ddpd. `ddpctl programs show N` has what the \
                      program uses.")]
        ProgramLimit,
        /// Memory of a local program is not locked. The note expires with the program.
        #[explain("program_memory",
            cause = "The limit of locked memory (`ulimit -l`, `LimitMEMLOCK=`) is below the memory of regions and \
                     programs.",
            remedy = "Raise `LimitMEMLOCK=` of ddpd's unit and restart. Until then a worker that accesses the \
                      memory may wait for the disk.")]
        ProgramMemory,
        /// The operator has drained the appliance: new streams and jobs are refused.
        #[explain("draining",
            cause = "`ddpctl drain`.",
            remedy = "`ddpctl undrain`, or stop ddpd when no stream is left.")]
        Draining,
        /// Streams make no progress: their peers answer neither data nor window probes.
        #[explain("stalled",
            cause = "The peer's host is down or hangs, or the path is broken.",
            remedy = "`ddpctl why STREAM` shows the history. The stream ends by itself, or with `ddpctl streams close \
                      STREAM --abort`.")]
        Stalled,
    }
}
