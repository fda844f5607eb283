use super::images::ImageCounter;
use super::{BodyExcerpt, Measure, Quantities, Usage, UsageReport};
use crate::estimate::estimated_tokens;
use crate::stored::stored_id;

/// Approximate size of the JSON around the text of a response, in bytes.
const FRAME: u64 = 256;

/// Collects the accounting data of a response in one piece while it is
/// forwarded: its beginning and end, and its number of images if requested.
#[derive(Debug, Clone)]
pub struct BodyInspector {
    ends: BodyExcerpt,
    measure: Measure,
    /// Set if images are counted.
    images: Option<Box<ImageCounter>>,
}

impl BodyInspector {
    /// Without any bytes.
    pub fn new(measure: Measure) -> Self {
        Self {
            ends: BodyExcerpt::new(),
            measure,
            images: (measure == Measure::Images).then(Box::default),
        }
    }

    /// Processes the next bytes of the response.
    pub fn push(&mut self, part: &[u8]) {
        self.ends.push(part);
        if let Some(images) = &mut self.images {
            images.push(part);
        }
    }

    /// Number of bytes pushed.
    pub fn total(&self) -> u64 {
        self.ends.total()
    }

    /// Estimated number of tokens of the response so far, if it does not report
    /// them: one per 3.5 bytes. Half of a JSON body, at most 256 bytes, counts
    /// as syntax around the text. The bytes between the kept ends are left out
    /// if they border on a base64 file.
    pub fn estimated_tokens(&self) -> u64 {
        let text = self.ends.text_bytes();
        let frame = if self.is_json() {
            FRAME.min(text / 2)
        } else {
            0
        };
        estimated_tokens(text - frame)
    }

    fn is_json(&self) -> bool {
        self.ends.head().trim_ascii_start().starts_with(b"{")
    }

    /// Whether a body that begins like a JSON object or array does not end like
    /// one, so that a part of it is missing.
    pub fn is_truncated_json(&self) -> bool {
        let end = match self.ends.head().trim_ascii_start().first() {
            Some(b'{') => b'}',
            Some(b'[') => b']',
            _ => return false,
        };
        self.ends.last_byte() != Some(end)
    }

    /// The ID of a JSON response, if it is among the first 1 KiB.
    pub fn id(&self) -> Option<String> {
        self.is_json().then(|| stored_id(self.ends.head()))?
    }

    /// The tokens that a complete response reports, if they are plausible.
    pub fn usage(&mut self) -> Option<Usage> {
        self.ends.usage()
    }

    /// Whether a complete response reports counts that are implausible.
    pub fn has_implausible_usage(&mut self) -> bool {
        self.ends.report() == UsageReport::Implausible
    }

    /// The quantities besides tokens of a complete response. The audio of a
    /// response that is JSON instead is not counted.
    pub fn quantities(&mut self) -> Quantities {
        let mut quantities = Quantities::default();
        match self.measure {
            Measure::Tokens => {}
            Measure::Images => {
                let images = self.images.as_deref();
                quantities.images = images.and_then(ImageCounter::images);
            }
            Measure::AudioInput => quantities.audio_ms = self.ends.audio_ms(),
            Measure::AudioOutput => {
                quantities.audio_bytes = (!self.is_json()).then_some(self.total());
            }
        }
        quantities
    }
}

#[cfg(test)]
mod tests {
    use super::BodyInspector;
    use crate::usage::{Measure, Quantities};

    fn read(measure: Measure, response: &[u8]) -> BodyInspector {
        let mut inspector = BodyInspector::new(measure);
        response.chunks(1000).for_each(|part| inspector.push(part));
        inspector
    }

    fn estimated(response: &str) -> u64 {
        read(Measure::Tokens, response.as_bytes()).estimated_tokens()
    }

    #[test]
    fn tokens_are_estimated_by_bytes_outside_the_frame() {
        assert_eq!(["", "a", "{", "{\"a\":1}"].map(estimated), [0, 0, 0, 1]);
        // Plain text has no frame.
        assert_eq!(estimated(&"a word ".repeat(100)), 200);
        let json = |bytes: usize| format!("{{\"text\":\"{}\"}}", " ".repeat(bytes - 11));
        assert_eq!(estimated(&json(140)), 70 * 2 / 7);
        assert_eq!(estimated(&json(256 + 35)), 146 * 2 / 7);
        assert_eq!(estimated(&json(512)), 256 * 2 / 7);
        assert_eq!(estimated(&json(256 + 35_000)), 10_000);
    }

    #[test]
    fn a_file_in_a_response_is_not_text() {
        let response = |text: &str, file: &str| {
            format!(
                "{{\"choices\":[{{\"message\":{{\"content\":\"{text}\",\"images\":[\
                 {{\"url\":\"data:image/png;base64,{file}\"}}]}}}}]}}"
            )
        };
        let file = "iVBORw0K+/".repeat(100_000);
        // Whether the text before it leaves the beginning of the file visible,
        // or only its end.
        for text in ["a sea".to_owned(), "waves at sea, ".repeat(1000)] {
            let found = estimated(&response(&text, &file));
            assert!(found <= (9 << 10) * 2 / 7, "{found}");
        }
        let words = "waves at sea, ".repeat(1000);
        let plain = estimated(&response(&words, ""));
        assert!(plain.abs_diff(14_000 * 2 / 7) < 100, "{plain}");
        // In any script, and however it is escaped.
        for text in ["波の音".repeat(3000), "\\u6ce2".repeat(3000)] {
            let found = estimated(&response(&text, ""));
            assert!(found > text.len() as u64 * 2 / 7 - 100, "{found}");
        }
    }

    #[test]
    fn a_json_body_ends_as_it_begins() {
        let padded = |end: &str| format!("{{\"a\":\"{}\"{end}", "b".repeat(30_000));
        for whole in ["{}", " {\"a\":1}\n", "[{}]", "", "text [", &padded("}\r\n")] {
            let inspector = read(Measure::Tokens, whole.as_bytes());
            assert!(!inspector.is_truncated_json(), "{whole:.20}");
        }
        for cut in ["{", "{\"a\":1", "[{}", "[{},", " [\n", &padded("")] {
            let inspector = read(Measure::Tokens, cut.as_bytes());
            assert!(inspector.is_truncated_json(), "{cut:.20}");
        }
    }

    #[test]
    fn each_response_reports_its_measured_quantity() {
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
        for (response, ms) in [(&verbose, 2500), (&billed, 4000)] {
            let quantities = read(Measure::AudioInput, response.as_bytes()).quantities();
            assert_eq!(
                quantities,
                Quantities {
                    audio_ms: Some(ms),
                    ..none
                }
            );
        }

        let quantities = read(Measure::AudioOutput, &vec![7; 30_000]).quantities();
        assert_eq!(
            quantities,
            Quantities {
                audio_bytes: Some(30_000),
                ..none
            }
        );
        assert_eq!(
            read(Measure::AudioOutput, b" {\"audio\":\"AA==\"}").quantities(),
            none
        );
    }
}
