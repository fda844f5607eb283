//! What usage events say and what they add to budgets, without the database.

mod event;
mod poison;
mod spending;

use crate::clock::moment;

pub(crate) use crate::clock::timestamp;
pub(crate) use event::{Event, read};
pub(crate) use poison::Poison;
pub(crate) use spending::{AppliedBudget, Spending, Used};
