//! A container's default system call filter, as data: what it denies.
//!
//! Container engines allow a list and deny the rest; this states the denials
//! that matter for a runtime like ours, so that needing one of them shows. A
//! denied call fails with EPERM, except `clone3`, which fails with ENOSYS so
//! that the C library uses `clone`, whose flags a filter can read.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// `(calls, why a container must not have them)`.
const DENIED: &[(&[libc::c_long], &str)] = &[
    (
        &[libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot],
        "changes what paths mean",
    ),
    (
        &[
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
        ],
        "the newer mount calls",
    ),
    (&[libc::SYS_unshare, libc::SYS_setns], "enters and makes namespaces"),
    (
        &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kcmp,
        ],
        "reads other processes",
    ),
    (
        &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
        "kernel keyrings have no namespace",
    ),
    (&[libc::SYS_bpf], "loads code into the kernel"),
    (&[libc::SYS_perf_event_open], "observes the whole machine"),
    (&[libc::SYS_userfaultfd], "holds the kernel in the middle of a copy"),
    (
        &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
        "makes system calls that no filter sees",
    ),
    (
        &[libc::SYS_kexec_load, libc::SYS_kexec_file_load, libc::SYS_reboot],
        "replaces or stops the kernel",
    ),
    (&[libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module], "kernel modules"),
    (
        &[libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct, libc::SYS_quotactl],
        "settings of the whole machine",
    ),
    (
        &[libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime],
        "the clock is not in a namespace",
    ),
    (&[libc::SYS_sethostname, libc::SYS_setdomainname], "names of the machine"),
    (&[libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at], "opens files without a path"),
    (&[libc::SYS_fanotify_init, libc::SYS_lookup_dcookie], "watches file systems from outside"),
    (
        &[
            libc::SYS_move_pages,
            libc::SYS_migrate_pages,
            libc::SYS_mbind,
            libc::SYS_set_mempolicy,
            libc::SYS_get_mempolicy,
        ],
        "memory placement of others",
    ),
    (&[libc::SYS_personality, libc::SYS_vhangup, libc::SYS_syslog], "rarely needed, often abused"),
    #[cfg(target_arch = "x86_64")]
    (&[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt], "hardware ports and segments"),
    #[cfg(target_arch = "x86_64")]
    (&[libc::SYS_uselib, libc::SYS_ustat, libc::SYS_sysfs, libc::SYS__sysctl], "obsolete"),
];

/// `clone` must not make a namespace.
const NAMESPACE_FLAGS: &[libc::c_int] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Puts the filter on the calling thread and everything it starts.
pub fn apply() -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let arch: TargetArch = std::env::consts::ARCH
        .try_into()
        .map_err(|error: seccompiler::BackendError| text(&error))?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        DENIED.iter().flat_map(|(calls, _)| calls.iter()).map(|call| (*call, Vec::new())).collect();
    let mut namespaces = Vec::new();
    for flag in NAMESPACE_FLAGS {
        let flag = u64::from(flag.cast_unsigned());
        let set = SeccompCmpOp::MaskedEq(flag);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, set, flag)
            .map_err(|error| text(&error))?;
        namespaces.push(SeccompRule::new(vec![condition]).map_err(|error| text(&error))?);
    }
    rules.insert(libc::SYS_clone, namespaces);
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    for (rules, errno) in [(rules, libc::EPERM), (unknown, libc::ENOSYS)] {
        let deny = SeccompAction::Errno(errno.cast_unsigned());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, arch)
            .map_err(|error| text(&error))?;
        let program: BpfProgram =
            filter.try_into().map_err(|error: seccompiler::BackendError| text(&error))?;
        seccompiler::apply_filter(&program).map_err(|error| text(&error))?;
    }
    Ok(())
}
