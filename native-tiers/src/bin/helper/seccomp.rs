//! Filters over system calls, made of the data in [`crate::rules`].
//!
//! Invariant: two filters are installed, in this order: the list of what is
//! allowed, and the list of what is answered as not there, which begins with
//! the check for the x32 table. A filter that cannot be made or installed is an
//! error; nothing runs without.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};

use crate::rules::{
    ALLOWED, ALLOWED_OLDER, NOT_THERE, REFUSED_ALONE, REFUSED_ALONE_OLDER, conditional,
    conditional_alone,
};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// The bit of a system call's number that names the x32 table.
const X32_BIT: u32 = 0x4000_0000;

/// What of a filter could not be made.
pub(crate) type Failure = Box<dyn std::error::Error>;

fn error(number: i32) -> SeccompAction {
    SeccompAction::Errno(u32::try_from(number).unwrap_or(1))
}

/// What is allowed; the rest is `EPERM`, another architecture the end. `alone`:
/// without namespaces.
pub(crate) fn allowed(alone: bool) -> Result<BpfProgram, Failure> {
    let refused = |number: &i64| {
        alone && REFUSED_ALONE.iter().chain(REFUSED_ALONE_OLDER).any(|one| one == number)
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED
        .iter()
        .chain(ALLOWED_OLDER)
        .filter(|number| !refused(number))
        .map(|number| (*number, Vec::new()))
        .collect();
    let stricter = if alone { conditional_alone() } else { Vec::new() };
    for (number, choices) in conditional().into_iter().chain(stricter) {
        let mut all = Vec::new();
        for conditions in choices {
            let conditions = conditions
                .into_iter()
                .map(|(place, width, how, value)| SeccompCondition::new(place, width, how, value))
                .collect::<Result<Vec<_>, _>>()?;
            all.push(SeccompRule::new(conditions)?);
        }
        rules.insert(number, all);
    }
    let filter = SeccompFilter::new(rules, error(libc::EPERM), SeccompAction::Allow, ARCHITECTURE)?;
    Ok(filter.try_into()?)
}

/// What is answered as not there, behind the check for the x32 table.
pub(crate) fn not_there() -> Result<BpfProgram, Failure> {
    let rules = NOT_THERE.iter().map(|number| (*number, Vec::new())).collect();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, error(libc::ENOSYS), ARCHITECTURE)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(x32_check().into_iter().chain(program).collect())
}

/// Ends a process that calls by the x32 table. The number is at offset 0 of
/// `struct seccomp_data`; jumps are relative, so a program can follow.
fn x32_check() -> Vec<sock_filter> {
    if cfg!(not(target_arch = "x86_64")) {
        return Vec::new();
    }
    let load = 0x20; // BPF_LD | BPF_W | BPF_ABS
    let at_least = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    let answer = 0x06; // BPF_RET | BPF_K
    vec![
        sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        sock_filter { code: at_least, jt: 0, jf: 1, k: X32_BIT },
        sock_filter { code: answer, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
    ]
}

/// Installs both filters in this thread, for ever.
pub(crate) fn install(alone: bool) -> Result<(), Failure> {
    let (first, second) = (allowed(alone)?, not_there()?);
    seccompiler::apply_filter(&first)?;
    seccompiler::apply_filter(&second)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lists_name_each_call_once_and_what_is_answered_is_let_through() {
        let allowed: BTreeSet<_> = ALLOWED.iter().collect();
        assert_eq!(allowed.len(), ALLOWED.len());
        for number in NOT_THERE {
            assert!(allowed.contains(number), "{number} would be EPERM");
        }
        for (number, choices) in conditional() {
            assert!(!allowed.contains(&number), "{number} is allowed without its condition");
            assert!(choices.iter().all(|choice| !choice.is_empty()), "{number}");
        }
    }

    #[test]
    fn what_is_left_out_on_purpose_is_in_no_list() {
        let conditional: BTreeSet<_> =
            conditional().into_iter().map(|(number, _)| number).collect();
        for number in [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept4,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_fsopen,
            libc::SYS_fsmount,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_mount_setattr,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_getfd,
            libc::SYS_kcmp,
            libc::SYS_perf_event_open,
            libc::SYS_bpf,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_syslog,
            libc::SYS_open_by_handle_at,
            libc::SYS_name_to_handle_at,
            libc::SYS_swapon,
            libc::SYS_acct,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
            libc::SYS_mq_open,
            libc::SYS_semget,
            libc::SYS_msgget,
        ] {
            assert!(!ALLOWED.contains(&number) && !conditional.contains(&number), "{number}");
        }
    }

    #[test]
    fn the_filters_can_be_made() {
        assert!(allowed(false).unwrap().len() < 4096);
        assert!(allowed(true).unwrap().len() < 4096);
        let program = not_there().unwrap();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(program.get(1).map(|one| one.k), Some(X32_BIT));
        }
    }

    /// Whether calls are answered with `EPERM` under a filter.
    fn refused(alone: bool, calls: &[(i64, [i64; 4])]) -> Vec<bool> {
        let calls = calls.to_vec();
        let work = move || {
            seccompiler::apply_filter(&allowed(alone).unwrap()).unwrap();
            let answer = |(number, arguments): (i64, [i64; 4])| {
                let error = crate::raw::attempt(number, arguments).err();
                error.and_then(|error| error.raw_os_error()) == Some(libc::EPERM)
            };
            calls.into_iter().map(answer).collect()
        };
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn without_namespaces_no_call_changes_what_landlock_does_not_judge() {
        let numbers = REFUSED_ALONE.iter().chain(REFUSED_ALONE_OLDER);
        // Arguments that no kernel takes: nothing is changed where it is allowed.
        let mut calls: Vec<_> = numbers.map(|number| (*number, [-1, 0, 0, 0])).collect();
        for (number, _) in &calls {
            assert!(ALLOWED.iter().chain(ALLOWED_OLDER).any(|one| one == number), "{number}");
        }
        let (nobody, no_file) = (0x3fff_ffff, -1);
        calls.extend([
            (libc::SYS_utimensat, [no_file, 1, 0, 0]),
            (libc::SYS_utimensat, [no_file, 0, 1, 0]),
            (libc::SYS_utimensat, [no_file, 0, 0, 0x1000]),
            (libc::SYS_sched_setaffinity, [nobody, 0, 0, 0]),
            (libc::SYS_ioctl, [no_file, 0x4008_6602, 0, 0]),
            (libc::SYS_ioctl, [no_file, 0x401c_5820, 0, 0]),
        ]);
        let alone = refused(true, &calls);
        let with_namespaces = refused(false, &calls);
        for ((call, alone), with_namespaces) in calls.iter().zip(alone).zip(with_namespaces) {
            assert!(alone && !with_namespaces, "{call:?}");
        }
        // What stays: the time of now for an open file, and what is its own.
        let own = [
            (libc::SYS_utimensat, [no_file, 0, 0, 0]),
            (libc::SYS_sched_setaffinity, [0, 0, 0, 0]),
            (libc::SYS_ioctl, [no_file, 0x5401, 0, 0]),
        ];
        assert_eq!(refused(true, &own), [false; 3]);
        // A terminal stays shut in both.
        let typed = [(libc::SYS_ioctl, [no_file, 0x5412, 0, 0])];
        assert_eq!((refused(true, &typed), refused(false, &typed)), (vec![true], vec![true]));
    }
}
