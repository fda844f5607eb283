//! The script of request number n: a pure function of n, the same for clients
//! and upstreams.

use std::fmt::Write as _;

/// The scripted course of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Success.
    Good,
    /// The response does not report usage.
    Silent,
    /// The first backend fails, another one responds.
    FailsOver(Failure),
    /// Every backend fails.
    Fails(Failure),
    /// The stream is aborted after its content events.
    Aborts,
    /// The client disconnects while the upstream processes the request.
    LeavesBefore,
    /// The client disconnects after the content events.
    LeavesWithin,
}

/// How an upstream fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// 500.
    Status,
    /// The connection ends before the head.
    Hangup,
    /// An error in the first event of a stream.
    Event,
}

/// The format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Stream,
    Embeddings,
}

/// The key, as an index into the keys.
pub(super) const KEYS: usize = 6;
const PLAIN: u64 = 4;
const SLOW: usize = 4;
const BROKE: usize = 5;

/// Tokens and cost of one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: u64,
    /// `None` if the endpoint reports no completion tokens.
    pub(super) completion: Option<u64>,
    pub(super) cached: Option<u64>,
    pub(super) reasoning: Option<u64>,
    pub(super) cost_micros: Option<u64>,
}

/// One request and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) course: Scenario,
    pub(super) form: Form,
    pub(super) key: usize,
    pub(super) model: &'static str,
    pub(super) usage: Usage,
    /// Number of content events of a stream, or before it is aborted.
    pub(super) events: u32,
    words: u64,
    seed: u64,
}

impl Case {
    /// The case of request `n`.
    pub(super) fn of(n: u32) -> Self {
        let mut random = Random(u64::from(n));
        let (chance, who) = (random.below(1000), random.below(100));
        let key = match who {
            0..2 => SLOW,
            2..4 => BROKE,
            _ => usize::try_from(random.below(PLAIN)).unwrap_or(0),
        };
        let failure = match chance % 3 {
            0 => Failure::Status,
            1 => Failure::Hangup,
            _ => Failure::Event,
        };
        let course = match chance {
            _ if key >= SLOW => Scenario::Good,
            0..60 => Scenario::FailsOver(failure),
            60..65 => Scenario::Fails(failure),
            65..95 => Scenario::Aborts,
            95..115 => Scenario::LeavesBefore,
            115..140 => Scenario::LeavesWithin,
            140..150 => Scenario::Silent,
            _ => Scenario::Good,
        };
        let streams = matches!(
            course,
            Scenario::Aborts
                | Scenario::LeavesWithin
                | Scenario::FailsOver(Failure::Event)
                | Scenario::Fails(Failure::Event)
        );
        let form = match random.below(10) {
            _ if streams => Form::Stream,
            0..4 => Form::Stream,
            4 => Form::Embeddings,
            _ => Form::Json,
        };
        let model = match (form, random.below(3)) {
            (Form::Embeddings, _) => "exact-embed",
            (_, 0) => "exact-plain",
            (_, 1) => "exact-classes",
            _ => "exact-cost",
        };
        Self {
            course,
            form,
            key,
            model,
            usage: Usage::of(form, model, &mut random),
            events: u32::try_from(2 + random.below(7)).unwrap_or(2),
            words: 4 + random.below(100),
            seed: random.next(),
        }
    }

    /// How an attempt fails, if it does; the first attempt is 1.
    pub(super) fn failure(&self, attempt: u32) -> Option<Failure> {
        match self.course {
            Scenario::FailsOver(how) if attempt == 1 => Some(how),
            Scenario::Fails(how) => Some(how),
            _ => None,
        }
    }

    /// The path of the request.
    pub(super) fn path(&self) -> &'static str {
        match self.form {
            Form::Embeddings => "/v1/embeddings",
            Form::Json | Form::Stream => "/v1/chat/completions",
        }
    }

    /// The body of the request.
    pub(super) fn body(&self) -> String {
        let model = self.model;
        let text = self.text();
        match self.form {
            Form::Embeddings => format!("{{\"model\":\"{model}\",\"input\":\"{text}\"}}"),
            form => format!(
                "{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\
                 \"content\":\"{text}\"}}],\"max_tokens\":2000,\"stream\":{}}}",
                form == Form::Stream
            ),
        }
    }

    fn text(&self) -> String {
        let mut random = Random(self.seed);
        let mut text = String::new();
        for _ in 0..self.words {
            text.push_str(word(random.next()));
        }
        text
    }

    /// The word of a content event: one token.
    pub(super) fn word(&self, event: u32) -> &'static str {
        word(Random(self.seed ^ u64::from(event)).next())
    }
}

