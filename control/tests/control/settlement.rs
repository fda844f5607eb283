//! What gateways settle of budgets at other prices than those that are charged.

use fastllm_contract::{BudgetUsage, Grant, Micros, Tokens};
use serde_json::json;
use time::OffsetDateTime;

use crate::accounting::{reply, send};
use crate::harness::{Control, PASSWORD, Session, WAITING, eventually, started};
use crate::prices::{micros, with};
use crate::reconcile::{budget, budget_share, grant, silent};

const TOTAL: u64 = 1_000_000;

/// The cost of a thousand tokens.
fn cost(price: u64) -> u64 {
    1000 * price / 1_000_000
}

fn difference(amount: u64, other: u64) -> i64 {
    i64::try_from(amount).unwrap() - i64::try_from(other).unwrap()
}

/// One gateway that uses a budget of principal 1, with a request in flight for which 70
/// micro-units are reserved.
struct PricedGateway<'a> {
    control: &'a Control,
    root: &'a Session<'a>,
    /// Its usage in the window.
    used: BudgetUsage,
    /// What is charged for that.
    charged: u64,
    sequence: u64,
}

impl PricedGateway<'_> {
    /// Uses a thousand tokens. Returns the settled cost.
    fn settle(&mut self, price: u64) -> u64 {
        let settled = cost(price);
        self.used.tokens.0 += 1000;
        self.used.cost_micros.0 += settled;
        settled
    }

    /// Sends the usage event of what was settled last.
    async fn store(&mut self, settled: u64, price: u64) {
        self.sequence += 1;
        let now = micros(OffsetDateTime::now_utc());
        let batch = json!({
            "replica": "a", "boot_id": "boot-1", "sequence": self.sequence,
            "events": [with("m", json!({ "at": now, "completion_tokens": 0 }))],
            "settled": [{
                "budget": self.used.budget, "window_start": self.used.window_start,
                "tokens": 1000, "cost_micros": settled,
            }],
        });
        assert_eq!(send(self.control, &batch).await, reply(1, 0, false));
        self.charged += cost(price);
    }

    /// Asserts that it may use what is left of the budget.
    async fn assert_granted(&self, pending: u64) {
        let share = budget_share(self.control, "a", self.used).await.unwrap();
        let (settled, spent) = (self.used.cost_micros.0, self.charged + pending);
        assert_eq!(
            share.cost_micros,
            Some(Grant {
                total: TOTAL,
                granted: settled + TOTAL - spent,
                used_by_others: difference(spent, settled),
            })
        );
    }

    async fn assert_shown(&self, pending: u64) {
        let shown = self.root.get("/admin/principals/1/budget").await;
        let cost = (&shown["cost_used_micros"], &shown["cost_reserved_micros"]);
        assert_eq!(cost, (&json!(self.charged), &json!(pending + 70)));
        let tokens = self.used.tokens.0;
        let unstored = if pending > 0 { 1000 } else { 0 };
        let shown = (&shown["tokens_used"], &shown["tokens_reserved"]);
        assert_eq!(shown, (&json!(tokens - unstored), &json!(unstored)));
    }
}

