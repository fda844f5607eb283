use super::images::ImageCounter;
use super::{HeadTail, Measure, Quantities, Usage};

/// What is remembered of an answer in one piece that is forwarded without being
/// kept: its ends, and how many images it holds where that is asked.
#[derive(Debug, Clone)]
pub struct WholeTail {
    ends: HeadTail,
    measure: Measure,
    /// Where that is asked.
    images: Option<Box<ImageCounter>>,
}

impl WholeTail {
    /// Nothing has come yet.
    pub fn new(measure: Measure) -> Self {
        Self {
            ends: HeadTail::new(),
            measure,
            images: (measure == Measure::Images).then(Box::default),
        }
    }

    /// Takes the next bytes of the answer.
    pub fn push(&mut self, part: &[u8]) {
        self.ends.push(part);
        if let Some(images) = &mut self.images {
            images.push(part);
        }
    }

    /// How many bytes were pushed.
    pub fn total(&self) -> u64 {
        self.ends.total()
    }

    /// The tokens that a complete answer reports.
    pub fn usage(&mut self) -> Option<Usage> {
        self.ends.usage()
    }

    /// What a complete answer tells beside them. The sound of one that is none,
    /// but JSON, is not counted.
    pub fn quantities(&mut self) -> Quantities {
        let mut told = Quantities::default();
        match self.measure {
            Measure::Tokens => {}
            Measure::Images => {
                let images = self.images.as_deref();
                told.images = images.and_then(ImageCounter::images);
            }
            Measure::Heard => told.audio_ms = self.ends.audio_ms(),
            Measure::Spoken => {
                let is_json = self.ends.head().trim_ascii_start().starts_with(b"{");
                told.audio_bytes = (!is_json).then_some(self.total());
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::WholeTail;
    use crate::usage::{Measure, Quantities};

    fn read(measure: Measure, answer: &[u8]) -> WholeTail {
        let mut tail = WholeTail::new(measure);
        answer.chunks(1000).for_each(|part| tail.push(part));
        tail
    }

    #[test]
    fn each_answer_tells_what_is_asked_of_it() {
        let none = Quantities::default();
        let image = format!(
            r#"{{"data":[{{"b64_json":"{}"}},{{}}],"usage":{{"input_tokens":5,"output_tokens":6}}}}"#,
            "A".repeat(100_000)
        );
        let mut images = read(Measure::Images, image.as_bytes());
        assert_eq!(
            images.quantities(),
            Quantities {
                images: Some(2),
                ..none
            }
        );
        assert_eq!(images.usage().unwrap().completion_tokens, Some(6));
        assert_eq!(read(Measure::Tokens, image.as_bytes()).quantities(), none);

        let verbose = format!(r#"{{"duration":2.5,"text":"{}"}}"#, "a".repeat(20_000));
        let billed = format!(
            r#"{{"text":"{}","usage":{{"type":"duration","seconds":4}}}}"#,
            "a".repeat(20_000)
        );
        for (answer, ms) in [(&verbose, 2500), (&billed, 4000)] {
            let told = read(Measure::Heard, answer.as_bytes()).quantities();
            assert_eq!(
                told,
                Quantities {
                    audio_ms: Some(ms),
                    ..none
                }
            );
        }

        let told = read(Measure::Spoken, &vec![7; 30_000]).quantities();
        assert_eq!(
            told,
            Quantities {
                audio_bytes: Some(30_000),
                ..none
            }
        );
        assert_eq!(
            read(Measure::Spoken, b" {\"audio\":\"AA==\"}").quantities(),
            none
        );
    }
}
