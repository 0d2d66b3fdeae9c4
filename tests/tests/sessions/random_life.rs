//! Random cells with traps, rollbacks, forks, undo and restores at random
//! points, against the same cells without any of it.

use fumehood::{Engine, Sandbox, Session};
use fumehood_tests::harness::machine::is_full;

use crate::support::{cancelled, engine, patient, plain_engine, seen, trap};

/// Something of every kind of state that a session can have.
const PROLOGUE: &str = r"
import builtins, importlib, os, random, sys
random.seed(1234)
S = {'n': 0}
class Acc:
    total = 0
    def __init__(self, v):
        self.v = v
    def add(self, other):
        self.v += other
        Acc.total += other
        return self.v
def counter(n):
    def inc(by=1):
        nonlocal n
        n += by
        return n
    return inc
def gen(n):
    x = 0
    while True:
        got = yield (n, x)
        x += 1 if got is None else got
acc, c, g = Acc(1), counter(10), gen(3)
next(g)
rec = []
rec.append(rec)
tree = {'l': None}
big = 3 ** 200
f = open('/tmp/log.txt', 'w+')
sys.path.insert(0, '/work')
";

/// Changes everything that the prologue made, and more.
const SABOTAGE: &str = r"
acc.add(999)
c(77)
g.send(5)
rec.append('bad')
rec.pop(0)
del tree
big = 0
f.write('BAD')
f.close()
S['bad'] = 1
Acc.total = -1
Acc.add = None
random.seed(0)
sys.modules['bad'] = sys
sys.path.clear()
builtins.bad = 1
os.environ['BAD'] = '1'
open('/tmp/bad', 'w').write('bad')
os.makedirs('/work/bad', exist_ok=True)
os.chdir('/tmp')
if os.path.exists('/tmp/log.txt'): os.remove('/tmp/log.txt')
junk = [bytearray(50_000) for _ in range(9)]
kept_open = open('/tmp/bad')
_ = 'bad'
print('sabotage')
";

/// Whether anything of the sabotage is left.
const LOOK: &str = "sorted(S.items()), os.path.exists('/tmp/bad'), 'bad' in sys.modules, \
    hasattr(builtins, 'bad'), 'BAD' in os.environ, sorted(os.listdir('/work')), os.getcwd(), \
    sys.path[0], f.closed, 'junk' in globals(), 'kept_open' in globals(), acc.v, Acc.total, \
    c(0), rec[0] is rec, big % 1009, random.getstate()[1][:3]";

/// A small generator; the same numbers on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % most
    }
}

/// A cell whose result depends on nothing but the cells before it.
fn cell(numbers: &mut Numbers) -> String {
    let k = numbers.below(30) + 1;
    let j = k % 4;
    match numbers.below(20) {
        0 => format!("acc.add({k}), Acc.total"),
        1 => format!("c({k})"),
        2 => format!("g.send({k})"),
        3 => "next(g)".to_owned(),
        4 => format!("rec.append([{k}, rec])\nlen(rec), rec[0] is rec, rec[-1][0]"),
        5 => format!(
            "tree = {{'l': tree, 'k': {k}}}\nd, n = tree, 0\nwhile d:\n    d, n = d['l'], n + 1\nn"
        ),
        6 => format!("big = big * {k} + 1\nbig.bit_length(), big % 1_000_003"),
        7 => format!("f.seek(0, 2)\nf.write('{k}\\n')\nf.flush()\nf.tell()"),
        8 => "f.seek(0)\ntext = f.read()\nlen(text), text[-20:]".to_owned(),
        9 => format!(
            "open('/work/m{j}.py', 'w').write('V = {k}\\ndef get():\\n    return V')\n\
             importlib.invalidate_caches()\nsys.modules.pop('m{j}', None)\nimport m{j}\nm{j}.get()"
        ),
        10 => "random.random(), random.randrange(10 ** 9)".to_owned(),
        11 => format!("S['n'] += {k}\nS['k{j}'] = {k}\nsorted(S.items())"),
        12 => format!("raise ValueError({k})"),
        13 => format!("print('x' * {k})\nsys.stderr.write('e{k}')\nNone"),
        14 => format!("data{j} = list(range({k} * 50))\nsum(data{j})"),
        15 => format!("blob{j} = bytearray({k} * 100_000)\nblob{j}[-1] = {k}\nsum(blob{j})"),
        16 => "sorted(os.listdir('/tmp')), os.path.getsize('/tmp/log.txt')".to_owned(),
        17 => format!("def later{j}(x, y={k}):\n    return x + y + acc.v\nlater{j}({j})"),
        18 => "repr(_)[:60] if '_' in globals() else None".to_owned(),
        _ => format!("[f'{{n:>{k}}}' for n in range(3)]"),
    }
}