#[tokio::test]
async fn changed_prices_leave_nothing_reserved() {
    const OLD: u64 = 1_000_000;
    for new in [400_000, 3_000_000] {
        let (database, control) = started().await;
        let root = control.session("root", PASSWORD).await;
        let prices =
            json!({ "name": "m", "input_price_per_mtok": OLD, "output_price_per_mtok": 0 });
        let (_, made) = root.post("/admin/models", prices).await;
        let body = json!({ "cost_total_micros": TOTAL, "window": "daily" });
        let none = budget(&database, &control, body).await;
        let mut gateway = PricedGateway {
            control: &control,
            root: &root,
            used: BudgetUsage {
                cost_reserved_micros: Micros(70),
                ..none
            },
            charged: 0,
            sequence: 0,
        };
        // The gateway learns of the new price later.
        for (round, settled, charged) in
            [(1, OLD, OLD), (2, OLD, new), (3, OLD, new), (4, new, new)]
        {
            if round == 2 {
                let body = json!({ "input_price_per_mtok": new });
                let path = format!("/admin/models/{}", made["id"]);
                assert_eq!(root.patch(&path, body).await.0, 204);
            }
            let pending = gateway.settle(settled);
            gateway.assert_granted(pending).await;
            gateway.assert_shown(pending).await;
            gateway.store(pending, charged).await;
            // Only what is in flight is reserved: at once, and after another report.
            gateway.assert_shown(0).await;
            gateway.assert_granted(0).await;
            gateway.assert_shown(0).await;
            let other = budget_share(&control, "b", none).await.unwrap();
            let used_by_others = other.cost_micros.unwrap().used_by_others;
            assert_eq!(used_by_others, difference(gateway.charged, 0));
            silent(&database, "b", 31.0).await;
        }
    }
}

/// A batch of which nothing is stored, and windows in which nothing is charged.
#[tokio::test]
async fn settled_amounts_count_as_stored_whatever_is_charged() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    let none = budget(&database, &control, body).await;
    let used = BudgetUsage {
        tokens: Tokens(300),
        ..none
    };
    let share = budget_share(&control, "a", used).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 1000, 0)));
    let batch = |sequence, budget: u64, count| {
        let settled = json!({
            "budget": budget, "window_start": none.window_start, "tokens": 300,
        });
        json!({
            "replica": "a", "boot_id": "boot-1", "sequence": sequence,
            "events": [with("never-existed", json!({}))],
            "settled": vec![settled; count],
        })
    };
    let dropped = reply(0, 1, false);
    // A budget that does not exist.
    let unknown = batch(1, none.budget.0 + 1, 1);
    assert_eq!(send(&control, &unknown).await, dropped);
    let shown = root.get("/admin/principals/1/budget").await;
    assert_eq!(shown["tokens_reserved"], 300);
    let lost = batch(2, none.budget.0, 1);
    assert_eq!(send(&control, &lost).await, dropped);
    let shown = root.get("/admin/principals/1/budget").await;
    assert_eq!(
        (&shown["tokens_reserved"], &shown["tokens_used"]),
        (&json!(0), &json!(0))
    );
    let share = budget_share(&control, "a", used).await.unwrap();
    assert_eq!(share.tokens, Some(grant(1000, 1300, -300)));
    let too_many = send(&control, &batch(3, none.budget.0, 2001)).await;
    assert_eq!((too_many.0, &too_many.1["field"]), (413, &json!("settled")));
}

/// Usage that is stored between two reads is shown once.
#[tokio::test]
async fn used_and_reserved_amounts_are_shown_as_of_one_time() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let body = json!({ "tokens_total": 1000, "window": "daily" });
    let none = budget(&database, &control, body).await;
    let used = BudgetUsage {
        tokens: Tokens(300),
        ..none
    };
    budget_share(&control, "a", used).await.unwrap();
    let mut transaction = database.pool.begin().await.unwrap();
    let store = "LOCK TABLE budget_shares; \
         UPDATE budget_shares SET tokens_stored = 300; \
         UPDATE budget_spending SET tokens_used = 300";
    sqlx::raw_sql(store)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let shown = async { root.get("/admin/principals/1/budget").await };
    let commit = async {
        eventually("the request waits", async || {
            (database.number(WAITING).await > 0).then_some(())
        })
        .await;
        transaction.commit().await.unwrap();
    };
    let (shown, ()) = tokio::join!(shown, commit);
    let amounts = (&shown["tokens_used"], &shown["tokens_reserved"]);
    assert_eq!(amounts, (&json!(0), &json!(300)));
    let shown = root.get("/admin/principals/1/budget").await;
    let amounts = (&shown["tokens_used"], &shown["tokens_reserved"]);
    assert_eq!(amounts, (&json!(300), &json!(0)));
}