impl Usage {
    fn of(form: Form, model: &str, random: &mut Random) -> Self {
        let prompt = 1 + random.below(5000);
        if form == Form::Embeddings {
            return Self {
                prompt,
                completion: None,
                cached: None,
                reasoning: None,
                cost_micros: None,
            };
        }
        let completion = 1 + random.below(2000);
        let classes = model == "exact-classes";
        let costs = model == "exact-cost" && random.below(8) > 0;
        Self {
            prompt,
            completion: Some(completion),
            cached: classes.then(|| random.below(prompt + 1)),
            reasoning: classes.then(|| random.below(completion + 1)),
            cost_micros: costs.then(|| random.below(200_000)),
        }
    }

    /// The `usage` object.
    pub(super) fn json(&self) -> String {
        let completion = self.completion.unwrap_or(0);
        let mut json = format!(
            "{{\"prompt_tokens\":{},\"total_tokens\":{}",
            self.prompt,
            self.prompt + completion
        );
        let details = [
            ("", "completion_tokens", self.completion, ""),
            (
                "\"prompt_tokens_details\":{",
                "cached_tokens",
                self.cached,
                "}",
            ),
            (
                "\"completion_tokens_details\":{",
                "reasoning_tokens",
                self.reasoning,
                "}",
            ),
        ];
        for (open, name, count, close) in details {
            if let Some(count) = count {
                let _infallible = write!(json, ",{open}\"{name}\":{count}{close}");
            }
        }
        if let Some(cost) = self.cost_micros {
            let (whole, rest) = (cost / 1_000_000, cost % 1_000_000);
            let _infallible = write!(json, ",\"cost\":{whole}.{rest:06}");
        }
        json.push('}');
        json
    }
}

/// Pseudorandom numbers (`SplitMix64`).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

fn word(number: u64) -> &'static str {
    const WORDS: [&str; 8] = [
        " a", " sea", " wind", " waves", " blue", " of", " salt", " gulls",
    ];
    WORDS[usize::try_from(number % 8).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Case, Form, Scenario};

    #[test]
    fn every_course_form_model_and_key_occurs_and_bodies_are_json() {
        let cases: Vec<Case> = (0..10_000).map(Case::of).collect();
        let courses: BTreeSet<_> = cases
            .iter()
            .map(|case| format!("{:?}", case.course))
            .collect();
        assert_eq!(courses.len(), 11, "{courses:?}");
        let keys: BTreeSet<_> = cases.iter().map(|case| case.key).collect();
        assert_eq!(keys.len(), super::KEYS);
        let models: BTreeSet<_> = cases.iter().map(|case| case.model).collect();
        assert_eq!(models.len(), 4);
        for case in &cases[..200] {
            let body: serde_json::Value = serde_json::from_str(&case.body()).unwrap();
            assert_eq!(body["model"], case.model);
            assert_eq!(body["stream"] == true, case.form == Form::Stream);
        }
    }

    #[test]
    fn usage_is_json_and_details_do_not_exceed_totals() {
        for case in (0..2000).map(Case::of) {
            let usage: serde_json::Value = serde_json::from_str(&case.usage.json()).unwrap();
            assert_eq!(usage["prompt_tokens"], case.usage.prompt);
            let cost = usage["cost"].as_f64().map(|cost| (cost * 1e6).round());
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let expected = case.usage.cost_micros.map(|cost| cost as f64);
            assert_eq!(cost, expected);
            assert!(case.usage.cached.unwrap_or(0) <= case.usage.prompt);
            assert!(case.usage.reasoning <= case.usage.completion);
        }
    }

    #[test]
    fn only_streams_are_aborted() {
        for case in (0..5000).map(Case::of) {
            if matches!(case.course, Scenario::Aborts | Scenario::LeavesWithin) {
                assert_eq!(case.form, Form::Stream);
            }
        }
    }
}
