//! Which sessions of an engine have an instance while they wait.
//!
//! Why: an instance takes some hundred pages, its state a tenth of that. A
//! session that waits needs only the state; the next cell makes an instance of
//! it, which takes a fraction of a millisecond.
//!
//! Invariant: at most [`MAX_AWAKE`] waiting sessions have an instance; those
//! that ran last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::{Shared, lock};

/// Sessions of an engine that keep their instance while they wait.
pub(crate) const MAX_AWAKE: usize = 64;

/// The waiting sessions that have an instance, the longest waiting first.
#[derive(Default)]
pub(crate) struct Awake {
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    next: u64,
    sessions: BTreeMap<u64, Weak<Shared>>,
}

impl Awake {
    /// Takes note that a session waits from now on, and lets those that have
    /// waited longest go to sleep.
    pub(super) fn waits(&self, session: &Arc<Shared>) {
        let too_many: Vec<_> = {
            let mut order = lock(&self.order);
            order.next = order.next.saturating_add(1);
            let number = order.next;
            let mut place = lock(&session.place);
            if let Some(before) = place.replace(number) {
                order.sessions.remove(&before);
            }
            drop(place);
            order.sessions.insert(number, Arc::downgrade(session));
            let mut too_many = Vec::new();
            while order.sessions.len() > MAX_AWAKE {
                too_many.extend(order.sessions.pop_first().map(|(_, session)| session));
            }
            too_many
        };
        for session in too_many.iter().filter_map(Weak::upgrade) {
            session.sleep();
        }
    }

    /// Forgets a session.
    pub(super) fn ended(&self, place: Option<u64>) {
        if let Some(place) = place {
            lock(&self.order).sessions.remove(&place);
        }
    }
}
