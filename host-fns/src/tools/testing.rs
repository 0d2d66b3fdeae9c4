//! Tools and an executor of two threads for tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use serde_json::{Value, json};

use crate::tools::{AbortOnDrop, Executor, Tool, ToolError, ToolFuture, ToolSet};

type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Cell {
    future: Mutex<Option<Spawned>>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    cells: Mutex<(VecDeque<Arc<Cell>>, bool)>,
    changed: Condvar,
}

impl Wake for Cell {
    fn wake(self: Arc<Self>) {
        let queue = Arc::clone(&self.queue);
        queue.cells.lock().unwrap().0.push_back(self);
        queue.changed.notify_one();
    }
}

struct Handle(Arc<Cell>);

impl AbortOnDrop for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let future = self.0.future.lock().unwrap().take();
        drop(future);
    }
}

/// Dropping it ends its threads.
pub(crate) struct Threads {
    queue: Arc<Queue>,
    /// It panics at this call from now on; 0 for never.
    pub(crate) broken: AtomicUsize,
}

impl Threads {
    pub(crate) fn start() -> Arc<Self> {
        let queue = Arc::new(Queue::default());
        for _ in 0..2 {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || work(&queue));
        }
        Arc::new(Self { queue, broken: AtomicUsize::new(0) })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.cells.lock().unwrap().1 = true;
        self.queue.changed.notify_all();
    }
}

fn work(queue: &Queue) {
    loop {
        let cell = {
            let cells = queue.cells.lock().unwrap();
            let mut cells =
                queue.changed.wait_while(cells, |cells| cells.0.is_empty() && !cells.1).unwrap();
            match cells.0.pop_front() {
                Some(cell) => cell,
                None => return,
            }
        };
        let waker = Waker::from(Arc::clone(&cell));
        let mut slot = cell.future.lock().unwrap();
        if let Some(future) = slot.as_mut()
            && future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        {
            *slot = None;
        }
    }
}

impl Threads {
    fn break_if_told(&self) {
        let count = self.broken.load(Ordering::Relaxed);
        self.broken.store(count.saturating_sub(1), Ordering::Relaxed);
        if count == 1 {
            std::panic::resume_unwind(Box::new("the executor is broken"));
        }
    }
}

impl Executor for Threads {
    fn spawn(&self, future: Spawned) -> Box<dyn AbortOnDrop> {
        self.break_if_told();
        let queue = Arc::clone(&self.queue);
        let cell = Arc::new(Cell { future: Mutex::new(Some(future)), queue });
        Arc::clone(&cell).wake();
        Box::new(Handle(cell))
    }

    fn enter(&self, poll: &mut dyn FnMut()) {
        self.break_if_told();
        poll();
    }
}

/// Futures wait here until it is opened.
#[derive(Default)]
pub(crate) struct Gate(Mutex<(bool, Vec<Waker>)>);

impl Gate {
    pub(crate) fn open(&self) {
        let wakers = {
            let mut gate = self.0.lock().unwrap();
            gate.0 = true;
            std::mem::take(&mut gate.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn passed(&self) {
        poll_fn(|context| {
            let mut gate = self.0.lock().unwrap();
            if gate.0 {
                return Poll::Ready(());
            }
            gate.1.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Pending once, and woken from a thread of its own.
pub(crate) async fn after(time: Duration) {
    let gate = Arc::new(Gate::default());
    let mut opener = Some(Arc::clone(&gate));
    poll_fn(|context| match opener.take() {
        // It opens no earlier than this poll is over.
        Some(opener) => {
            let waker = context.waker().clone();
            std::thread::spawn(move || {
                std::thread::sleep(time);
                opener.open();
                waker.wake();
            });
            Poll::Pending
        }
        None => Poll::Ready(()),
    })
    .await;
    gate.passed().await;
}

pub(crate) fn tool(
    name: &str,
    function: impl Fn(Value) -> ToolFuture + Send + Sync + 'static,
) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "text": {"type": "string"}},
    });
    Tool::new(name, "A tool for tests.", schema, function).unwrap()
}

/// `echo`, `fail`, `forever`, `panic`, `late_panic`, `short`, `gated`.
pub(crate) fn tools(gate: &Arc<Gate>) -> ToolSet {
    let mut set = ToolSet::new();
    set.add(tool("echo", |arguments| Box::pin(async { Ok(arguments) }))).unwrap();
    let failing = |_| -> ToolFuture {
        Box::pin(async { Err(ToolError::with_source("no luck", "host detail /etc/secret")) })
    };
    set.add(tool("fail", failing)).unwrap();
    let forever = |_| -> ToolFuture { Box::pin(std::future::pending()) };
    set.add(tool("forever", forever)).unwrap();
    set.add(tool("brief", forever).timeout(Duration::from_millis(20))).unwrap();
    let panicking = |_| -> ToolFuture { Box::pin(async { panic!("host detail /etc/secret") }) };
    set.add(tool("panic", panicking)).unwrap();
    let late = |_| -> ToolFuture {
        Box::pin(async {
            after(Duration::from_millis(1)).await;
            panic!("host detail /etc/secret")
        })
    };
    set.add(tool("late_panic", late)).unwrap();
    let short = |arguments| -> ToolFuture {
        Box::pin(async {
            after(Duration::from_millis(1)).await;
            Ok(arguments)
        })
    };
    set.add(tool("short", short)).unwrap();
    let gate = Arc::clone(gate);
    let gated = move |arguments| -> ToolFuture {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.passed().await;
            Ok(arguments)
        })
    };
    set.add(tool("gated", gated)).unwrap();
    set
}
