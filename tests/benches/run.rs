//! What a run costs: `cargo bench -p fumehood-tests`. Not a test; asserts no
//! figure.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    missing_docs,
    reason = "a bench lives on the host and fails by panicking"
)]

use std::hint::black_box;
use std::io::Read as _;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use criterion::{Criterion, criterion_group, criterion_main};
use fumehood::{Outcome, OutcomeKind, Sandbox, Script};

const FILES: usize = 200;

fn completed(outcome: &Outcome) {
    assert_eq!(outcome.kind, OutcomeKind::Completed, "{:?}", outcome.error);
}

/// A sandbox made, a small program run, its result read, all dropped.
fn create_to_result(criterion: &mut Criterion) {
    criterion.bench_function("create_to_result", |bencher| {
        bencher.iter(|| {
            let sandbox = Sandbox::builder().build().expect("a sandbox");
            let outcome = sandbox.run(Script::new("print(sum(range(10)))")).wait();
            completed(&outcome);
            black_box(outcome)
        });
    });
}

/// A further run in a sandbox that exists.
fn second_run(criterion: &mut Criterion) {
    let sandbox = Sandbox::builder().build().expect("a sandbox");
    completed(&sandbox.run("1").wait());
    criterion.bench_function("second_run", |bencher| {
        bencher.iter(|| black_box(sandbox.run("sum(range(10))").wait()));
    });
}

/// Opening, reading and closing small files: in the guest through a mount, and
/// natively through a directory handle.
fn open_read_close(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    for number in 0..FILES {
        std::fs::write(directory.path().join(format!("{number}.txt")), [b'x'; 100])
            .expect("a file");
    }
    let mut group = criterion.benchmark_group("open_read_close_200_files");
    let sandbox =
        Sandbox::builder().mount_read_only("/data", directory.path()).build().expect("a sandbox");
    let code = format!(
        "import os\nfor n in range({FILES}):\n    f = os.open(f'/data/{{n}}.txt', os.O_RDONLY)\n    os.read(f, 4096)\n    os.close(f)\n"
    );
    group.bench_function("guest", |bencher| {
        bencher.iter(|| completed(&sandbox.run(Script::new(code.as_str())).wait()));
    });
    let handle = Dir::open_ambient_dir(directory.path(), ambient_authority()).expect("a handle");
    group.bench_function("cap_std", |bencher| {
        let mut buffer = Vec::with_capacity(4096);
        bencher.iter(|| {
            for number in 0..FILES {
                buffer.clear();
                let mut file = handle.open(format!("{number}.txt")).expect("a file");
                black_box(file.read_to_end(&mut buffer).expect("its contents"));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, create_to_result, second_run, open_read_close);
criterion_main!(benches);
