use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::Timestamp;

use super::BackendState;
use crate::pool::{EjectionReason, EndpointIndex, UpstreamRejection};

const SECOND: i64 = 1_000_000;

const CHAT: EndpointIndex = EndpointIndex::new(0);
const RERANK: EndpointIndex = EndpointIndex::new(4);

#[test]
fn two_failures_in_a_row_make_it_unhealthy_and_one_success_heals() {
    let state = BackendState::default();
    assert_eq!(state.record_probe(false), None);
    assert_eq!(state.record_probe(true), None);
    assert_eq!(state.record_probe(false), None);
    assert_eq!(state.record_probe(false), Some(false));
    assert_eq!(state.record_probe(false), None);
    assert!(!state.healthy());
    assert_eq!(state.record_probe(true), Some(true));
    assert_eq!(state.probe_failures(), 4);
}

#[test]
fn dropping_the_guard_ends_the_request() {
    let state = Arc::new(BackendState::default());
    let first = state.acquire();
    let second = state.acquire();
    assert_eq!((state.in_flight(), state.requests()), (2, 2));
    drop(first);
    assert_eq!(state.in_flight(), 1);
    drop(second);
    assert_eq!((state.in_flight(), state.requests()), (0, 2));
}

#[test]
fn failures_in_a_row_eject_for_ever_longer_but_not_for_ever() {
    let state = BackendState::default();
    let start = Timestamp(0);
    for _ in 0..4 {
        state.record_failure(start);
    }
    assert!(state.is_available(start, CHAT));
    state.record_success(start, CHAT);
    for _ in 0..5 {
        assert!(state.is_available(start, CHAT));
        state.record_failure(start);
    }
    assert!(!state.is_available(Timestamp(SECOND - 1), CHAT));
    assert!(state.is_available(Timestamp(SECOND), CHAT));
    state.record_failure(start);
    assert!(!state.is_available(Timestamp(2 * SECOND - 1), CHAT));
    for _ in 0..100 {
        state.record_failure(start);
    }
    assert!(!state.is_available(Timestamp(59 * SECOND), CHAT));
    assert!(state.is_available(Timestamp(60 * SECOND), CHAT));
    assert_eq!(state.errors(), 110);
    assert_eq!(state.ejections(EjectionReason::Failures), 1);
    for _ in 0..2 {
        state.record_failure(Timestamp(120 * SECOND));
    }
    assert_eq!(state.ejections(EjectionReason::Failures), 2);
}

#[test]
fn after_an_ejection_the_share_grows_from_a_tenth_to_the_whole() {
    let state = BackendState::default();
    let share = |at: i64| {
        let draws = 0..100;
        draws
            .filter(|draw| state.admits(Timestamp(at), CHAT, *draw))
            .count()
    };
    assert_eq!(share(0), 100);
    for _ in 0..5 {
        state.record_failure(Timestamp(0));
    }
    assert!(state.is_ejected(EjectionReason::Failures, Timestamp(SECOND - 1)));
    let shares = [1, 2, 11, 21, 31, 500].map(|second| share(second * SECOND));
    assert_eq!(shares, [10, 13, 40, 70, 100, 100]);
    assert!(!state.is_ejected(EjectionReason::Failures, Timestamp(SECOND)));
    // One more failure, and it begins again.
    state.record_failure(Timestamp(31 * SECOND));
    assert!(state.is_ejected(EjectionReason::Failures, Timestamp(32 * SECOND)));
    assert_eq!(share(33 * SECOND), 10);
}

#[test]
fn back_off_is_no_ejection_and_ends_at_once() {
    let state = BackendState::default();
    state.back_off(Timestamp(0), Duration::from_secs(3));
    assert!(
        !state.is_ejected(EjectionReason::Failures, Timestamp(0))
            && !state.is_available(Timestamp(0), CHAT)
    );
    assert!(state.admits(Timestamp(3 * SECOND), CHAT, 99));
}

#[test]
fn failed_probe_threshold_is_configurable() {
    let strict = BackendState::new(0);
    assert_eq!(strict.record_probe(false), Some(false));
    let patient = BackendState::new(3);
    assert_eq!(
        [(); 3].map(|()| patient.record_probe(false)),
        [None, None, Some(false)]
    );
}

