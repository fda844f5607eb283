use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_single_gateway_has_the_whole_budget() {
    assert!((share(0.0, &[], 1) - 1.0).abs() < f64::EPSILON);
    assert!((share(7.0, &[], 1) - 1.0).abs() < f64::EPSILON);
    let input = GrantInput {
        total: u64::MAX - 1,
        spent: 5,
        own: ShareAmounts {
            granted: 0,
            used: 3,
            reserved: 0,
            stored: 1,
        },
        others: Vec::new(),
        ended: 0,
        live: 1,
        silent: 0,
    };
    let expected = Grant {
        total: u64::MAX - 1,
        granted: u64::MAX - 1 - 4,
        used_by_others: 4,
    };
    assert_eq!(input.grant(1.0), expected);
}

#[test]
fn an_idle_gateway_has_an_eighth_of_an_even_share() {
    let busy = share(100.0, &[0.0], 2);
    let idle = share(0.0, &[100.0], 2);
    assert!((busy - 16.0 / 17.0).abs() < 1e-9, "{busy}");
    assert!((idle - 1.0 / 17.0).abs() < 1e-9, "{idle}");
    // A gateway without a report is treated like an idle one.
    assert!((share(100.0, &[], 2) - busy).abs() < 1e-9);
    assert!((share(0.0, &[0.0, 0.0], 4) - 0.25).abs() < 1e-9);
}

#[test]
fn counts_decay() {
    assert!((decayed(100.0, 0.0) - 100.0).abs() < 1e-9);
    assert!((decayed(100.0, 20.0) - 36.788).abs() < 1e-3);
    assert!((decayed(100.0, -5.0) - 100.0).abs() < 1e-9);
    assert!(decayed(100.0, 1e9) <= 0.0);
}

#[test]
fn amounts_granted_to_others_are_not_granted_again() {
    let other = ShareAmounts {
        granted: 900,
        used: 100,
        reserved: 0,
        stored: 100,
    };
    let input = |own: ShareAmounts, other: ShareAmounts| GrantInput {
        total: 1000,
        spent: own.stored + other.stored,
        own,
        others: vec![other],
        ended: 0,
        live: 2,
        silent: 0,
    };
    let granted = |input: GrantInput| input.grant(0.5).granted;
    assert_eq!(granted(input(ShareAmounts::default(), other)), 100);
    // Reservations beyond the grant are included.
    let busy = ShareAmounts {
        reserved: 850,
        ..other
    };
    assert_eq!(granted(input(ShareAmounts::default(), busy)), 50);
    // Stored before it was reported: no longer outstanding.
    let ahead = ShareAmounts {
        stored: 600,
        ..other
    };
    let grant = input(ShareAmounts::default(), ahead).grant(0.5);
    assert_eq!((grant.granted, grant.used_by_others), (100, 600));
}

#[test]
fn an_even_share_is_reserved_for_gateways_without_a_report() {
    let input = |others: usize, silent: usize| GrantInput {
        total: 900,
        spent: 0,
        own: ShareAmounts {
            used: 30,
            ..ShareAmounts::default()
        },
        others: vec![ShareAmounts::default(); others],
        ended: 0,
        live: 3,
        silent,
    };
    let granted = |input: GrantInput| input.grant(0.9).granted;
    assert_eq!(granted(input(2, 0)), 30 + 783);
    assert_eq!(granted(input(1, 1)), 30 + 570);
    assert_eq!(granted(input(0, 2)), 30 + 270);
}

#[test]
fn an_indivisible_remainder_moves_between_gateways() {
    let input = |granted: u64| GrantInput {
        total: 100,
        spent: 99,
        own: ShareAmounts {
            granted,
            ..ShareAmounts::default()
        },
        others: vec![ShareAmounts::default(); 3],
        ended: 0,
        live: 4,
        silent: 0,
    };
    assert_eq!(input(0).grant(0.25).granted, 1);
    assert_eq!(input(1).grant(0.25).granted, 0);
    let spent = GrantInput {
        spent: 100,
        ..input(0)
    };
    assert_eq!(spent.grant(0.25).granted, 0);
}

