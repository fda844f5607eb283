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

use super::{Candidate, Config, DURATION, Election, LeaseAction, RENEW_DEADLINE};
use crate::metrics::Metrics;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn wall(n: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + n).unwrap()
}

#[test]
fn an_unchanged_lease_expires_by_the_local_clock() {
    let theirs = Election::new("other".to_owned()).renewed_spec(None, wall(100_000));
    let mut me = Election::new("me".to_owned());
    assert_eq!(me.decide(&theirs, seconds(0)), LeaseAction::Wait);
    assert_eq!(me.decide(&theirs, DURATION), LeaseAction::Wait);
    assert_eq!(
        me.decide(&theirs, DURATION + seconds(1)),
        LeaseAction::Acquire
    );
}

#[test]
fn a_renewal_restarts_the_wait() {
    let mut other = Election::new("other".to_owned());
    let first = other.renewed_spec(None, wall(0));
    let second = other.renewed_spec(Some(&first), wall(10));
    assert_eq!(other.decide(&second, seconds(0)), LeaseAction::Renew);
    let mut me = Election::new("me".to_owned());
    me.decide(&first, seconds(0));
    assert_eq!(me.decide(&second, seconds(14)), LeaseAction::Wait);
    assert_eq!(me.decide(&second, seconds(20)), LeaseAction::Wait);
    assert_eq!(me.decide(&second, seconds(30)), LeaseAction::Acquire);
}

#[test]
fn a_released_lease_is_acquired_immediately_and_counts_a_transition() {
    let mut released = Election::new("other".to_owned()).renewed_spec(None, wall(0));
    released.holder_identity = Some(String::new());
    let mut me = Election::new("me".to_owned());
    assert_eq!(me.decide(&released, seconds(0)), LeaseAction::Acquire);
    let mine = me.renewed_spec(Some(&released), wall(1));
    assert_eq!(mine.lease_transitions, Some(1));
    assert_eq!(
        me.renewed_spec(Some(&mine), wall(2)).lease_transitions,
        Some(1)
    );
}

/// How the API server responds to renewals.
#[derive(Clone, Copy)]
enum RenewalBehavior {
    Rejected,
    Unresponsive,
}

/// An API server that creates a Lease immediately, responds after `delay`, and
/// accepts no renewal.
fn api_server(delay: Duration, renewals: RenewalBehavior) -> Client {
    let created = Arc::new(AtomicBool::new(false));
    let respond = move |request: Request<Body>| {
        let created = Arc::clone(&created);
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
                created.store(true, Ordering::Relaxed);
                sleep(delay).await;
                let lease =
                    r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{}}"#;
                Response::builder()
                    .status(StatusCode::CREATED)
                    .body(Body::from(lease.as_bytes().to_vec()))
            } else if !created.load(Ordering::Relaxed) {
                failure(404, "NotFound")
            } else {
                match renewals {
                    RenewalBehavior::Rejected => failure(500, "InternalError"),
                    RenewalBehavior::Unresponsive => std::future::pending().await,
                }
            };
            Ok::<_, BoxError>(response.unwrap())
        }
    };
    Client::new(service_fn(respond), "ns")
}

#[tokio::test(start_paused = true)]
async fn a_leader_acts_for_at_most_ten_seconds_after_it_sent_a_renewal() {
    for (delay, renewals) in [
        (seconds(0), RenewalBehavior::Rejected),
        (seconds(0), RenewalBehavior::Unresponsive),
        (seconds(3), RenewalBehavior::Rejected),
        (seconds(9), RenewalBehavior::Unresponsive),
    ] {
        let metrics = Arc::new(Metrics::new().unwrap());
        let config = Config {
            namespace: "ns",
            pod: "pod",
        };
        let client = api_server(delay, renewals);
        let mut candidate = Candidate::new(config, client, metrics);
        let sent = Instant::now();
        timeout(DURATION, candidate.acquire()).await.unwrap();
        assert_eq!(sent.elapsed().as_secs(), delay.as_secs());
        timeout(DURATION * 2, candidate.hold()).await.unwrap();
        let held = sent.elapsed();
        assert!(
            held <= RENEW_DEADLINE + Duration::from_millis(50),
            "{held:?} with a delay of {delay:?}"
        );
    }
}

/// A replica that acts until it could not renew for [`RENEW_DEADLINE`] by its
/// own clock.
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

    // Wall clocks differ by minutes and any call may fail.
    #[test]
    fn two_replicas_never_act_at_the_same_time(
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
                let step = replica.election.decide(&spec, seconds(now));
                let stopped = replica.renewed.is_some() && !replica.acts(now);
                if step == LeaseAction::Wait || stopped {
                    // A replica that stopped acting has exited; a new process replaces it.
                    if stopped {
                        replica.election = Election::new(format!("{who}-{now}"));
                        replica.renewed = None;
                    }
                } else {
                    let elapsed = SignedDuration::from_secs(i64::try_from(now).unwrap() + replica.skew);
                    let clock = wall(0).saturating_add(elapsed).unwrap();
                    lease = Some(replica.election.renewed_spec(lease.as_ref(), clock));
                    replica.renewed = Some(now);
                }
            }
            prop_assert!(!(replicas[0].acts(now) && replicas[1].acts(now)), "at {now}");
        }
    }
}
