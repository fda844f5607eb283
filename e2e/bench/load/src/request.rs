//! The requests: formatted as by the OpenAI SDKs, with some escapes in the
//! text, because text without escapes is faster to scan than real prompts.

/// Number of grants of a principal, each on one model.
const GRANTS: u32 = 10;

/// Keys, principals and models of the requests. Key `k` belongs to principal `k
/// % principals`; principal `p` may use the models `(p * 10 + i) % models` for
/// `i` below 10.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Population {
    /// Keys in use: `sk-bench-00000000` and so on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,
    /// Number of principals that own the keys
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub principals: u32,
    /// Models: `<model>-0000` and so on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub models: u32,
    /// Send `metadata` with three members
    #[arg(long)]
    pub metadata: bool,
}

impl Population {
    /// A key, and a model that its principal may use.
    fn pick(&self) -> (u32, u32) {
        let key = fastrand::u32(0..self.keys);
        let principal = key % self.principals;
        let grant = fastrand::u32(0..GRANTS);
        (key, (principal * GRANTS + grant) % self.models)
    }
}

/// A request whose key and model number change.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    key_at: usize,
    model_at: usize,
    population: Population,
}

const KEY_DIGITS: usize = 8;
const MODEL_DIGITS: usize = 4;
const METADATA: &str =
    "\"metadata\":{\"team\":\"search\",\"feature\":\"rerank-v2\",\"experiment\":\"17\"},";
const SENTENCE: &str = "The quick brown fox says \\\"hi\\\" ";

impl Request {
    /// A chat request with a body of `body_bytes` bytes (or the required
    /// minimum).
    pub(crate) fn new(
        host: &str,
        model: &str,
        stream: bool,
        body_bytes: usize,
        population: Population,
    ) -> Self {
        let front = "{\"messages\":[{\"role\":\"user\",\"content\":\"";
        let streamed = if stream { "\"stream\":true," } else { "" };
        let metadata = if population.metadata { METADATA } else { "" };
        let back = format!(
            "\"}}],\"max_tokens\":64,\"temperature\":0.7,{streamed}{metadata}\"model\":\"{model}-0000\"}}"
        );
        let room = body_bytes.saturating_sub(front.len() + back.len());
        let mut text = SENTENCE.repeat(room / SENTENCE.len());
        text.push_str(&"x".repeat(room - text.len()));
        let body = format!("{front}{text}{back}");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n\
             Accept: application/json\r\nAccept-Encoding: identity\r\n\
             Content-Type: application/json\r\nUser-Agent: OpenAI/Python 3.57.0\r\n\
             X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 3.57.0\r\n\
             X-Stainless-OS: Linux\r\nX-Stainless-Runtime: CPython\r\n\
             Authorization: Bearer sk-bench-00000000\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let key_at = head
            .find("sk-bench-")
            .map_or(0, |at| at + "sk-bench-".len());
        let model_at = head.len() + body.len() - MODEL_DIGITS - "\"}".len();
        Self {
            bytes: (head + &body).into_bytes(),
            key_at,
            model_at,
            population,
        }
    }

    /// The bytes of the next request.
    pub(crate) fn next(&mut self) -> &[u8] {
        let (key, model) = self.population.pick();
        write_digits(&mut self.bytes[self.key_at..self.key_at + KEY_DIGITS], key);
        let model_at = self.model_at..self.model_at + MODEL_DIGITS;
        write_digits(&mut self.bytes[model_at], model);
        &self.bytes
    }
}

fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::{Population, Request};
    use crate::message::{Body, request_head};

    const ONE: Population = Population {
        keys: 1,
        principals: 1,
        models: 1,
        metadata: true,
    };

    fn body(request: &mut Request) -> (String, Vec<u8>) {
        let bytes = request.next().to_vec();
        let head = request_head(&bytes).unwrap().unwrap();
        let (head, body) = bytes.split_at(head.bytes);
        (String::from_utf8(head.to_vec()).unwrap(), body.to_vec())
    }

    #[test]
    fn a_body_is_json_of_its_size_and_ends_with_its_model() {
        for size in [1024, 65_536] {
            let mut request = Request::new("127.0.0.1:1", "bench-json", true, size, ONE);
            let (_, body) = body(&mut request);
            assert_eq!(body.len(), size);
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(json["model"], "bench-json-0000");
            assert_eq!(json["stream"], true);
            assert_eq!(json["metadata"]["team"], "search");
            assert!(body.ends_with(b"\"model\":\"bench-json-0000\"}"));
            let escapes = memchr::memchr_iter(b'\\', &body).count();
            assert!((size / 40..size / 10).contains(&escapes), "{escapes}");
        }
    }

    #[test]
    fn the_content_length_is_correct() {
        let mut request = Request::new("127.0.0.1:1", "bench-json", false, 1024, ONE);
        let bytes = request.next();
        let head = request_head(bytes).unwrap().unwrap();
        assert_eq!(head.body, Body::Length(1024));
        assert_eq!(bytes.len(), head.bytes + 1024);
    }

    #[test]
    fn every_key_requests_only_granted_models() {
        let population = Population {
            keys: 50,
            principals: 5,
            metadata: false,
            models: 30,
        };
        let mut request = Request::new("127.0.0.1:1", "bench-json", false, 1024, population);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let (head, body) = body(&mut request);
            let key = head.split("sk-bench-").nth(1).unwrap();
            let key: u32 = key[..8].parse().unwrap();
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let model = json["model"].as_str().unwrap();
            let model: u32 = model.rsplit('-').next().unwrap().parse().unwrap();
            let granted = (0..10).map(|i| (key % 5 * 10 + i) % 30);
            assert!(granted.into_iter().any(|one| one == model), "{key} {model}");
            seen.insert(key);
        }
        assert_eq!(seen.len(), 50);
    }
}