proptest! {
    #[test]
    fn shares_sum_to_one(counts in prop::collection::vec(0.0..1e9_f64, 1..6), silent in 0_usize..4) {
        let live = counts.len() + silent;
        let mut sum = 0.0;
        for (index, own) in counts.iter().enumerate() {
            let mut others = counts.clone();
            others.remove(index);
            let share = share(*own, &others, live);
            prop_assert!(share >= 1.0 / (IDLE_DIVISOR * count(live)) / 2.0);
            sum += share;
        }
        if silent > 0 {
            sum += count(silent) * share(0.0, &counts, live);
        }
        prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A gateway uses up to this amount of its grant.
    Take(usize, u64),
    Begin(usize, u64),
    Finish(usize),
    /// It reports and receives a grant.
    Report(usize, f64),
    /// Usage rows are stored.
    Store(usize, u64),
    /// It restarts; its earlier usage is not stored yet.
    Restart(usize),
    Total(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let who = 0..3_usize;
    prop_oneof![
        4 => (who.clone(), 0..400_u64).prop_map(|(who, most)| Step::Take(who, most)),
        2 => (who.clone(), 0..400_u64).prop_map(|(who, most)| Step::Begin(who, most)),
        2 => who.clone().prop_map(Step::Finish),
        4 => (who.clone(), 0.0..1.0_f64).prop_map(|(who, share)| Step::Report(who, share)),
        2 => (who.clone(), 0..400_u64).prop_map(|(who, most)| Step::Store(who, most)),
        1 => who.prop_map(Step::Restart),
        1 => (1000..3000_u64).prop_map(Step::Total),
    ]
}

/// The actual state of a gateway, as opposed to what the control plane has stored.
#[derive(Debug, Clone, Copy, Default)]
struct FakeGateway {
    granted: u64,
    used: u64,
    in_flight: u64,
}

impl FakeGateway {
    fn free(&self) -> u64 {
        self.granted.saturating_sub(self.used + self.in_flight)
    }
}

#[derive(Default)]
struct Simulation {
    total: u64,
    spent: u64,
    gateways: [FakeGateway; 3],
    control: [ShareAmounts; 3],
    /// Amounts of ended starts.
    ended: BTreeMap<usize, ShareAmounts>,
    /// The actual usage.
    taken: u64,
}

impl Simulation {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Take(who, most) => {
                let amount = self.gateways[who].free().min(most);
                self.gateways[who].used += amount;
                self.taken += amount;
            }
            Step::Begin(who, most) => {
                let amount = self.gateways[who].free().min(most);
                self.gateways[who].in_flight += amount;
            }
            Step::Finish(who) => {
                let gateway = &mut self.gateways[who];
                self.taken += gateway.in_flight;
                gateway.used += std::mem::take(&mut gateway.in_flight);
            }
            Step::Report(who, share) => self.report(who, share),
            Step::Store(who, most) => {
                let amount = (self.gateways[who].used - self.control[who].stored).min(most);
                self.control[who].stored += amount;
                self.spent += amount;
            }
            Step::Restart(who) => {
                // A gateway that drains sends its last report and usage.
                self.step(&Step::Finish(who));
                let gateway = std::mem::take(&mut self.gateways[who]);
                let held = std::mem::take(&mut self.control[who]);
                let ended = self.ended.entry(who).or_default();
                ended.used += gateway.used;
                ended.stored += held.stored;
            }
            Step::Total(total) => self.total = total,
        }
    }

    fn report(&mut self, who: usize, share: f64) {
        let gateway = self.gateways[who];
        let own = &mut self.control[who];
        own.used = gateway.used;
        own.reserved = gateway.in_flight;
        let input = GrantInput {
            total: self.total,
            spent: self.spent,
            own: *own,
            others: (0..3)
                .filter(|other| *other != who)
                .map(|other| self.control[other])
                .collect(),
            ended: self.ended.values().map(ShareAmounts::pending).sum(),
            live: 3,
            silent: 0,
        };
        let grant = input.grant(share);
        assert!(grant.granted >= gateway.used);
        self.control[who].granted = grant.granted;
        self.gateways[who].granted = grant.granted;
    }

    /// The actual usage and the amount that can be used before reconciling.
    fn bound(&self) -> u64 {
        let free: u64 = self
            .gateways
            .iter()
            .map(|gateway| gateway.in_flight + gateway.free())
            .sum();
        self.taken + free
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn no_order_of_events_overspends_a_budget(
        steps in prop::collection::vec(any_step(), 1..120)
    ) {
        let mut simulation = Simulation { total: 1000, ..Simulation::default() };
        let mut most = 1000;
        for step in &steps {
            let before = simulation.bound();
            simulation.step(step);
            // Lowering the total does not revoke grants.
            most = most.max(simulation.total);
            let bound = simulation.bound();
            prop_assert!(bound <= most, "{bound} of {most} after {step:?}");
            prop_assert!(bound <= before.max(simulation.total), "{before} to {bound} of {}", simulation.total);
        }
    }
}

/// A gateway with a concurrency limit, as the control plane and as itself sees it.
#[derive(Debug, Clone, Default)]
struct LimitedGateway {
    /// What the control plane stored; `None` before the first report.
    held: Option<u64>,
    /// The part that is in effect; `None` before the first reply.
    part: Option<u64>,
    in_flight: u64,
    /// A reply that has not arrived.
    reply: Option<u64>,
}

impl LimitedGateway {
    fn max(&self, limit: u64, live: usize) -> u64 {
        self.part.unwrap_or_else(|| even_concurrency(limit, live))
    }

    fn apply_reply(&mut self) {
        if let Some(part) = self.reply.take() {
            self.part = Some(part);
        }
    }
}

/// Processes the report of a gateway. Its reply is still to be applied.
fn report_concurrency(gateways: &mut [LimitedGateway], at: usize, limit: u64, share: f64) {
    let live = gateways.len();
    let others = || {
        gateways
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
    };
    let input = ConcurrencyInput {
        limit,
        held_by_others: others().filter_map(|(_, other)| other.held).sum(),
        live,
        silent: others().filter(|(_, other)| other.held.is_none()).count(),
    };
    let granted = input.grant(share);
    let own = &mut gateways[at];
    let before = own.max(limit, live).max(own.in_flight);
    own.held = Some(granted.max(before));
    own.reply = Some(granted);
}

proptest! {
    /// In any order of requests, reports, and replies that arrive late or never.
    #[test]
    fn concurrent_requests_never_exceed_the_limit_or_the_number_of_gateways(
        limit in 1_u64..40,
        live in 1_usize..8,
        steps in prop::collection::vec((0_usize..8, 0_u8..5, 0.0_f64..=1.0), 1..200),
    ) {
        let mut gateways = vec![LimitedGateway::default(); live];
        let bound = limit.max(live as u64);
        for (at, action, share) in steps {
            let at = at % live;
            match action {
                0 => {
                    let max = gateways[at].max(limit, live);
                    prop_assert!(max >= 1);
                    let in_flight = &mut gateways[at].in_flight;
                    *in_flight = max.max(*in_flight);
                }
                1 => gateways[at].in_flight /= 2,
                2 => gateways[at].in_flight = 0,
                3 => gateways[at].apply_reply(),
                _ => {
                    // The gateway sends one report at a time: an earlier reply was lost.
                    gateways[at].reply = None;
                    report_concurrency(&mut gateways, at, limit, share);
                }
            }
            let in_flight: u64 = gateways.iter().map(|gateway| gateway.in_flight).sum();
            prop_assert!(in_flight <= bound, "{in_flight} > {bound}: {gateways:?}");
        }
        // Without requests, two rounds with the demand of one gateway give it all that
        // others need not keep; with equal demand, nothing of the limit is unused.
        let settle = |gateways: &mut Vec<LimitedGateway>, share: &dyn Fn(usize) -> f64| {
            for at in (0..live).cycle().take(live * 4) {
                gateways[at].in_flight = 0;
                report_concurrency(gateways, at, limit, share(at));
                gateways[at].apply_reply();
            }
            gateways.iter().map(|gateway| gateway.max(limit, live)).sum::<u64>()
        };
        settle(&mut gateways, &|at| if at == 0 { 1.0 } else { 0.0 });
        prop_assert_eq!(gateways[0].max(limit, live), (limit + 1).saturating_sub(live as u64).max(1));
        let sum = settle(&mut gateways, &|_| 1.0 / count(live));
        prop_assert_eq!(sum, bound);
    }
}

/// The history of one gateway whose prices are, in percent, a multiple of the charged
/// ones.
#[derive(Debug, Clone)]
enum PriceStep {
    Settle(u64),
    Begin(u64),
    Finish,
    Store(usize),
    Price(u64),
    Report,
}

fn any_price_step() -> impl Strategy<Value = PriceStep> {
    prop_oneof![
        4 => (1..400_u64).prop_map(PriceStep::Settle),
        2 => (1..400_u64).prop_map(PriceStep::Begin),
        2 => Just(PriceStep::Finish),
        3 => (0..5_usize).prop_map(PriceStep::Store),
        1 => prop_oneof![Just(25_u64), Just(100), Just(400)].prop_map(PriceStep::Price),
        3 => Just(PriceStep::Report),
    ]
}

/// The settled and the charged amounts of events that are not stored yet.
#[derive(Default)]
struct PricedGateway {
    used: u64,
    in_flight: Vec<u64>,
    events: Vec<(u64, u64)>,
}

impl PricedGateway {
    fn settle(&mut self, charged: u64, percent: u64) {
        let settled = charged * percent / 100;
        self.used += settled;
        self.events.push((settled, charged));
    }
}

proptest! {
    /// A gateway learns of prices later than the control plane, and settles by others.
    #[test]
    fn nothing_stays_pending_after_changes_of_prices(
        steps in prop::collection::vec(any_price_step(), 1..120)
    ) {
        const TOTAL: u64 = 1 << 40;
        let (mut gateway, mut percent) = (PricedGateway::default(), 100);
        let (mut own, mut spent) = (ShareAmounts::default(), 0);
        let store = |gateway: &mut PricedGateway, own: &mut ShareAmounts, count: usize| {
            let count = count.min(gateway.events.len());
            gateway.events.drain(..count).map(|(settled, charged)| {
                own.stored += settled;
                charged
            }).sum::<u64>()
        };
        let report = |gateway: &PricedGateway, own: &mut ShareAmounts, spent: u64| {
            own.used = gateway.used;
            own.reserved = gateway.in_flight.iter().sum();
            let input = GrantInput {
                total: TOTAL,
                spent,
                own: *own,
                others: Vec::new(),
                ended: 0,
                live: 1,
                silent: 0,
            };
            let grant = input.grant(1.0);
            own.granted = grant.granted;
            grant
        };
        for step in steps {
            match step {
                PriceStep::Settle(charged) => gateway.settle(charged, percent),
                PriceStep::Begin(charged) => gateway.in_flight.push(charged),
                PriceStep::Finish => {
                    for charged in std::mem::take(&mut gateway.in_flight) {
                        gateway.settle(charged, percent);
                    }
                }
                PriceStep::Store(count) => spent += store(&mut gateway, &mut own, count),
                PriceStep::Price(new) => percent = new,
                PriceStep::Report => {
                    let unstored: u64 = gateway.events.iter().map(|(settled, _)| settled).sum();
                    let grant = report(&gateway, &mut own, spent);
                    prop_assert_eq!(own.pending(), unstored);
                    let known = i128::from(grant.used_by_others) + i128::from(gateway.used);
                    prop_assert_eq!(known, i128::from(spent + unstored));
                    prop_assert_eq!(grant.granted - gateway.used, TOTAL - spent - unstored);
                }
            }
        }
        spent += store(&mut gateway, &mut own, usize::MAX);
        let grant = report(&gateway, &mut own, spent);
        prop_assert_eq!(own.pending(), 0);
        let known = i128::from(grant.used_by_others) + i128::from(gateway.used);
        prop_assert_eq!(known, i128::from(spent));
        prop_assert_eq!(grant.granted - gateway.used, TOTAL - spent);
    }
}
