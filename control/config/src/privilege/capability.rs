//! Linux capabilities (capabilities(7)): the capabilities that an appliance may use, and sets of arbitrary
//! capabilities.

/// A capability that an appliance may use, by its number in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Capability {
    /// Change owners of files.
    Chown = 0,
    /// Bind ports below 1024.
    NetBindService = 10,
    /// Change interfaces, addresses and IPsec.
    NetAdmin = 12,
    /// Open packet sockets.
    NetRaw = 13,
    /// Lock memory beyond RLIMIT_MEMLOCK.
    IpcLock = 14,
    /// Use I/O ports.
    SysRawio = 17,
    /// Read physical addresses; many other permissions.
    SysAdmin = 21,
    /// Load BPF programs.
    Bpf = 39,
}

impl Capability {
    const ALL: [Capability; 8] = [
        Capability::Chown,
        Capability::NetBindService,
        Capability::NetAdmin,
        Capability::NetRaw,
        Capability::IpcLock,
        Capability::SysRawio,
        Capability::SysAdmin,
        Capability::Bpf,
    ];

    /// Returns the name as in `CAP_NET_RAW`, the form of systemd and the manual pages.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Chown => "CAP_CHOWN",
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysRawio => "CAP_SYS_RAWIO",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Bpf => "CAP_BPF",
        }
    }

    fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// A set of capabilities, one bit each as in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Returns true if the set contains the capability.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }

    /// Returns the set with the capability added.
    pub fn with(self, capability: Capability) -> Capabilities {
        Capabilities(self.0 | capability.bit())
    }

    /// Returns the names, ordered by number. Capabilities not in [`Capability`] are named by number.
    pub fn names(self) -> Vec<String> {
        let name = |number: u32| {
            let known = Capability::ALL.into_iter().find(|&known| known as u32 == number);
            known.map_or_else(|| format!("capability {number}"), |known| known.name().to_owned())
        };
        (0..u64::BITS).filter(|number| self.0 >> number & 1 == 1).map(name).collect()
    }

    /// Returns the capabilities of the set that are in [`Capability`], ordered by number.
    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.into_iter().filter(move |&known| self.has(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_numbers_match_kernel() {
        use rustix::thread::CapabilitySet as Kernel;
        let all = [
            (Capability::Chown, Kernel::CHOWN),
            (Capability::NetBindService, Kernel::NET_BIND_SERVICE),
            (Capability::NetAdmin, Kernel::NET_ADMIN),
            (Capability::NetRaw, Kernel::NET_RAW),
            (Capability::IpcLock, Kernel::IPC_LOCK),
            (Capability::SysRawio, Kernel::SYS_RAWIO),
            (Capability::SysAdmin, Kernel::SYS_ADMIN),
            (Capability::Bpf, Kernel::BPF),
        ];
        assert_eq!(all.map(|(ours, _)| ours), Capability::ALL);
        for (ours, kernel) in all {
            assert_eq!(Capabilities::default().with(ours).0, kernel.bits(), "{}", ours.name());
        }
    }
}