#[test]
fn requested_back_off_is_bounded() {
    let state = BackendState::default();
    state.back_off(Timestamp(0), Duration::from_secs(3));
    state.back_off(Timestamp(0), Duration::from_secs(1));
    assert!(!state.is_available(Timestamp(3 * SECOND - 1), CHAT));
    assert!(state.is_available(Timestamp(3 * SECOND), CHAT));
    state.back_off(Timestamp(0), Duration::MAX);
    assert!(state.is_available(Timestamp(60 * SECOND), CHAT));
}

#[test]
fn latency_mean_follows_recent_responses() {
    let state = BackendState::default();
    assert_eq!(state.latency(true), None);
    state.record_latency(true, Duration::from_micros(800));
    state.record_latency(true, Duration::from_micros(1600));
    state.record_latency(false, Duration::ZERO);
    assert_eq!(state.latency(true), Some(900));
    assert_eq!(state.latency(false), Some(1));
}

fn at(second: i64) -> Timestamp {
    Timestamp(second * SECOND)
}

#[test]
fn three_rejections_in_a_row_eject_from_their_endpoint_for_ever_longer() {
    for by in [
        UpstreamRejection::Credential,
        UpstreamRejection::Configuration,
    ] {
        let state = BackendState::default();
        for _ in 0..2 {
            state.record_rejection(by, at(0), RERANK);
        }
        assert!(state.is_available(at(0), RERANK));
        state.record_rejection(by, at(0), RERANK);
        assert!(!state.is_available(at(29), RERANK));
        assert!(state.is_available(at(30), RERANK) && state.is_available(at(0), CHAT));
        let reasons = EjectionReason::ALL.map(|reason| state.is_ejected(reason, at(0)));
        let expected = EjectionReason::ALL.map(|reason| reason == EjectionReason::Rejected(by));
        assert_eq!(reasons, expected);
        // Requests that were in flight do not extend it.
        for _ in 0..100 {
            state.record_rejection(by, at(1), RERANK);
        }
        assert!(state.is_available(at(30), RERANK));
        // One more doubles it, up to five minutes.
        let mut end = 30;
        for seconds in [60, 120, 240, 300, 300, 300] {
            state.record_rejection(by, at(end), RERANK);
            end += seconds;
            assert!(!state.is_available(at(end - 1), RERANK));
            assert!(state.is_available(at(end), RERANK));
        }
        assert_eq!(state.ejections(EjectionReason::Rejected(by)), 7);
        assert_eq!(state.ejections(EjectionReason::Failures), 0);
        assert_eq!(state.errors(), 109);
    }
}

#[test]
fn a_success_at_the_endpoint_ends_an_ejection_after_rejections() {
    let state = BackendState::default();
    for _ in 0..3 {
        state.record_rejection(UpstreamRejection::Credential, at(0), CHAT);
    }
    state.record_success(at(5), RERANK);
    assert!(!state.is_available(at(5), CHAT));
    // As the last resort, it served a request nevertheless.
    state.record_success(at(5), CHAT);
    assert!(state.is_available(at(5), CHAT));
    let share = |second: i64| {
        let draws = 0..100;
        draws
            .filter(|draw| state.admits(at(second), CHAT, *draw))
            .count()
    };
    assert_eq!([5, 20, 35].map(share), [10, 55, 100]);
    for _ in 0..2 {
        state.record_rejection(UpstreamRejection::Credential, at(6), CHAT);
    }
    assert!(state.is_available(at(6), CHAT));
}

#[test]
fn a_rejection_neither_adds_to_failures_nor_resets_them() {
    let state = BackendState::default();
    for _ in 0..4 {
        state.record_failure(at(0));
        state.record_rejection(UpstreamRejection::Configuration, at(0), RERANK);
    }
    assert!(state.is_available(at(0), CHAT));
    state.record_failure(at(0));
    assert!(!state.is_available(at(0), CHAT));
}

#[test]
fn a_successful_probe_does_not_end_an_ejection() {
    let state = BackendState::default();
    for _ in 0..4 {
        state.record_failure(at(0));
    }
    state.record_probe(true);
    state.record_failure(at(0));
    assert!(!state.is_available(at(0), CHAT));
    state.record_probe(true);
    assert!(!state.is_available(at(0), CHAT));
}
