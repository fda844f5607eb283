use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use proptest::prelude::*;

use super::{DURATION, Election, Move, RENEW_DEADLINE};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn wall(n: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + n).unwrap()
}

#[test]
fn a_holder_that_shows_no_life_is_succeeded_by_our_own_clock() {
    let theirs = Election::new("other".to_owned()).record(None, wall(100_000));
    let mut me = Election::new("me".to_owned());
    assert_eq!(me.look(&theirs, seconds(0)), Move::Wait);
    assert_eq!(me.look(&theirs, DURATION), Move::Wait);
    assert_eq!(me.look(&theirs, DURATION + seconds(1)), Move::Take);
}

#[test]
fn a_renewal_starts_the_wait_again() {
    let mut other = Election::new("other".to_owned());
    let first = other.record(None, wall(0));
    let second = other.record(Some(&first), wall(10));
    assert_eq!(other.look(&second, seconds(0)), Move::Renew);
    let mut me = Election::new("me".to_owned());
    me.look(&first, seconds(0));
    assert_eq!(me.look(&second, seconds(14)), Move::Wait);
    assert_eq!(me.look(&second, seconds(20)), Move::Wait);
    assert_eq!(me.look(&second, seconds(30)), Move::Take);
}

#[test]
fn a_released_lease_is_taken_at_once_and_counts_a_transition() {
    let mut released = Election::new("other".to_owned()).record(None, wall(0));
    released.holder_identity = Some(String::new());
    let mut me = Election::new("me".to_owned());
    assert_eq!(me.look(&released, seconds(0)), Move::Take);
    let mine = me.record(Some(&released), wall(1));
    assert_eq!(mine.lease_transitions, Some(1));
    assert_eq!(me.record(Some(&mine), wall(2)).lease_transitions, Some(1));
}

/// A replica as the driver runs it: it acts until it has failed to renew for
/// the deadline, by its own clock.
struct Replica {
    election: Election,
    skew: i64,
    renewed: Option<u64>,
}

impl Replica {
    fn acts(&self, now: u64) -> bool {
        self.renewed
            .is_some_and(|at| seconds(now - at) < RENEW_DEADLINE)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    // Clocks differ by minutes and any call may fail: there are never two that act.
    #[test]
    fn two_never_act_at_once(
        skew in -600_i64..600,
        calls in prop::collection::vec((0..2_usize, 0..4_u64, prop::bool::weighted(0.7)), 1..120),
    ) {
        let mut lease: Option<LeaseSpec> = None;
        let mut replicas = ["a", "b"].map(|name| Replica {
            election: Election::new(name.to_owned()),
            skew: 0,
            renewed: None,
        });
        replicas[1].skew = skew;
        let mut now = 1000;
        for (who, pause, works) in calls {
            now += pause;
            let replica = &mut replicas[who];
            if works {
                let spec = lease.clone().unwrap_or_default();
                let step = replica.election.look(&spec, seconds(now));
                let stopped = replica.renewed.is_some() && !replica.acts(now);
                if step == Move::Wait || stopped {
                    // A replica that stopped acting has ended; another process takes its place.
                    if stopped {
                        replica.election = Election::new(format!("{who}-{now}"));
                        replica.renewed = None;
                    }
                } else {
                    let elapsed = SignedDuration::from_secs(i64::try_from(now).unwrap() + replica.skew);
                    let clock = wall(0).saturating_add(elapsed).unwrap();
                    lease = Some(replica.election.record(lease.as_ref(), clock));
                    replica.renewed = Some(now);
                }
            }
            prop_assert!(!(replicas[0].acts(now) && replicas[1].acts(now)), "at {now}");
        }
    }
}
