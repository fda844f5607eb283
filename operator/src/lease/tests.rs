use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use kube::Client;
use kube::client::Body;
use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, service_fn};

use super::{Candidate, DURATION, Election, Move, RENEW_DEADLINE};
use crate::metrics::Metrics;

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

/// How an API server treats renewals.
#[derive(Clone, Copy)]
enum Renewals {
    Refused,
    NotAnswered,
}

/// An API server that takes a new Lease at once, answers late, and lets nobody renew.
fn api_server(late: Duration, renewals: Renewals) -> Client {
    let taken = Arc::new(AtomicBool::new(false));
    let answer = move |request: Request<Body>| {
        let taken = Arc::clone(&taken);
        async move {
            let failure = |code: u16, reason: &str| {
                let text = format!(
                    r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"no","reason":"{reason}","code":{code}}}"#
                );
                Response::builder()
                    .status(StatusCode::from_u16(code).unwrap())
                    .body(Body::from(text.into_bytes()))
            };
            let response = if request.method() == Method::POST {
                taken.store(true, Ordering::Relaxed);
                sleep(late).await;
                let lease =
                    r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{}}"#;
                Response::builder()
                    .status(StatusCode::CREATED)
                    .body(Body::from(lease.as_bytes().to_vec()))
            } else if !taken.load(Ordering::Relaxed) {
                failure(404, "NotFound")
            } else {
                match renewals {
                    Renewals::Refused => failure(500, "InternalError"),
                    Renewals::NotAnswered => std::future::pending().await,
                }
            };
            Ok::<_, BoxError>(response.unwrap())
        }
    };
    Client::new(service_fn(answer), "ns")
}

// OP-51
#[tokio::test(start_paused = true)]
async fn a_holder_acts_for_ten_seconds_after_it_asked_and_no_longer() {
    for (late, renewals) in [
        (seconds(0), Renewals::Refused),
        (seconds(0), Renewals::NotAnswered),
        (seconds(3), Renewals::Refused),
        (seconds(9), Renewals::NotAnswered),
    ] {
        let metrics = Arc::new(Metrics::new().unwrap());
        let client = api_server(late, renewals);
        let mut candidate = Candidate::new(client, "ns", "pod", metrics);
        let asked = Instant::now();
        timeout(DURATION, candidate.acquire()).await.unwrap();
        assert_eq!(asked.elapsed().as_secs(), late.as_secs());
        timeout(DURATION * 2, candidate.hold()).await.unwrap();
        let held = asked.elapsed();
        assert!(
            held <= RENEW_DEADLINE + Duration::from_millis(50),
            "{held:?} after an answer {late:?} late"
        );
    }
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
