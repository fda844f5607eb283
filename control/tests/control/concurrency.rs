//! Parts of a concurrency limit at several gateways.

use fastllm_contract::{
    ConcurrencyUsage, LimitReport, LimitReportReply, LimitShare, LimitUsage, PrincipalId, Subject,
};

use crate::harness::{Control, started};
use crate::reconcile::{reconcile, report, silent};

const LIMIT: u64 = 10;

/// A gateway that applies its parts and serves as many requests as they admit.
struct Gateway {
    name: &'static str,
    limit: u64,
    part: u64,
    in_flight: u64,
}

impl Gateway {
    /// A gateway before its first report, with an even part.
    fn new(name: &'static str, limit: u64, gateways: u64) -> Self {
        Self {
            name,
            limit,
            part: (limit / gateways).max(1),
            in_flight: 0,
        }
    }

    /// Sends as many requests as are admitted, at most `requests`.
    fn admit(&mut self, requests: u64) {
        let room = self.part.saturating_sub(self.in_flight);
        self.in_flight += room.min(requests);
    }

    /// Reports so many requests since the last report, and applies the reply.
    async fn reconcile(&mut self, control: &Control, requests: u64) {
        let report = LimitReport {
            counts: vec![LimitUsage {
                subject: subject(),
                requests,
                tokens: 0,
                concurrency: Some(ConcurrencyUsage {
                    limit: self.limit,
                    held: self.part.max(self.in_flight),
                }),
            }],
            ..report(self.name)
        };
        self.apply(&reconcile(control, &report).await);
    }

    /// Reports without having had requests.
    async fn reconcile_idle(&mut self, control: &Control) {
        self.apply(&reconcile(control, &report(self.name)).await);
    }

    fn apply(&mut self, reply: &LimitReportReply) {
        if let Some(LimitShare { concurrency, .. }) = reply.allowances.first() {
            let grant = concurrency.unwrap();
            assert_eq!(grant.limit, self.limit);
            self.part = grant.part_of(self.limit);
        }
    }
}

fn subject() -> Subject {
    Subject::Principal(PrincipalId(1))
}

#[tokio::test]
async fn gateways_with_equal_demand_admit_exactly_the_limit_or_one_each() {
    for (limit, parts) in [(3, [2, 1]), (1, [1, 1]), (2, [1, 1]), (8, [4, 4])] {
        let (database, first) = started().await;
        let second = Control::start(&database).await;
        let mut a = Gateway::new("a", limit, 2);
        let mut b = Gateway::new("b", limit, 2);
        // Both are known before either has requests.
        a.reconcile_idle(&first).await;
        b.reconcile_idle(&second).await;
        for _ in 0..3 {
            for (gateway, control) in [(&mut a, &first), (&mut b, &second)] {
                gateway.admit(9);
                gateway.reconcile(control, 9).await;
            }
            assert!(a.in_flight + b.in_flight <= limit.max(2), "limit {limit}");
        }
        assert_eq!([a.part, b.part], parts, "limit {limit}");
    }
}

#[tokio::test]
async fn what_is_in_flight_at_one_gateway_is_not_granted_to_another() {
    let (_database, control) = started().await;
    let mut a = Gateway::new("a", LIMIT, 2);
    let mut b = Gateway::new("b", LIMIT, 2);
    a.reconcile_idle(&control).await;
    b.reconcile_idle(&control).await;
    a.reconcile(&control, 100).await;
    assert_eq!(a.part, 5, "the other one has an even part");
    // It has no requests and receives a smaller part, which counts once it is reported.
    b.reconcile_idle(&control).await;
    assert_eq!(b.part, 1);
    a.reconcile(&control, 100).await;
    assert_eq!(a.part, 5);
    b.reconcile(&control, 0).await;
    a.reconcile(&control, 100).await;
    assert_eq!(a.part, 9);
    a.admit(9);
    // All demand moves to the other gateway while requests are in flight here.
    for _ in 0..3 {
        b.reconcile(&control, 100_000).await;
        a.reconcile(&control, 0).await;
    }
    assert_eq!((a.part, b.part), (1, 1));
    a.in_flight = 4;
    a.reconcile(&control, 0).await;
    b.reconcile(&control, 100_000).await;
    assert_eq!(b.part, 6);
    a.in_flight = 0;
    a.reconcile(&control, 0).await;
    b.reconcile(&control, 100_000).await;
    assert_eq!((a.part, b.part), (1, 9));
}

#[tokio::test]
async fn a_gateway_that_ended_holds_no_part() {
    let (database, control) = started().await;
    let mut a = Gateway::new("a", LIMIT, 2);
    let mut b = Gateway::new("b", LIMIT, 2);
    a.reconcile(&control, 9).await;
    assert_eq!(a.part, LIMIT);
    a.admit(10);
    b.reconcile(&control, 9).await;
    assert_eq!(b.part, 1);
    silent(&database, "a", 31.0).await;
    b.reconcile(&control, 9).await;
    assert_eq!(b.part, LIMIT);
}
