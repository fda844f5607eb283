//! Batches in the form in which they are sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use fastllm_contract::{BudgetSettlement, UsageBatch};

use super::queue::QueuedUsage;

/// The maximum size in bytes of a batch with several events: half of what
/// control accepts.
const MAX_BATCH_BYTES: usize = 2 << 20;

/// A batch that is resent unchanged until control has responded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SealedBatch {
    /// The number of its events.
    pub(super) events: u32,
    /// The [`UsageBatch`] as JSON.
    pub(super) body: Bytes,
}

/// What identifies the batches of a gateway.
#[derive(Debug)]
pub(crate) struct BatchIdentity {
    replica: String,
    boot_id: Arc<str>,
    /// The number of the last batch.
    sequence: u64,
}

impl BatchIdentity {
    /// The first batch has the sequence number 1.
    pub(crate) fn new(replica: String, boot_id: Arc<str>) -> Self {
        Self {
            replica,
            boot_id,
            sequence: 0,
        }
    }

    /// Splits events into batches of at most [`UsageBatch::MAX_EVENTS`] and of
    /// limited size. Returns how many events cannot be serialized.
    pub(super) fn seal(
        &mut self,
        events: Vec<QueuedUsage>,
        sealed: &mut VecDeque<SealedBatch>,
    ) -> u64 {
        let mut lost = 0;
        let mut left = vec![events];
        while let Some(usage) = left.pop() {
            let count = usage.len();
            if count == 0 {
                continue;
            }
            let settled = settled(&usage);
            let (events, settlements): (_, Vec<_>) = usage
                .into_iter()
                .map(|QueuedUsage { event, settlement }| (event, settlement))
                .unzip();
            let batch = UsageBatch {
                replica: self.replica.clone(),
                boot_id: self.boot_id.to_string(),
                sequence: self.sequence + 1,
                events,
                settled: Some(settled),
            };
            match serde_json::to_vec(&batch) {
                Ok(body) if body.len() > MAX_BATCH_BYTES && count > 1 => {
                    let usage = batch.events.into_iter().zip(settlements);
                    let mut first: Vec<_> = usage
                        .map(|(event, settlement)| QueuedUsage { event, settlement })
                        .collect();
                    let second = first.split_off(count / 2);
                    left.extend([second, first]);
                }
                Ok(body) => {
                    self.sequence += 1;
                    sealed.push_back(SealedBatch {
                        events: u32::try_from(count).unwrap_or(u32::MAX),
                        body: Bytes::from(body),
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "usage event cannot be serialized as JSON");
                    lost += count as u64;
                }
            }
        }
        lost
    }
}

/// The settled amounts of events, summed by budget and window.
fn settled(usage: &[QueuedUsage]) -> Vec<BudgetSettlement> {
    let mut sums: BTreeMap<_, BudgetSettlement> = BTreeMap::new();
    for amounts in usage.iter().flat_map(|usage| usage.settlement.budgets()) {
        sums.entry((amounts.budget, amounts.window_start))
            .and_modify(|sum| {
                sum.tokens.0 = sum.tokens.0.saturating_add(amounts.tokens.0);
                sum.cost_micros.0 = sum.cost_micros.0.saturating_add(amounts.cost_micros.0);
            })
            .or_insert(amounts);
    }
    sums.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use fastllm_contract::{Metadata, MetadataValue, UsageBatch, UsageEvent};

    use super::{BatchIdentity, MAX_BATCH_BYTES};
    use crate::control_plane::usage::fixture::event;

    fn seal(events: Vec<UsageEvent>) -> Vec<UsageBatch> {
        let mut identity = BatchIdentity::new("pod-1".to_owned(), Arc::from("boot"));
        let mut sealed = VecDeque::new();
        let events = events.into_iter().map(Into::into).collect();
        assert_eq!(identity.seal(events, &mut sealed), 0);
        let batches = sealed.iter().map(|sealed| {
            assert!(sealed.body.len() <= MAX_BATCH_BYTES);
            let batch: UsageBatch = serde_json::from_slice(&sealed.body).unwrap();
            assert_eq!(batch.events.len(), sealed.events as usize);
            batch
        });
        batches.collect()
    }

    #[test]
    fn a_batch_contains_as_many_events_as_fit() {
        let batches = seal(vec![event(None); UsageBatch::MAX_EVENTS]);
        assert_eq!(batches.len(), 1);
        assert_eq!((batches[0].sequence, &*batches[0].replica), (1, "pod-1"));
        assert!(seal(Vec::new()).is_empty());
    }

    #[test]
    fn no_metadata_makes_a_batch_too_large_for_control() {
        // The largest metadata that a client may send, in its longest encoding.
        let text = "\u{1}".repeat(512);
        let mut said = Metadata::default();
        for at in 0..16 {
            let name = format!("{}{at:0>2}", "\"".repeat(62));
            said.push(&name, MetadataValue::Text(&text)).unwrap();
        }
        let largest = |at: u64| UsageEvent {
            metadata: Some(said.clone()),
            duration_ms: u32::try_from(at).ok(),
            ..event(None)
        };
        let batches = seal((0..UsageBatch::MAX_EVENTS as u64).map(largest).collect());
        assert!(batches.len() > 1);
        let sequences: Vec<u64> = batches.iter().map(|batch| batch.sequence).collect();
        assert_eq!(sequences, (1..=batches.len() as u64).collect::<Vec<_>>());
        let order = batches.iter().flat_map(|batch| &batch.events);
        let order: Vec<_> = order.filter_map(|event| event.duration_ms).collect();
        assert_eq!(order, (0..500).collect::<Vec<_>>());
    }
}
