//! Parsing of usage events and the amounts they add to budgets, without the database.

mod event;
mod rejected;
mod spending;

use crate::clock::moment;

pub(crate) use crate::clock::timestamp;
pub(crate) use event::{Event, read};
pub(crate) use rejected::RejectedEvent;
pub(crate) use spending::{AppliedBudget, Spending, UsedAmounts, budget_id};
