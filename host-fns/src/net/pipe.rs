//! A bounded queue of bytes between the guest's thread and a task.
//!
//! Invariant: a sender that waits for room never holds more than
//! [`PIPE_BYTES`] and one piece in the queue. Whatever side goes away, the
//! other one is woken and told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

/// Bytes in the queue from which on a sender waits.
pub(crate) const PIPE_BYTES: usize = 512 << 10;

/// A piece of this length is passed on as it is; joining it to the next would
/// copy it.
const LARGE_BYTES: usize = 32 << 10;

struct State<E> {
    queue: VecDeque<Bytes>,
    bytes: usize,
    end: Option<Result<(), E>>,
    sender_gone: bool,
    receiver_gone: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

type Shared<E> = Arc<Mutex<State<E>>>;

fn lock<E>(shared: &Shared<E>) -> MutexGuard<'_, State<E>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The end that gives.
pub(crate) struct Sender<E>(Shared<E>);

/// The end that takes.
pub(crate) struct Receiver<E>(Shared<E>);

/// What came out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<E> {
    /// Some bytes.
    Bytes(Bytes),
    /// The sender said that this was all.
    End,
    /// The sender said that it failed.
    Failed(E),
    /// The sender went away without a word.
    Abandoned,
}

/// The receiver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

pub(crate) fn pipe<E>() -> (Sender<E>, Receiver<E>) {
    let shared = Arc::new(Mutex::new(State {
        queue: VecDeque::new(),
        bytes: 0,
        end: None,
        sender_gone: false,
        receiver_gone: false,
        sender: None,
        receiver: None,
    }));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<E> Sender<E> {
    /// Ready when there is room.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = lock(&self.0);
        if state.receiver_gone {
            return Poll::Ready(Err(Closed));
        }
        if state.bytes < PIPE_BYTES {
            return Poll::Ready(Ok(()));
        }
        state.sender = Some(context.waker().clone());
        Poll::Pending
    }

    /// Gives bytes, room or not.
    pub(crate) fn push(&self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let waker = {
            let mut state = lock(&self.0);
            if state.receiver_gone {
                return;
            }
            state.bytes = state.bytes.saturating_add(bytes.len());
            state.queue.push_back(bytes);
            state.receiver.take()
        };
        wake(waker);
    }

    /// Waits for room and gives bytes.
    pub(crate) async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        std::future::poll_fn(|context| self.poll_ready(context)).await?;
        self.push(bytes);
        Ok(())
    }

    /// Says how it ended; only the first word counts.
    pub(crate) fn finish(&self, end: Result<(), E>) {
        let waker = {
            let mut state = lock(&self.0);
            if state.end.is_none() {
                state.end = Some(end);
            }
            state.receiver.take()
        };
        wake(waker);
    }
}

impl<E> Drop for Sender<E> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.sender_gone = true;
            state.receiver.take()
        };
        wake(waker);
    }
}

impl<E> Receiver<E> {
    /// Takes up to `most` bytes, of several pieces if they are there. What was
    /// given before a failure comes out before it.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>, most: usize) -> Poll<Taken<E>> {
        let (taken, waker) = {
            let mut state = lock(&self.0);
            if state.queue.is_empty() {
                return match state.end.take() {
                    Some(Ok(())) => {
                        state.end = Some(Ok(()));
                        Poll::Ready(Taken::End)
                    }
                    Some(Err(error)) => Poll::Ready(Taken::Failed(error)),
                    None if state.sender_gone => Poll::Ready(Taken::Abandoned),
                    None => {
                        state.receiver = Some(context.waker().clone());
                        Poll::Pending
                    }
                };
            }
            let taken = take(&mut state.queue, most);
            state.bytes = state.bytes.saturating_sub(taken.len());
            let room = state.bytes < PIPE_BYTES;
            (taken, if room { state.sender.take() } else { None })
        };
        wake(waker);
        Poll::Ready(Taken::Bytes(taken))
    }
}

impl<E> Drop for Receiver<E> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.receiver_gone = true;
            state.queue.clear();
            state.bytes = 0;
            state.sender.take()
        };
        wake(waker);
    }
}

fn take(queue: &mut VecDeque<Bytes>, most: usize) -> Bytes {
    let Some(mut first) = queue.pop_front() else { return Bytes::new() };
    if first.len() >= most.min(LARGE_BYTES) || queue.is_empty() {
        let rest = first.split_off(first.len().min(most));
        if !rest.is_empty() {
            queue.push_front(rest);
        }
        return first;
    }
    let mut joined = BytesMut::with_capacity(most.min(PIPE_BYTES));
    joined.extend_from_slice(&first);
    while let Some(mut next) = queue.pop_front() {
        let room = most.saturating_sub(joined.len());
        let rest = next.split_off(next.len().min(room));
        joined.extend_from_slice(&next);
        if !rest.is_empty() {
            queue.push_front(rest);
        }
        if joined.len() >= most {
            break;
        }
    }
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_now(receiver: &Receiver<u8>, most: usize) -> Poll<Taken<u8>> {
        receiver.poll_take(&mut Context::from_waker(Waker::noop()), most)
    }

    fn bytes(text: &'static str) -> Poll<Taken<u8>> {
        Poll::Ready(Taken::Bytes(Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn pieces_are_joined_and_split_to_what_fits() {
        let (sender, receiver) = pipe();
        for piece in ["abc", "de", "", "fghi"] {
            sender.push(Bytes::from_static(piece.as_bytes()));
        }
        assert_eq!(take_now(&receiver, 2), bytes("ab"));
        assert_eq!(take_now(&receiver, 5), bytes("cdefg"));
        assert_eq!(take_now(&receiver, 9), bytes("hi"));
        assert_eq!(take_now(&receiver, 9), Poll::Pending);
        sender.push(Bytes::from_static(b"x"));
        sender.finish(Err(7));
        assert_eq!(take_now(&receiver, 9), bytes("x"));
        assert_eq!(take_now(&receiver, 9), Poll::Ready(Taken::Failed(7)));
    }

    #[test]
    fn either_side_learns_that_the_other_is_gone() {
        let (sender, receiver) = pipe::<u8>();
        drop(sender);
        assert_eq!(take_now(&receiver, 9), Poll::Ready(Taken::Abandoned));
        let (sender, receiver) = pipe::<u8>();
        drop(receiver);
        sender.push(Bytes::from_static(b"x"));
        let ready = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready, Poll::Ready(Err(Closed)));
    }

    #[test]
    fn a_sender_waits_for_room() {
        let (sender, receiver) = pipe::<u8>();
        let mut context = Context::from_waker(Waker::noop());
        sender.push(Bytes::from(vec![0; PIPE_BYTES]));
        assert_eq!(sender.poll_ready(&mut context), Poll::Pending);
        assert!(matches!(take_now(&receiver, 1), Poll::Ready(Taken::Bytes(_))));
        assert_eq!(sender.poll_ready(&mut context), Poll::Ready(Ok(())));
    }
}
