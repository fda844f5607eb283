use fastllm_contract::{ModelName, PrincipalId, RefusalKind, Timestamp};
use proptest::prelude::*;

use super::*;

const MILLION: u64 = 1_000_000;

fn known(prompt: u64, completion: u64) -> Quantities {
    Quantities {
        tokens_known: true,
        prompt: Tokens(prompt),
        completion: Tokens(completion),
        ..Quantities::default()
    }
}

fn priced(input: u64, output: u64) -> Prices {
    Prices {
        input_price_per_mtok: Some(Micros(input)),
        output_price_per_mtok: Some(Micros(output)),
        ..Prices::default()
    }
}

fn event() -> UsageEvent {
    UsageEvent {
        principal_id: PrincipalId(1),
        key_id: None,
        model: ModelName::new("m").unwrap(),
        requested_model: None,
        endpoint: None,
        request_id: None,
        attempts: None,
        prompt_tokens: Tokens(1000),
        completion_tokens: Tokens(100),
        cached_tokens: None,
        reasoning_tokens: None,
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        audio_completion_tokens: None,
        images: None,
        input_characters: None,
        audio_ms: None,
        audio_bytes: None,
        usage_reported: true,
        estimated: false,
        cached: false,
        metadata: None,
        refusal: None,
        at: Timestamp(0),
        duration_ms: None,
        ttft_ms: None,
        status: None,
        cost_micros: None,
    }
}

#[test]
fn token_prices_are_per_million_and_the_sum_is_rounded_once() {
    assert_eq!(
        cost(&priced(3_000_000, 15_000_000), &known(MILLION, 2 * MILLION)),
        Some(Micros(33_000_000))
    );
    // Half a micro-unit is one; a quarter twice is a half.
    assert_eq!(cost(&priced(500_000, 1), &known(1, 0)), Some(Micros(1)));
    assert_eq!(cost(&priced(499_999, 1), &known(1, 0)), Some(Micros(0)));
    assert_eq!(
        cost(&priced(250_000, 250_000), &known(1, 1)),
        Some(Micros(1))
    );
}

#[test]
fn class_without_own_price_costs_as_its_whole() {
    let quantities = Quantities {
        cached: Tokens(2 * MILLION),
        cache_write: Tokens(MILLION),
        audio_prompt: Tokens(3 * MILLION),
        reasoning: Tokens(MILLION),
        audio_completion: Tokens(2 * MILLION),
        ..known(10 * MILLION, 5 * MILLION)
    };
    let mut prices = priced(1000, 100_000);
    assert_eq!(cost(&prices, &quantities), Some(Micros(510_000)));
    prices.cached_input_price_per_mtok = Some(Micros(100));
    assert_eq!(cost(&prices, &quantities), Some(Micros(508_200)));
    prices.cache_write_price_per_mtok = Some(Micros(1250));
    assert_eq!(cost(&prices, &quantities), Some(Micros(508_450)));
    prices.audio_input_price_per_mtok = Some(Micros(0));
    assert_eq!(cost(&prices, &quantities), Some(Micros(505_450)));
    prices.reasoning_price_per_mtok = Some(Micros(200_000));
    assert_eq!(cost(&prices, &quantities), Some(Micros(605_450)));
    prices.audio_output_price_per_mtok = Some(Micros(0));
    assert_eq!(cost(&prices, &quantities), Some(Micros(405_450)));
}

#[test]
fn class_counts_are_capped_by_their_whole() {
    let prices = Prices {
        cached_input_price_per_mtok: Some(Micros(10)),
        cache_write_price_per_mtok: Some(Micros(2000)),
        reasoning_price_per_mtok: Some(Micros(7)),
        ..priced(1000, 1000)
    };
    let quantities = Quantities {
        cached: Tokens(2 * MILLION),
        cache_write: Tokens(u64::MAX),
        reasoning: Tokens(u64::MAX),
        ..known(3 * MILLION, MILLION)
    };
    assert_eq!(cost(&prices, &quantities), Some(Micros(20 + 2000 + 7)));
}

#[test]
fn estimated_tokens_count_only_without_priced_measures() {
    let estimated = Quantities {
        estimated: true,
        images: 2,
        ..known(MILLION, MILLION)
    };
    let mut prices = priced(1000, 10_000);
    assert_eq!(cost(&prices, &estimated), Some(Micros(11_000)));
    prices.image_price = Some(Micros(40_000));
    assert_eq!(cost(&prices, &estimated), Some(Micros(80_000)));
    let reported = Quantities {
        estimated: false,
        ..estimated
    };
    assert_eq!(cost(&prices, &reported), Some(Micros(91_000)));
    let without = Quantities {
        images: 0,
        ..estimated
    };
    assert_eq!(cost(&prices, &without), Some(Micros(11_000)));
}

