use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;

use tokio::sync::oneshot;

use super::outcome::Outcome;

/// What client and upstream, on one thread, know of each other.
#[derive(Debug)]
pub(super) struct Board {
    outcomes: RefCell<Vec<Outcome>>,
    waiting: RefCell<HashMap<u32, oneshot::Sender<()>>>,
    ended: Cell<u32>,
}

impl Board {
    /// For so many requests.
    pub(super) fn new(requests: u32) -> Self {
        Self {
            outcomes: RefCell::new((0..requests).map(|_| Outcome::default()).collect()),
            waiting: RefCell::default(),
            ended: Cell::new(0),
        }
    }

    /// What is known of request `n`; nothing of one that was not asked for.
    pub(super) fn outcome(&self, n: u32) -> Option<RefMut<'_, Outcome>> {
        let index = usize::try_from(n).ok()?;
        RefMut::filter_map(self.outcomes.borrow_mut(), |all| all.get_mut(index)).ok()
    }

    /// One more has ended: which it is.
    pub(super) fn next_ended(&self) -> u32 {
        self.ended.set(self.ended.get() + 1);
        self.ended.get()
    }

    /// What ends when an upstream has all of request `n`.
    pub(super) fn arrival(&self, n: u32) -> oneshot::Receiver<()> {
        let (arrived, arrival) = oneshot::channel();
        self.waiting.borrow_mut().insert(n, arrived);
        arrival
    }

    /// An upstream has all of request `n`.
    pub(super) fn arrived(&self, n: u32) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&n) {
            // Whoever waited for it may be gone.
            let _told = waiting.send(());
        }
    }

    /// Everything that was seen.
    pub(super) fn take_outcomes(&self) -> Vec<Outcome> {
        self.outcomes.take()
    }
}
