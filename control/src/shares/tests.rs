use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn alone_everything_is_ours() {
    assert!((share(0.0, &[], 1) - 1.0).abs() < f64::EPSILON);
    assert!((share(7.0, &[], 1) - 1.0).abs() < f64::EPSILON);
    let account = Account {
        total: u64::MAX - 1,
        spent: 5,
        own: HeldShare {
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
    assert_eq!(account.grant(1.0), expected);
}

#[test]
fn whoever_asks_for_nothing_keeps_an_eighth_of_an_even_part() {
    let busy = share(100.0, &[0.0], 2);
    let idle = share(0.0, &[100.0], 2);
    assert!((busy - 16.0 / 17.0).abs() < 1e-9, "{busy}");
    assert!((idle - 1.0 / 17.0).abs() < 1e-9, "{idle}");
    // One that has said nothing yet counts like one that asks for nothing.
    assert!((share(100.0, &[], 2) - busy).abs() < 1e-9);
    assert!((share(0.0, &[0.0, 0.0], 4) - 0.25).abs() < 1e-9);
}

#[test]
fn counts_fade() {
    assert!((faded(100.0, 0.0) - 100.0).abs() < 1e-9);
    assert!((faded(100.0, 20.0) - 36.788).abs() < 1e-3);
    assert!((faded(100.0, -5.0) - 100.0).abs() < 1e-9);
    assert!(faded(100.0, 1e9) <= 0.0);
}

#[test]
fn what_others_hold_is_not_given_twice() {
    let other = HeldShare {
        granted: 900,
        used: 100,
        reserved: 0,
        stored: 100,
    };
    let account = |own: HeldShare, other: HeldShare| Account {
        total: 1000,
        spent: own.stored + other.stored,
        own,
        others: vec![other],
        ended: 0,
        live: 2,
        silent: 0,
    };
    let granted = |account: Account| account.grant(0.5).granted;
    assert_eq!(granted(account(HeldShare::default(), other)), 100);
    // In flight beyond the grant is taken, too.
    let busy = HeldShare {
        reserved: 850,
        ..other
    };
    assert_eq!(granted(account(HeldShare::default(), busy)), 50);
    // Stored before it was told: not held any more.
    let ahead = HeldShare {
        stored: 600,
        ..other
    };
    let grant = account(HeldShare::default(), ahead).grant(0.5);
    assert_eq!((grant.granted, grant.used_by_others), (100, 600));
}

#[test]
fn an_even_part_is_kept_for_whoever_has_said_nothing() {
    let account = |others: usize, silent: usize| Account {
        total: 900,
        spent: 0,
        own: HeldShare {
            used: 30,
            ..HeldShare::default()
        },
        others: vec![HeldShare::default(); others],
        ended: 0,
        live: 3,
        silent,
    };
    let granted = |account: Account| account.grant(0.9).granted;
    assert_eq!(granted(account(2, 0)), 30 + 783);
    assert_eq!(granted(account(1, 1)), 30 + 570);
    assert_eq!(granted(account(0, 2)), 30 + 270);
}

#[test]
fn the_last_crumbs_go_around() {
    let account = |granted: u64| Account {
        total: 100,
        spent: 99,
        own: HeldShare {
            granted,
            ..HeldShare::default()
        },
        others: vec![HeldShare::default(); 3],
        ended: 0,
        live: 4,
        silent: 0,
    };
    assert_eq!(account(0).grant(0.25).granted, 1);
    assert_eq!(account(1).grant(0.25).granted, 0);
    let spent = Account {
        spent: 100,
        ..account(0)
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
            prop_assert!(share >= 1.0 / (IDLE_PART * count(live)) / 2.0);
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
    /// A gateway takes what it may, at most so much, some of it in flight first.
    Take(usize, u64),
    Begin(usize, u64),
    Finish(usize),
    /// It says so, and is granted.
    Report(usize, f64),
    /// Usage rows come.
    Store(usize, u64),
    /// It starts anew; what it took before is still on its way.
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

/// A gateway as it is, beside what control holds of it.
#[derive(Debug, Clone, Copy, Default)]
struct Gateway {
    granted: u64,
    used: u64,
    in_flight: u64,
}

impl Gateway {
    fn free(&self) -> u64 {
        self.granted.saturating_sub(self.used + self.in_flight)
    }
}

#[derive(Default)]
struct World {
    total: u64,
    spent: u64,
    gateways: [Gateway; 3],
    control: [HeldShare; 3],
    /// Taken by starts that are over.
    ended: BTreeMap<usize, HeldShare>,
    /// What was taken, truly.
    taken: u64,
}

impl World {
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
                // As one does that drains: its last report and rows come.
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
        let account = Account {
            total: self.total,
            spent: self.spent,
            own: *own,
            others: (0..3)
                .filter(|other| *other != who)
                .map(|other| self.control[other])
                .collect(),
            ended: self.ended.values().map(HeldShare::pending).sum(),
            live: 3,
            silent: 0,
        };
        let grant = account.grant(share);
        assert!(grant.granted >= gateway.used);
        self.control[who].granted = grant.granted;
        self.gateways[who].granted = grant.granted;
    }

    /// What is taken, or may be without asking.
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
    fn no_order_of_events_spends_more_than_there_is(
        steps in prop::collection::vec(any_step(), 1..120)
    ) {
        let mut world = World { total: 1000, ..World::default() };
        let mut most = 1000;
        for step in &steps {
            let before = world.bound();
            world.step(step);
            // A total that is lowered takes nothing back that was granted.
            most = most.max(world.total);
            let bound = world.bound();
            prop_assert!(bound <= most, "{bound} of {most} after {step:?}");
            prop_assert!(bound <= before.max(world.total), "{before} to {bound} of {}", world.total);
        }
    }
}