#[test]
fn images_characters_and_audio_have_own_prices() {
    let prices = Prices {
        image_price: Some(Micros(40_000)),
        input_price_per_mchar: Some(Micros(15_000_000)),
        audio_price_per_minute: Some(Micros(6000)),
        ..Prices::default()
    };
    let unknown = Quantities::default();
    for (quantities, expected) in [
        (
            Quantities {
                images: 3,
                ..unknown
            },
            120_000,
        ),
        (
            Quantities {
                input_characters: 200,
                ..unknown
            },
            3000,
        ),
        (
            Quantities {
                audio_ms: 90_000,
                ..unknown
            },
            9000,
        ),
        // 6000 * 5 / 60000 is a half.
        (
            Quantities {
                audio_ms: 5,
                ..unknown
            },
            1,
        ),
        // Tokens that have no price are paid for by the image.
        (
            Quantities {
                images: 1,
                ..known(20, 1000)
            },
            40_000,
        ),
    ] {
        assert_eq!(cost(&prices, &quantities), Some(Micros(expected)));
    }
    let both = Prices {
        input_price_per_mtok: Some(Micros(5_000_000)),
        ..prices
    };
    let image = Quantities {
        images: 1,
        ..known(20, 1000)
    };
    assert_eq!(cost(&both, &image), Some(Micros(40_100)));
}

#[test]
fn missing_price_means_unknown_cost() {
    let none = Prices::default();
    let tokens = priced(1_000_000, 1_000_000);
    let input_only = Prices {
        output_price_per_mtok: None,
        ..tokens
    };
    assert_eq!(cost(&none, &known(1, 1)), None);
    assert_eq!(cost(&none, &known(0, 0)), None);
    assert_eq!(cost(&tokens, &known(0, 0)), Some(Micros(0)));
    assert_eq!(cost(&tokens, &Quantities::default()), None);
    assert_eq!(cost(&input_only, &known(1, 0)), Some(Micros(1)));
    assert_eq!(cost(&input_only, &known(1, 1)), None);
    let image = |quantities| Quantities {
        images: 1,
        ..quantities
    };
    assert_eq!(cost(&tokens, &image(Quantities::default())), None);
    assert_eq!(cost(&tokens, &image(known(0, 0))), None);
    assert_eq!(cost(&tokens, &image(known(1, 1))), Some(Micros(2)));
    // A class without any price, though its whole has none left to price.
    let only_cached = Prices {
        cached_input_price_per_mtok: Some(Micros(1_000_000)),
        ..Prices::default()
    };
    let cached = |tokens| Quantities {
        cached: Tokens(tokens),
        ..known(10, 0)
    };
    assert_eq!(cost(&only_cached, &cached(10)), Some(Micros(10)));
    assert_eq!(cost(&only_cached, &cached(9)), None);
}

#[test]
fn largest_quantities_saturate_the_cost() {
    let most = Some(Micros(u64::MAX));
    let prices = Prices {
        input_price_per_mtok: most,
        output_price_per_mtok: most,
        cached_input_price_per_mtok: most,
        cache_write_price_per_mtok: most,
        reasoning_price_per_mtok: most,
        audio_input_price_per_mtok: most,
        audio_output_price_per_mtok: most,
        image_price: most,
        input_price_per_mchar: most,
        audio_price_per_minute: most,
    };
    let quantities = Quantities {
        images: u64::MAX,
        input_characters: u64::MAX,
        audio_ms: u64::MAX,
        ..known(u64::MAX, u64::MAX)
    };
    assert_eq!(cost(&prices, &quantities), most);
    assert_eq!(cost(&prices, &known(MILLION, 0)), most);
    assert_eq!(cost(&prices, &known(MILLION + 1, 0)), most);
}

#[test]
fn refusals_are_free_hits_save_and_reported_cost_takes_precedence() {
    let prices = priced(1_000_000, 10_000_000);
    let by_prices = |event: &UsageEvent| charge(event, Some(&prices));
    let paid = |cost| Charge {
        cost: Some(Micros(cost)),
        saved: None,
    };
    let saved = |saved| Charge {
        cost: Some(Micros(0)),
        saved,
    };
    let mut event = event();
    assert_eq!(by_prices(&event), paid(2000));
    assert_eq!(charge(&event, None), Charge::default());
    event.cached = true;
    assert_eq!(by_prices(&event), saved(Some(Micros(2000))));
    assert_eq!(charge(&event, None), saved(None));
    event.cost_micros = Some(Micros(5));
    assert_eq!(by_prices(&event), saved(Some(Micros(5))));
    event.cached = false;
    assert_eq!(by_prices(&event), paid(5));
    assert_eq!(charge(&event, None), paid(5));
    event.refusal = Some(RefusalKind::Budget);
    assert_eq!(by_prices(&event), paid(0));
}

