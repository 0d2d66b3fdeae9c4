//! W: descriptors, buffers, offsets and sizes at the ABI.
//!
//! Invariant: exit code 0 of a program means that the call under attack
//! succeeded; a code of 10 000 and more is a step that had to.

use fumehood_host_fns::Errno;

use crate::harness::wat::Program;
use crate::harness::{Attack, Attempt, Expected, Setting, machine};

const TOO_LARGE: &[Errno] =
    &[Errno::Fbig, Errno::Nospc, Errno::Inval, Errno::Overflow, Errno::Notsup];

fn answer(call: &str) -> Program {
    Program::new(format!("(call $answer {call})"))
}

/// Opens two files in memory, descriptors 4 and 5, then answers.
fn with_two_files(call: &str) -> Program {
    Program::new(format!(
        "(call $must (call $open @\"tmp/a\" %1 %W)) (call $must (call $open @\"tmp/b\" %1 %W))
         (call $answer {call})"
    ))
}

fn renumber() -> Vec<Attack> {
    let attack = |id, property, call: &str, expected: Expected| {
        Attack::module(id, property, with_two_files(call))
            .control_module(with_two_files("(call $fd_renumber %4 %5)"))
            .expect(expected, "both descriptors must be open and neither the preopened root")
    };
    let rounds = if machine::is_full() { 1_000_000 } else { 200_000 };
    vec![
        attack("W-04", "renumbering a descriptor onto itself changes nothing", "(call $fd_renumber %4 %4)", Expected::Harmless("")),
        attack("W-04b", "renumbering onto a closed descriptor is an error", "(call $fd_renumber %4 %99)", Expected::Errno(&[Errno::Badf])),
        attack("W-04c", "renumbering a closed descriptor is an error", "(call $fd_renumber %99 %4)", Expected::Errno(&[Errno::Badf])),
        attack("W-04d", "renumbering onto the preopened root does not replace it", "(call $fd_renumber %4 %3)", Expected::Errno(&[Errno::Notsup, Errno::Badf])),
        attack("W-04e", "the preopened root does not become another descriptor", "(call $fd_renumber %3 %4)", Expected::Errno(&[Errno::Notsup, Errno::Badf])),
        attack("W-04f", "renumbering with the largest numbers is an error", "(call $fd_renumber %-1 %-2)", Expected::Errno(&[Errno::Badf])),
        attack("W-04g", "renumbering onto a standard stream is defined and stays inside", "(call $fd_renumber %4 %1)", Expected::Harmless("")),
        Attack::module(
            "W-05",
            "renumbering again and again does not make the descriptor table grow",
            Program::new(format!(
                "
                 (call $must (call $open @\"tmp/a\" %1 %W))
                 (loop $again
                   (call $must (call $open @\"tmp/a\" %1 %W))
                   (call $must (call $fd_renumber (call $fd) %4))
                   (local.set $i (i32.add (local.get $i) %1))
                   (br_if $again (i32.lt_u (local.get $i) %{rounds})))
                 (call $must (call $open @\"tmp/a\" %1 %W))
                 (call $unless (i32.eq (call $fd) %5) %1)"
            )),
        )
        .control_module(Program::new(
            "(call $must (call $open @\"tmp/a\" %1 %W)) (call $must (call $open @\"tmp/a\" %1 %W))
             (call $unless (i32.eq (call $fd) %5) %1)",
        ))
        .about_memory()
        .expect(Expected::Harmless(""), "a descriptor that is replaced is closed"),
        Attack::module(
            "W-05b",
            "a program cannot open more files than its limit",
            Program::repeat(100_000, "(local.set $e (call $open @\"tmp/a\" %1 %W)) (if (local.get $e) (then (call $answer (local.get $e))))"),
        )
        .control_module(Program::repeat(100, "(call $must (call $open @\"tmp/a\" %1 %W))"))
        .expect(Expected::Errno(&[Errno::Mfile]), "open descriptors are counted against a limit"),
        Attack::module(
            "W-05c",
            "a closed descriptor stays closed",
            Program::new(
                "(call $must (call $open @\"tmp/a\" %1 %W)) (call $must (call $fd_close (call $fd)))
                 (call $answer (call $put (call $fd)))",
            ),
        )
        .control_module(Program::new("(call $must (call $open @\"tmp/a\" %1 %W)) (call $answer (call $put (call $fd)))"))
        .expect(Expected::Errno(&[Errno::Badf]), "a number without a descriptor names nothing"),
    ]
}

fn buffers() -> Vec<Attack> {
    let write = |list: &str, count: &str| format!("(call $fd_write %1 {list} {count} %76)");
    let with_list = |first: (i64, i64), second: (i64, i64), call: &str| {
        Program::new(format!(
            "(i32.store %65536 %{}) (i32.store %65540 %{}) (i32.store %65544 %{}) (i32.store %65548 %{})
             (call $answer {call})",
            first.0, first.1, second.0, second.1
        ))
    };
    let control = || Attempt::Module(with_list((4096, 1), (4096, 1), &write("%65536", "%2")));
    let attack = |id, property, program, expected| {
        Attack::module(id, property, program).control(control(), Expected::Harmless("!!")).expect(
            expected,
            "every address and length is checked against the memory before it is used",
        )
    };
    let bad = || Expected::Errno(&[Errno::Fault, Errno::Inval, Errno::Overflow]);
    vec![
        attack(
            "W-13",
            "a million buffers in one write are an error and cost no memory of the host",
            answer(&write("%65536", "%1000000")),
            bad(),
        ),
        attack(
            "W-13b",
            "buffers whose lengths together overflow are an error",
            with_list((4096, -1), (4096, -1), &write("%65536", "%2")),
            bad(),
        ),
        attack(
            "W-13c",
            "buffers of no length write nothing",
            with_list((4096, 0), (4096, 0), &write("%65536", "%2")),
            Expected::Harmless(""),
        ),
        attack(
            "W-13d",
            "a buffer behind the end of memory is an error",
            with_list((-4096, 4096), (0, 0), &write("%65536", "%1")),
            bad(),
        ),
        attack(
            "W-13e",
            "a buffer that wraps around the address space is an error",
            with_list((65536, -1), (0, 0), &write("%65536", "%1")),
            bad(),
        ),
        attack(
            "W-13f",
            "a list of buffers behind the end of memory is an error",
            answer(&write("%-8", "%1")),
            bad(),
        ),
        attack(
            "W-13g",
            "nothing is written when the count has nowhere to go",
            with_list((4096, 1), (0, 0), "(call $fd_write %1 %65536 %1 %-4)"),
            bad(),
        ),
        attack(
            "W-13h",
            "a read to behind the end of memory is an error",
            with_list((-16, 16), (0, 0), "(call $fd_read %0 %65536 %1 %76)"),
            bad(),
        ),
        attack(
            "W-13i",
            "a path behind the end of memory is an error",
            answer("(call $path_open %3 %1 %-16 %16 %0 %R %R %0 %32)"),
            bad(),
        ),
        attack(
            "W-13j",
            "the address of a path may not be negative",
            answer("(call $path_unlink_file %3 %-2147483648 %2147483647)"),
            Expected::Errno(&[Errno::Fault, Errno::Inval, Errno::Nametoolong]),
        ),
        attack(
            "W-13k",
            "randomness for more than the whole memory is an error",
            answer("(call $random_get %0 %-1)"),
            bad(),
        ),
        attack(
            "W-13l",
            "a time with nowhere to go is an error",
            answer("(call $clock_time_get %0 %L0 %-4)"),
            bad(),
        ),
        Attack::module(
            "W-14",
            "writing nothing again and again costs no memory of the host",
            Program::repeat(2_000_000, "(drop (call $fd_write %1 %64 %0 %76))"),
        )
        .control_module(Program::repeat(10, "(drop (call $fd_write %1 %64 %0 %76))"))
        .about_memory()
        .expect(Expected::Harmless(""), "an empty write keeps nothing"),
        Attack::module(
            "W-22",
            "output that nobody keeps costs no memory of the host",
            Program::repeat(64, "(call $print %0 %4194304)").pages(65),
        )
        .with(Setting::default().limit(|limits| limits.broker.output_bytes = 0))
        .control_with(
            Setting::default(),
            Attempt::Module(Program::new("(call $print @\"kept\")")),
            Expected::Harmless("kept"),
        )
        .about_memory()
        .expect(Expected::Harmless(""), "bytes beyond the limit are counted and dropped"),
    ]
}

fn sizes() -> Vec<Attack> {
    let on = |file: &str, call: &str| {
        Program::new(format!("(call $must (call $open @\"{file}\" %1 %W)) {call}"))
    };
    let far = "(call $must (call $fd_seek (call $fd) %L1099511627776 %0 %80)) (call $answer (call $put (call $fd)))";
    let near = "(call $must (call $fd_seek (call $fd) %L4096 %0 %80)) (call $answer (call $put (call $fd)))";
    let attack = |id, property, file: &str, call: &str, honest: &str| {
        Attack::module(id, property, on(file, call))
            .with(Setting::mounted())
            .control_module(on(file, honest))
            .about_memory()
            .expect(
                Expected::Errno(TOO_LARGE),
                "the new length is checked and paid for before anything is written",
            )
    };
    vec![
        attack(
            "W-16",
            "a byte far behind the end of a file in memory does not allocate the hole",
            "tmp/a",
            far,
            near,
        ),
        attack(
            "W-16b",
            "a byte far behind the end of a host file does not make it huge",
            "rw/a",
            far,
            near,
        ),
        attack(
            "W-16c",
            "an offset cannot be moved before the start",
            "tmp/a",
            "(call $answer (call $fd_seek (call $fd) %L-1 %0 %80))",
            "(call $answer (call $fd_seek (call $fd) %L0 %0 %80))",
        ),
        attack(
            "W-16d",
            "an offset cannot overflow",
            "tmp/a",
            "(call $must (call $fd_seek (call $fd) %L9223372036854775807 %0 %80)) (call $answer (call $fd_seek (call $fd) %L9223372036854775807 %1 %80))",
            "(call $answer (call $fd_seek (call $fd) %L1 %1 %80))",
        ),
        attack(
            "W-16e",
            "a write at the end of the number range is an error",
            "tmp/a",
            "(i32.store %64 %4096) (i32.store %68 %1) (call $answer (call $fd_pwrite (call $fd) %64 %1 %L-1 %76))",
            "(i32.store %64 %4096) (i32.store %68 %1) (call $answer (call $fd_pwrite (call $fd) %64 %1 %L1 %76))",
        ),
        attack(
            "W-17",
            "a file is not set to the largest length",
            "tmp/a",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L9223372036854775807))",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L100))",
        ),
        attack(
            "W-17b",
            "a file is not set to a negative length",
            "tmp/a",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L-1))",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L100))",
        ),
        attack(
            "W-17c",
            "room for the largest length is not given",
            "tmp/a",
            "(call $answer (call $fd_allocate (call $fd) %L1 %L9223372036854775807))",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L100))",
        ),
        attack(
            "W-17f",
            "a host file is not set to the largest length",
            "rw/a",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L9223372036854775807))",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L100))",
        ),
        attack(
            "W-17g",
            "room in a host file is not given beyond its limit",
            "rw/a",
            "(call $answer (call $fd_allocate (call $fd) %L-1 %L-1))",
            "(call $answer (call $fd_filestat_set_size (call $fd) %L100))",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = renumber();
    all.extend(buffers());
    all.extend(sizes());
    all
}
