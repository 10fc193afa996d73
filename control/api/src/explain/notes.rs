//! The kinds of notes of `/v1/status`.

base::explained! {
    /// Kind of a note.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum NoteKind {
        /// A finding at the start, on hugepages, ports, or the limit of file descriptors. It stays until a restart.
        #[explain("at_start",
            cause = "Fewer hugepages than wanted, a device that lacks an offload, or a machine whose limits are too small.",
            remedy = "`ddpd doctor --config FILE` has each finding with its remedy as a command. Packet buffers in hugepages are \
                      how it should be.")]
        AtStart,
        /// The memory of a region is not locked, or not of the pages that its `backing` names. It goes with the region.
        #[explain("region_memory",
            cause = "The limit of locked memory (`ulimit -l`, `LimitMEMLOCK=`) is below the size of the regions, or hugepages are \
                     used up.",
            remedy = "Raise `LimitMEMLOCK=` of the unit or reserve hugepages, and restart; else a write into the region may wait \
                      for the disk.")]
        RegionMemory,
        /// The link of a port is down.
        #[explain("link_down",
            cause = "A cable, transceiver or switch port, an interface that is set down, or the other process of a memif or \
                     vhost-user port is not there.",
            remedy = "`ip link set DEVICE up`, then look at the other end. `ddpctl ports` has the state of all links.")]
        LinkDown,
        /// The Linux interface of a port has changed or disappeared.
        #[explain("device",
            cause = "It was deleted, renamed, moved to another namespace, or set down; its MTU or link-layer address was changed.",
            remedy = "The sentence has the command. An `af_packet` port is bound again by itself; the others need a restart of \
                      ddpd when their interface was made again.")]
        Device,
        /// A host's packets come without checksums. They are dropped, and its connections time out. The note expires when
        /// no more arrive.
        #[explain("unfinished_checksums",
            cause = "The port's device is one end of a veth, and the host at the other end leaves checksums to a device that does \
                     not fill them in.",
            remedy = "`ethtool -K PEER tx off gso off tso off` in that host's network namespace, where PEER is its interface.")]
        UnfinishedChecksums,
        /// Keys of the configuration file that were changed and wait for a restart.
        #[explain("restart",
            cause = "A reload applies regions, listeners and some other keys only.",
            remedy = "`ddpctl reload --dry-run` names the keys. Restart ddpd, or take the changes back and reload.")]
        Restart,
        /// A file of a queue or a region cannot be written.
        #[explain("file",
            cause = "The disk is full, its quota is reached, or the file's directory was removed or made read-only.",
            remedy = "Make room or mend the directory. The write is tried again every second, and the note goes when it succeeds.")]
        File,
        /// Another host uses an address of an interface. The note expires when it is not seen any more.
        #[explain("address_conflict",
            cause = "Two hosts, or two appliances on one link, have the same address: peers reach one of them at random.",
            remedy = "Give one of them another address; the note has the other's MAC address.")]
        AddressConflict,
        /// The operator has drained the appliance: new streams and jobs are refused.
        #[explain("draining",
            cause = "`ddpctl drain`.",
            remedy = "`ddpctl undrain`, or stop ddpd when no stream is left.")]
        Draining,
        /// Streams make no progress: their peers acknowledge nothing.
        #[explain("stalled",
            cause = "The peer's host is gone or hangs, the path is cut, or its program keeps its window closed.",
            remedy = "`ddpctl why STREAM` shows what was sent. The stream ends by itself, or with `ddpctl streams close STREAM \
                      --abort`.")]
        Stalled,
    }
}