#[test]
fn every_quantity_is_read_from_an_event() {
    let mut event = event();
    event.cached_tokens = Some(Tokens(1));
    event.cache_write_tokens = Some(Tokens(2));
    event.audio_prompt_tokens = Some(Tokens(3));
    event.reasoning_tokens = Some(Tokens(4));
    event.audio_completion_tokens = Some(Tokens(5));
    event.images = Some(6);
    event.input_characters = Some(7);
    event.audio_ms = Some(8);
    let expected = Quantities {
        tokens_known: true,
        estimated: false,
        prompt: Tokens(1000),
        completion: Tokens(100),
        cached: Tokens(1),
        cache_write: Tokens(2),
        audio_prompt: Tokens(3),
        reasoning: Tokens(4),
        audio_completion: Tokens(5),
        images: 6,
        input_characters: 7,
        audio_ms: 8,
    };
    assert_eq!(Quantities::from(&event), expected);
    event.usage_reported = false;
    assert!(!Quantities::from(&event).tokens_known);
    event.estimated = true;
    let estimated = Quantities::from(&event);
    assert!(estimated.tokens_known && estimated.estimated);
}

/// A cost as a fraction, summed the way one does it on paper.
#[derive(Clone, Copy)]
struct Fraction(u128, u128);

impl Fraction {
    fn plus(self, other: Self) -> Self {
        let (over, under) = (self.0 * other.1 + other.0 * self.1, self.1 * other.1);
        let (mut a, mut b) = (over, under);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Self(over / a, under / a)
    }

    fn half_up(self) -> u128 {
        let (whole, rest) = (self.0 / self.1, self.0 % self.1);
        whole + u128::from(2 * rest >= self.1)
    }
}

fn all_priced(bound: u64) -> impl Strategy<Value = Prices> {
    proptest::array::uniform10(0..=bound).prop_map(|prices| {
        let mut prices = prices.into_iter().map(Micros);
        Prices {
            input_price_per_mtok: prices.next(),
            output_price_per_mtok: prices.next(),
            cached_input_price_per_mtok: prices.next(),
            cache_write_price_per_mtok: prices.next(),
            reasoning_price_per_mtok: prices.next(),
            audio_input_price_per_mtok: prices.next(),
            audio_output_price_per_mtok: prices.next(),
            image_price: prices.next(),
            input_price_per_mchar: prices.next(),
            audio_price_per_minute: prices.next(),
        }
    })
}

fn some_prices(bound: u64) -> impl Strategy<Value = Prices> {
    (all_priced(bound), any::<u16>()).prop_map(|(all, mask)| {
        let keep = |bit: u32, price| if mask >> bit & 1 == 1 { price } else { None };
        Prices {
            input_price_per_mtok: keep(0, all.input_price_per_mtok),
            output_price_per_mtok: keep(1, all.output_price_per_mtok),
            cached_input_price_per_mtok: keep(2, all.cached_input_price_per_mtok),
            cache_write_price_per_mtok: keep(3, all.cache_write_price_per_mtok),
            reasoning_price_per_mtok: keep(4, all.reasoning_price_per_mtok),
            audio_input_price_per_mtok: keep(5, all.audio_input_price_per_mtok),
            audio_output_price_per_mtok: keep(6, all.audio_output_price_per_mtok),
            image_price: keep(7, all.image_price),
            input_price_per_mchar: keep(8, all.input_price_per_mchar),
            audio_price_per_minute: keep(9, all.audio_price_per_minute),
        }
    })
}

fn some_quantities(bound: u64) -> impl Strategy<Value = Quantities> {
    let count = prop_oneof![Just(0), 0..=bound];
    let tokens = proptest::array::uniform7(count.clone());
    (any::<bool>(), tokens, proptest::array::uniform3(count)).prop_map(
        |(tokens_known, tokens, [images, input_characters, audio_ms])| {
            let [
                prompt,
                completion,
                cached,
                cache_write,
                audio_prompt,
                reasoning,
                audio_completion,
            ] = tokens.map(Tokens);
            Quantities {
                tokens_known,
                estimated: false,
                prompt,
                completion,
                cached,
                cache_write,
                audio_prompt,
                reasoning,
                audio_completion,
                images,
                input_characters,
                audio_ms,
            }
        },
    )
}

