//! Lists of allowed system calls. Conditions on their arguments (clone, ioctl, mmap, open, prctl, prlimit64, sendto,
//! socket, tgkill and similar) are in the parent module.
//!
//! Two groups are excluded on purpose. chmod(2), chown(2) and similar would reach all files of ddpd's user, because
//! Landlock does not restrict them. openat2(2) passes its mode in memory, which a filter cannot read.

use std::collections::BTreeSet;

use libc::*;

/// Calls of every worker: memory, sleep, wake-up, exit.
pub(super) const WORKER: &[c_long] = &[
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_futex,
    SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_gettid,
    SYS_getpid,
    SYS_mmap,
    SYS_mprotect,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_membarrier,
    SYS_getrandom,
    SYS_tgkill,
    // sendto(2): used by drivers to wake the kernel, and by the signal handler, which may run in any thread, to report
    // a signal through a socket pair. Allowed only with a null address, unless the worker logs to journald (see
    // `worker_rules`).
    SYS_sendto,
    // recvfrom(2) receives wake-ups from local programs.
    SYS_recvfrom,
    SYS_exit,
    SYS_exit_group,
];

/// Additional calls of a worker that logs to systemd's journal.
pub(super) const JOURNALD: &[c_long] = &[SYS_sendmsg, SYS_memfd_create, SYS_fcntl, SYS_lseek];

/// Additional calls of all other threads: files, sockets, threads, and the EAL's threads.
pub(super) const CONTROL: &[c_long] = &[
    // Files.
    SYS_openat,
    SYS_newfstatat,
    SYS_fstat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_lseek,
    SYS_readv,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_copy_file_range,
    SYS_umask,
    SYS_flock,
    SYS_fcntl,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_close_range,
    SYS_ioctl,
    // Memory.
    SYS_memfd_create,
    SYS_mlock,
    SYS_mlock2,
    SYS_munlock,
    SYS_msync,
    SYS_mincore,
    SYS_mbind,
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    // Events.
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_signalfd4,
    // Sockets.
    SYS_socket,
    SYS_socketpair,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_recvmmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_setsockopt,
    SYS_getsockopt,
    // Threads.
    SYS_clone,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_prctl,
    SYS_seccomp,
    // Queries about the process and the host.
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_capget,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_times,
    SYS_uname,
    SYS_sysinfo,
    SYS_clock_getres,
    SYS_gettimeofday,
    #[cfg(target_arch = "x86_64")]
    SYS_open,
    #[cfg(target_arch = "x86_64")]
    SYS_stat,
    #[cfg(target_arch = "x86_64")]
    SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    SYS_access,
    #[cfg(target_arch = "x86_64")]
    SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    SYS_rename,
    #[cfg(target_arch = "x86_64")]
    SYS_link,
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    SYS_select,
    // DPDK's interrupt thread creates a new epoll instance when its event sources change. If the call fails, DPDK ends
    // the process.
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    SYS_eventfd,
    #[cfg(target_arch = "x86_64")]
    SYS_getdents,
    #[cfg(target_arch = "x86_64")]
    SYS_time,
];

/// Additional calls of ports that connect to a Unix socket, and reconnect after it closes.
pub(super) const CONNECT: &[c_long] = &[SYS_connect];

/// Returns the additional calls of a kind of port: in its workers, and in the other threads.
///
/// # Errors
/// The kind has no entry. The error is one sentence.
pub(super) fn calls_of_kind(kind: &str) -> Result<(&'static [c_long], &'static [c_long]), String> {
    Ok(match kind {
        "af_packet" => (&[], &[]),
        // libxdp loads, updates and removes its program with bpf(2).
        "af_xdp" => (&[SYS_recvfrom, SYS_getsockopt], &[SYS_bpf]),
        "tap" => (&[SYS_readv], &[]),
        "memif" => (&[], &[]),
        "ring" => (&[], &[]),
        // sendmsg(2) reports IOTLB misses to the frontend. epoll_pwait(2) receives the frontend's kicks.
        "vhost-user" => (&[SYS_sendmsg, SYS_epoll_pwait, SYS_epoll_pwait2], &[]),
        "pcap" => (&[SYS_newfstatat, SYS_fstat, SYS_lseek], &[]),
        "pci" => (
            &[
                SYS_ioctl,
                SYS_epoll_ctl,
                #[cfg(target_arch = "x86_64")]
                SYS_epoll_wait,
                SYS_epoll_pwait,
                SYS_pread64,
                SYS_pwrite64,
            ],
            &[],
        ),
        _ => return Err(format!("there is no list of system calls for ports of kind \"{kind}\"")),
    })
}

/// Returns the socket families that a process with these kinds of port uses, in addition to Unix stream sockets.
pub(super) fn socket_families(kinds: &BTreeSet<&str>) -> Vec<c_int> {
    // AF_INET and AF_INET6: metrics, and ioctl(2) on interfaces. AF_NETLINK: interfaces.
    let mut families = vec![AF_INET, AF_INET6, AF_NETLINK];
    families.extend(kinds.contains("af_packet").then_some(AF_PACKET));
    families.extend(kinds.contains("af_xdp").then_some(AF_XDP));
    // mlx5 looks up its device with if_indextoname(3), for which the C library opens a Unix datagram socket.
    families.extend(kinds.contains("pci").then_some(AF_UNIX));
    families
}
