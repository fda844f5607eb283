use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;

use tokio::sync::oneshot;

use super::outcome::RequestOutcome;

/// The state that clients and upstreams share on one thread.
#[derive(Debug)]
pub(super) struct SharedState {
    outcomes: RefCell<Vec<RequestOutcome>>,
    waiting: RefCell<HashMap<u32, oneshot::Sender<()>>>,
    ended: Cell<u32>,
}

impl SharedState {
    /// The state for this many requests.
    pub(super) fn new(requests: u32) -> Self {
        Self {
            outcomes: RefCell::new((0..requests).map(|_| RequestOutcome::default()).collect()),
            waiting: RefCell::default(),
            ended: Cell::new(0),
        }
    }

    /// The outcome of request `n`; `None` if there is no such request.
    pub(super) fn outcome(&self, n: u32) -> Option<RefMut<'_, RequestOutcome>> {
        let index = usize::try_from(n).ok()?;
        RefMut::filter_map(self.outcomes.borrow_mut(), |all| all.get_mut(index)).ok()
    }

    /// Counts one more ended request and returns its position in the order of
    /// ends.
    pub(super) fn next_ended(&self) -> u32 {
        self.ended.set(self.ended.get() + 1);
        self.ended.get()
    }

    /// Completes when an upstream has received all of request `n`.
    pub(super) fn arrival(&self, n: u32) -> oneshot::Receiver<()> {
        let (arrived, arrival) = oneshot::channel();
        self.waiting.borrow_mut().insert(n, arrived);
        arrival
    }

    /// Records that an upstream has received all of request `n`.
    pub(super) fn arrived(&self, n: u32) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&n) {
            // The receiver may already be dropped.
            let _told = waiting.send(());
        }
    }

    /// All outcomes.
    pub(super) fn take_outcomes(&self) -> Vec<RequestOutcome> {
        self.outcomes.take()
    }
}