proptest! {
    /// An estimate prices what a report does, and nothing twice.
    #[test]
    fn an_estimate_costs_no_more_than_a_report(
        prices in some_prices(1 << 40),
        reported in some_quantities(1 << 36),
    ) {
        let estimated = Quantities { estimated: true, ..reported };
        let (less, more) = (cost(&prices, &estimated), cost(&prices, &reported));
        prop_assert_eq!(less.is_some(), more.is_some());
        prop_assert!(less <= more);
        let unmeasured = |of| Quantities {
            images: 0,
            input_characters: 0,
            audio_ms: 0,
            ..of
        };
        prop_assert_eq!(
            cost(&prices, &unmeasured(estimated)),
            cost(&prices, &unmeasured(reported))
        );
    }

    #[test]
    fn equals_the_exact_fraction(
        prices in all_priced(1 << 40),
        mut parts in some_quantities(1 << 36),
    ) {
        // Disjoint parts, and wholes that hold them.
        let plain = (parts.prompt.0, parts.completion.0);
        parts.prompt.0 += parts.cached.0 + parts.cache_write.0 + parts.audio_prompt.0;
        parts.completion.0 += parts.reasoning.0 + parts.audio_completion.0;
        parts.tokens_known = true;
        let mut exact = Fraction(0, 1);
        for (count, price, per) in [
            (plain.0, prices.input_price_per_mtok, 1_000_000),
            (plain.1, prices.output_price_per_mtok, 1_000_000),
            (parts.cached.0, prices.cached_input_price_per_mtok, 1_000_000),
            (parts.cache_write.0, prices.cache_write_price_per_mtok, 1_000_000),
            (parts.audio_prompt.0, prices.audio_input_price_per_mtok, 1_000_000),
            (parts.reasoning.0, prices.reasoning_price_per_mtok, 1_000_000),
            (parts.audio_completion.0, prices.audio_output_price_per_mtok, 1_000_000),
            (parts.images, prices.image_price, 1),
            (parts.input_characters, prices.input_price_per_mchar, 1_000_000),
            (parts.audio_ms, prices.audio_price_per_minute, 60_000),
        ] {
            let price = price.unwrap_or_default().0;
            exact = exact.plus(Fraction(u128::from(count) * u128::from(price), per));
        }
        let expected = u64::try_from(exact.half_up()).unwrap_or(u64::MAX);
        prop_assert_eq!(cost(&prices, &parts), Some(Micros(expected)));
    }

    #[test]
    fn more_of_anything_and_dearer_never_costs_less(
        prices in some_prices(u64::MAX),
        quantities in some_quantities(u64::MAX),
        more in any::<u64>(),
    ) {
        let before = cost(&prices, &quantities);
        let mut grown = [quantities; 5];
        for count in [&mut grown[0].prompt, &mut grown[1].completion] {
            count.0 = count.0.saturating_add(more);
        }
        grown[2].images = quantities.images.saturating_add(more);
        grown[3].input_characters = quantities.input_characters.saturating_add(more);
        grown[4].audio_ms = quantities.audio_ms.saturating_add(more);
        for quantities in &grown {
            if let (Some(before), Some(after)) = (before, cost(&prices, quantities)) {
                prop_assert!(after >= before);
            }
        }
        let dearer = Prices {
            cached_input_price_per_mtok: prices
                .cached_input_price_per_mtok
                .map(|price| Micros(price.0.saturating_add(more))),
            image_price: prices.image_price.map(|price| Micros(price.0.saturating_add(more))),
            ..prices
        };
        prop_assert!(cost(&dearer, &quantities) >= before);
    }

    #[test]
    fn classes_at_the_price_of_their_whole_change_nothing(
        input in any::<u64>(),
        output in any::<u64>(),
        named in any::<bool>(),
        quantities in some_quantities(u64::MAX),
    ) {
        let plain = priced(input, output);
        let classes = if named {
            Prices {
                cached_input_price_per_mtok: plain.input_price_per_mtok,
                cache_write_price_per_mtok: plain.input_price_per_mtok,
                audio_input_price_per_mtok: plain.input_price_per_mtok,
                reasoning_price_per_mtok: plain.output_price_per_mtok,
                audio_output_price_per_mtok: plain.output_price_per_mtok,
                ..plain
            }
        } else {
            plain
        };
        let split = Quantities { tokens_known: true, images: 0, input_characters: 0, audio_ms: 0, ..quantities };
        let whole = known(split.prompt.0, split.completion.0);
        prop_assert_eq!(cost(&classes, &split), cost(&plain, &whole));
    }

    #[test]
    fn a_known_cost_is_the_sum_of_what_has_a_price(
        prices in some_prices(u64::MAX),
        quantities in some_quantities(u64::MAX),
    ) {
        // No cost without a price, and none for unknown tokens.
        if cost(&prices, &quantities).is_some() {
            prop_assert_ne!(prices, Prices::default());
            let counted = quantities.images > 0 && prices.image_price.is_some()
                || quantities.input_characters > 0 && prices.input_price_per_mchar.is_some()
                || quantities.audio_ms > 0 && prices.audio_price_per_minute.is_some();
            prop_assert!(quantities.tokens_known || counted);
        }
    }
}
