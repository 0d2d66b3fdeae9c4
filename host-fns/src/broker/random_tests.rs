//! Arbitrary host calls: whatever the numbers are, the broker answers, stays
//! within its limits and keeps its records in pairs.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use proptest::prelude::*;

use crate::audit::Phase;
use crate::call::{HostCall, SetTime, Subscription};
use crate::testing::Guest;

/// The numbers and names of a call.
#[derive(Clone, Debug)]
struct Raw {
    kind: u8,
    fd: u32,
    other: u32,
    path: Vec<u8>,
    second: Vec<u8>,
    number: u64,
    small: u8,
    flags: u16,
    rights: u64,
    follow: bool,
    length: usize,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => prop_oneof![Just("a"), Just("b"), Just("m"), Just("tmp"), Just("work"), Just("link")].prop_map(str::as_bytes).prop_map(<[u8]>::to_vec),
        1 => Just(b"..".to_vec()),
        1 => Just(b".".to_vec()),
        1 => Just(Vec::new()),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ];
    proptest::collection::vec(part, 0..5).prop_map(|parts| parts.join(&b'/'))
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20_u64, Just(u64::MAX), Just(i64::MAX as u64), Just(1 << 40), any::<u64>()]
}

fn raw() -> impl Strategy<Value = Raw> {
    let fd = || prop_oneof![0..12_u32, Just(3), any::<u32>()];
    let rights = prop_oneof![Just(2_u64), Just(64), Just(66), any::<u64>()];
    let first = (0..33_u8, fd(), fd(), name(), name(), number());
    (first, 0..7_u8, 0..18_u16, rights, any::<bool>(), 0..200_usize).prop_map(
        |((kind, fd, other, path, second, number), small, flags, rights, follow, length)| Raw {
            kind,
            fd,
            other,
            path,
            second,
            number,
            small,
            flags,
            rights,
            follow,
            length,
        },
    )
}

fn time(raw: &Raw) -> SetTime {
    match raw.small {
        0..2 => SetTime::Keep,
        2..4 => SetTime::Now,
        _ => SetTime::To(raw.number),
    }
}

fn call<'m>(raw: &'m Raw, buffer: &'m mut [u8]) -> HostCall<'m> {
    use HostCall as C;
    let Raw { fd, number, small, follow, .. } = *raw;
    let (path, second, dir) = (raw.path.as_slice(), raw.second.as_slice(), raw.fd);
    let new_dir = raw.other;
    match raw.kind {
        0 => C::ClockTime { clock: fd },
        1 => C::Random { into: buffer },
        2 => {
            C::Poll { subscriptions: vec![Subscription::Read { userdata: number, fd }; raw.length] }
        }
        3 => C::FdAdvise { fd, offset: number, len: raw.rights, advice: small },
        4 => C::FdAllocate { fd, offset: number, len: raw.rights },
        5 => C::FdClose { fd },
        6 => C::FdFdstatGet { fd },
        7 => C::FdFdstatSetFlags { fd, flags: raw.flags },
        8 => C::FdFilestatGet { fd },
        9 => C::FdFilestatSetSize { fd, size: number },
        10 => C::FdFilestatSetTimes { fd, accessed: time(raw), modified: time(raw) },
        11 => C::FdPrestatDirName { fd, into: buffer },
        12 => C::FdRead { fd, into: buffer },
        13 => C::FdPread { fd, into: buffer, offset: number },
        14 => C::FdReaddir { fd, into: buffer, cookie: number },
        15 => C::FdRenumber { from: fd, to: new_dir },
        16 => C::FdSeek { fd, delta: number.cast_signed(), whence: small },
        17 => C::FdSync { fd, data_only: follow },
        18 => C::FdWrite { fd, data: path },
        19 => C::FdPwrite { fd, data: path, offset: number },
        20 => C::PathCreateDirectory { dir, path },
        21 => C::PathFilestatGet { dir, follow, path },
        22 => {
            C::PathFilestatSetTimes { dir, follow, path, accessed: time(raw), modified: time(raw) }
        }
        23 => C::PathLink { old_dir: dir, follow, old: path, new_dir, new: second },
        24 => C::PathReadlink { dir, path, into: buffer },
        25 => C::PathRemoveDirectory { dir, path },
        26 => C::PathRename { old_dir: dir, old: path, new_dir, new: second },
        27 => C::PathSymlink { target: path, dir, path: second },
        28 => C::PathUnlinkFile { dir, path },
        29 => C::Brokered { op: fd, request: path, response: buffer },
        _ => {
            let (rights_base, open_flags, fd_flags) = (raw.rights, raw.flags, u16::from(small));
            C::PathOpen {
                dir: 3,
                follow,
                path,
                open_flags,
                rights_base,
                rights_inheriting: 0,
                fd_flags,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_call_is_answered(calls in proptest::collection::vec(raw(), 1..150)) {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        std::fs::write(root.path().join("canary"), "canary").unwrap();
        std::os::unix::fs::symlink("../canary", mount.join("link")).unwrap();
        let mut guest = Guest::mounted(&mount, crate::Access::ReadWrite);
        let state = guest.broker.snapshot();
        for raw in &calls {
            let mut buffer = vec![0; raw.length];
            let _ = guest.broker.dispatch(call(raw, &mut buffer));
        }
        let (bytes, names, inodes) = guest.broker.memory_used();
        prop_assert!(bytes <= 256 << 20 && names < 200 && inodes < 200);
        guest.broker.report();
        guest.broker.restore(state);
        prop_assert_eq!(guest.list("/").unwrap(), ["home", "m", "tmp", "work"]);
        prop_assert_eq!(guest.audit.dropped(), 0);
        let mut open = None;
        for record in guest.audit.records() {
            match record.phase {
                Phase::Intent if record.verdict == fumehood_policies::Verdict::Allow => {
                    prop_assert_eq!(open.replace(record.call), None);
                }
                Phase::Outcome(_) => prop_assert_eq!(open.take(), Some(record.call)),
                _ => {}
            }
        }
        prop_assert_eq!(open, None);
        prop_assert_eq!(std::fs::read(root.path().join("canary")).unwrap(), b"canary");
        prop_assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 2);
    }
}