/// Something after which the session is as before. Returns the session that
/// goes on.
fn disturb(session: Session, numbers: &mut Numbers) -> Session {
    match numbers.below(9) {
        0 | 1 => {
            let outcome = session.exec(trap(SABOTAGE)).wait();
            assert!(outcome.rolled_back, "{outcome:?}");
            assert_eq!(outcome.stdout_text(), "sabotage\n");
        }
        2 => assert!(cancelled(&session, SABOTAGE).rolled_back),
        3 => {
            // Deep native recursion uses the stack up.
            let deep = "x = 1\nfor _ in range(200_000):\n    x = (x,)\nhash(x)\nos._exit(1)";
            assert!(session.exec(format!("{SABOTAGE}\n{deep}")).wait().rolled_back);
        }
        4 => {
            let kept = session.checkpoint().wait().unwrap();
            for _ in 0..=numbers.below(2) {
                let _ = session.exec(SABOTAGE).wait();
            }
            session.restore(kept).wait().unwrap();
        }
        5 => {
            let mut cells = 1;
            let done = session.exec(SABOTAGE).wait();
            assert_eq!(done.kind.as_str(), "completed", "{done:?}");
            if numbers.below(2) == 0 {
                // Not counted: it is rolled back.
                assert!(session.exec(trap("S['bad'] = 2")).wait().rolled_back);
                // Counted: an exception is no trap.
                let _ = session.exec("1 / 0").wait();
                cells += 1;
            }
            session.undo(cells).wait().unwrap();
        }
        6 => {
            let child = session.fork().wait().unwrap();
            let _ = session.exec(SABOTAGE).wait();
            return child;
        }
        7 => {
            let child = session.fork().wait().unwrap();
            let _ = child.exec(SABOTAGE).wait();
            drop(child);
        }
        _ => {
            let child = session.fork().wait().unwrap();
            let _ = child.exec(trap(SABOTAGE)).wait();
            return child.fork().wait().unwrap();
        }
    }
    session
}

fn life(engine: &Engine, seed: u64, cells: usize) {
    let sandbox = Sandbox::builder().engine(engine.clone()).limits(patient()).build().unwrap();
    let (quiet, mut disturbed) = (sandbox.session(), sandbox.session());
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut history = Vec::new();
    for at in 0..cells {
        let code = match at {
            0 => PROLOGUE.to_owned(),
            _ if at % 5 == 4 => LOOK.to_owned(),
            _ => cell(&mut numbers),
        };
        let expected = seen(&quiet.exec(&*code).wait());
        let found = seen(&disturbed.exec(&*code).wait());
        history.push(code);
        assert_eq!(found, expected, "seed {seed}, cell {at}, after {history:#?}");
        if numbers.below(3) == 0 {
            disturbed = disturb(disturbed, &mut numbers);
        }
    }
    assert_eq!(seen(&disturbed.exec(LOOK).wait()), seen(&quiet.exec(LOOK).wait()), "seed {seed}");
}

#[test]
fn a_session_with_traps_forks_and_undo_gives_the_results_of_one_without() {
    let lives = if is_full() { 60 } else { 12 };
    for seed in 1..=lives {
        life(&engine(), seed, 40);
    }
}

#[test]
fn the_plain_memory_path_gives_the_same_results() {
    let lives = if is_full() { 10 } else { 2 };
    for seed in 1..=lives {
        life(&plain_engine(), seed, 25);
    }
}
