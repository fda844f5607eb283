//! Shares of limits by recent demand, and parts of concurrency limits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter::repeat_n;

use fastllm_contract::{ConcurrencyGrant, LimitReport, LimitShare, LimitUsage, Subject};

use super::float;
use crate::api::ApiError;
use crate::db::reconcile::{self, CountRow, Fleet, NewCounts};
use crate::db::{Db, DbError};
use crate::shares::{ConcurrencyInput, decayed, even_concurrency, share};

/// Recent demand of a subject: sums with exponential decay.
#[derive(Clone, Copy, Default)]
struct Demand {
    requests: f64,
    tokens: f64,
}

/// What is known of one subject.
struct SubjectState {
    subject: Subject,
    /// Whether the gateway reports the subject. Otherwise others do.
    reported: bool,
    own: Demand,
    others: Vec<Demand>,
    /// The limit of concurrent requests, if there is one.
    concurrency: Option<u64>,
    /// What the gateway may have in flight; `None` if it is not known to have any
    /// but an even part.
    own_held: Option<u64>,
    /// The same of other gateways.
    others_held: Vec<u64>,
}

/// Stores the reported demand and returns the gateway's share per subject. These are
/// the reported subjects, and those with a concurrency limit that others report: what
/// this gateway does not need, others can use.
pub(super) async fn shares(
    db: &Db,
    replica: &str,
    counts: Vec<LimitUsage>,
    fleet: &Fleet,
) -> Result<Vec<LimitShare>, ApiError> {
    if counts.is_empty() && fleet.live == 1 {
        return Ok(Vec::new());
    }
    let mut states = reported(counts)?;
    let subjects: Vec<String> = states.keys().cloned().collect();
    let room = LimitReport::MAX_ENTRIES.saturating_sub(subjects.len());
    let mut transaction = db.begin().await?;
    reconcile::lock_limits(&mut transaction).await?;
    for row in reconcile::counts(&mut transaction, replica, &subjects, room).await? {
        add_row(&mut states, replica, row);
    }
    let mut new = NewCounts::default();
    let mut shares = Vec::with_capacity(states.len());
    for (key, state) in states {
        let (share, held) = state.share(fleet);
        shares.push(share);
        new.subjects.push(key);
        new.requests.push(state.own.requests);
        new.tokens.push(state.own.tokens);
        new.concurrency_limits.push(signed(state.concurrency));
        new.concurrency_held.push(signed(held));
    }
    reconcile::put_counts(&mut transaction, replica, &new).await?;
    transaction.commit().await.map_err(DbError::from)?;
    Ok(shares)
}

fn reported(counts: Vec<LimitUsage>) -> Result<BTreeMap<String, SubjectState>, ApiError> {
    let mut states: BTreeMap<String, SubjectState> = BTreeMap::new();
    for count in counts {
        let key = serde_json::to_string(&count.subject).map_err(|_| ApiError::internal())?;
        let state = states
            .entry(key)
            .or_insert_with(|| SubjectState::new(count.subject, true));
        state.own.requests += float(count.requests);
        state.own.tokens += float(count.tokens);
        state.concurrency = count.concurrency.map(|usage| usage.limit);
        state.own_held = count.concurrency.map(|usage| usage.held);
    }
    Ok(states)
}

fn add_row(states: &mut BTreeMap<String, SubjectState>, replica: &str, row: CountRow) {
    let state = match states.entry(row.subject) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => match serde_json::from_str(entry.key()) {
            Ok(subject) => entry.insert(SubjectState::new(subject, false)),
            // A kind of subject of another release.
            Err(_) => return,
        },
    };
    let demand = Demand {
        requests: decayed(row.requests, row.age_seconds),
        tokens: decayed(row.tokens, row.age_seconds),
    };
    let limit = positive(row.concurrency_limit);
    let held = positive(row.concurrency_held);
    if row.replica == replica {
        state.own.requests += demand.requests;
        state.own.tokens += demand.tokens;
        if !state.reported {
            state.own_held = held;
        }
    } else {
        state.others.push(demand);
        state.others_held.extend(held);
        if !state.reported {
            // The newest row comes last.
            state.concurrency = limit.or(state.concurrency);
        }
    }
}

impl SubjectState {
    fn new(subject: Subject, reported: bool) -> Self {
        Self {
            subject,
            reported,
            own: Demand::default(),
            others: Vec::new(),
            concurrency: None,
            own_held: None,
            others_held: Vec::new(),
        }
    }

    /// The gateway's share, and what it may have in flight until its next report.
    fn share(&self, fleet: &Fleet) -> (LimitShare, Option<u64>) {
        let share_of = |amount: fn(&Demand) -> f64| {
            // Counts are stored by name, so duplicates share the demand evenly.
            let own = amount(&self.own) / float(fleet.duplicates as u64);
            let others = self.others.iter().map(amount);
            let others: Vec<f64> = others.chain(repeat_n(own, fleet.duplicates - 1)).collect();
            share(own, &others, fleet.live)
        };
        let requests_share = share_of(|demand| demand.requests);
        let granted = self
            .concurrency
            .map(|limit| self.concurrency_part(limit, requests_share, fleet));
        let share = LimitShare {
            subject: self.subject.clone(),
            requests_share,
            tokens_share: share_of(|demand| demand.tokens),
            concurrency: self
                .concurrency
                .zip(granted)
                .map(|(limit, granted)| ConcurrencyGrant { limit, granted }),
        };
        // A lower part takes effect for others when the gateway has reported it.
        let held = granted.zip(self.concurrency).map(|(granted, limit)| {
            let duplicates = fleet.duplicates as u64;
            let before = match self.own_held {
                Some(held) if self.reported => held,
                // Stored for all gateways of this name.
                Some(held) => held.div_ceil(duplicates),
                None => even_concurrency(limit, fleet.live),
            };
            granted.max(before).saturating_mul(duplicates)
        });
        (share, held)
    }

    fn concurrency_part(&self, limit: u64, share: f64, fleet: &Fleet) -> u64 {
        let reporting = self.others_held.len() + fleet.duplicates;
        let whole = ConcurrencyInput {
            limit,
            held_by_others: self
                .others_held
                .iter()
                .copied()
                .fold(0, u64::saturating_add),
            live: fleet.live,
            silent: fleet.live.saturating_sub(reporting),
        };
        // Duplicates have the same share, of which the sum is not to exceed the limit.
        let duplicates = fleet.duplicates as u64;
        let of_all = whole.grant(share * float(duplicates));
        (of_all / duplicates).max(1)
    }
}

fn positive(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|value| *value > 0)
}

fn signed(value: Option<u64>) -> i64 {
    i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX)
}
