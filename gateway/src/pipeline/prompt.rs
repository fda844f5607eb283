//! Hashes of the prefixes of a prompt: they identify what engines may have
//! cached, and the conversation of a request.

use std::hash::{BuildHasher, Hasher};

use fastllm_engine::Boundary;
use fastllm_wire::json::{Array, Member, Object};
use foldhash::quality::FixedState;

/// The number of prompt bytes that are hashed. A longer conversation is still
/// identified by its beginning.
const HASHED: usize = 64 << 10;

/// The maximum number of hashed messages.
const BOUNDARIES: usize = 64;

/// The prefix hashes of one prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    boundaries: Vec<Boundary>,
    beginning: u64,
}

impl Prompt {
    /// Reads a request body: the tools first, as engines do, then the messages
    /// in order (or `input` or `prompt`). The order of members and the sampling
    /// parameters do not affect the hashes.
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut reader = Reader {
            state: 0,
            left: HASHED,
            prompt: Self::default(),
            begun: false,
        };
        let mut said = None;
        for member in Object::open(body).into_iter().flatten().flatten() {
            match &*member.name {
                b"messages" | b"input" | b"prompt" => said = said.or(Some(member.value)),
                b"tools" | b"functions" | b"system" | b"instructions" => {
                    let hash = reader.member(&member);
                    reader.state = reader.state.wrapping_add(hash);
                }
                _ => {}
            }
        }
        match said.map(|value| (value, Array::open(value))) {
            Some((_, Some(messages))) => reader.messages(messages),
            Some((value, None)) => reader.message(value),
            None => {}
        }
        reader.prompt
    }

    /// The hash that all turns of a conversation share: up to the first message
    /// that is not a system message.
    pub(crate) fn beginning(&self) -> u64 {
        self.beginning
    }

    /// The hashes at the ends of the messages.
    pub(crate) fn into_boundaries(self) -> Vec<Boundary> {
        self.boundaries
    }
}

/// The state of hashing a prompt.
struct Reader {
    /// The hash of everything so far.
    state: u64,
    /// The number of bytes that may still be hashed.
    left: usize,
    prompt: Prompt,
    /// A message that is not from the system was hashed.
    begun: bool,
}

impl Reader {
    fn messages(&mut self, messages: Array<'_>) {
        for message in messages.take(BOUNDARIES) {
            if self.left == 0 {
                return;
            }
            self.message(message);
        }
    }

    fn message(&mut self, message: &[u8]) {
        let mut systems = false;
        let mut content = 0_u64;
        match Object::open(message) {
            // A sum, since the order of members is irrelevant.
            Ok(members) => {
                for member in members.flatten() {
                    systems |= &*member.name == b"role"
                        && matches!(member.value, br#""system""# | br#""developer""#);
                    content = content.wrapping_add(self.member(&member));
                }
            }
            Err(_) => content = self.bytes(message),
        }
        let mut hasher = FixedState::default().build_hasher();
        hasher.write_u64(self.state);
        hasher.write_u64(content);
        self.state = hasher.finish();
        let so_far = HASHED - self.left;
        self.prompt.boundaries.push(Boundary {
            hash: self.state,
            bytes: u32::try_from(so_far).unwrap_or(u32::MAX),
        });
        if !self.begun {
            self.prompt.beginning = self.state;
            self.begun = !systems;
        }
    }

    fn member(&mut self, member: &Member<'_>) -> u64 {
        let mut hasher = FixedState::default().build_hasher();
        hasher.write(&member.name);
        hasher.write_u64(self.bytes(member.value));
        hasher.finish()
    }

    /// Hashes as many of these bytes as the limit allows.
    fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let taken = bytes.get(..self.left).unwrap_or(bytes);
        self.left -= taken.len();
        let mut hasher = FixedState::default().build_hasher();
        hasher.write(taken);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{BOUNDARIES, HASHED, Prompt};

    fn hashes(body: &str) -> Vec<u64> {
        let boundaries = Prompt::read(body.as_bytes()).into_boundaries();
        boundaries.iter().map(|boundary| boundary.hash).collect()
    }

    fn beginning(body: &str) -> u64 {
        Prompt::read(body.as_bytes()).beginning()
    }

    const SYSTEM: &str = r#"{"role":"system","content":"be brief"}"#;
    const FIRST: &str = r#"{"role":"user","content":"hi"}"#;
    const ANSWER: &str = r#"{"role":"assistant","content":"hello"}"#;
    const SECOND: &str = r#"{"role":"user","content":"how are you?"}"#;

    fn chat(messages: &[&str]) -> String {
        format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
    }

    #[test]
    fn each_turn_has_the_previous_turns_as_prefix() {
        let first = hashes(&chat(&[SYSTEM, FIRST]));
        let second = hashes(&chat(&[SYSTEM, FIRST, ANSWER, SECOND]));
        assert_eq!((first.len(), second.len()), (2, 4));
        assert_eq!(second[..2], first);
        let other = hashes(&chat(&[SYSTEM, SECOND]));
        assert_eq!(other[0], first[0]);
        assert_ne!(other[1], first[1]);
        let swapped = hashes(&chat(&[FIRST, SYSTEM]));
        assert!(!swapped.contains(&first[1]));
    }

    #[test]
    fn a_conversation_is_identified_by_its_first_message() {
        let first = beginning(&chat(&[SYSTEM, FIRST]));
        assert_eq!(beginning(&chat(&[SYSTEM, FIRST, ANSWER, SECOND])), first);
        assert_ne!(beginning(&chat(&[SYSTEM, SECOND])), first);
        assert_ne!(beginning(&chat(&[SYSTEM])), 0);
    }

    #[test]
    fn only_what_engines_see_affects_the_hashes() {
        let usual = hashes(&chat(&[SYSTEM, FIRST]));
        let same = [
            format!(r#"{{"temperature":1,"messages":[ {SYSTEM} , {FIRST} ],"stream":true}}"#),
            chat(&[r#"{"content":"be brief", "role":"system"}"#, FIRST]),
        ];
        for body in same {
            assert_eq!(hashes(&body), usual, "{body}");
        }
        let tools =
            |rest: &str| format!(r#"{{"tools":[{{"type":"x"}}],"messages":[{FIRST}]{rest}}}"#);
        assert_ne!(hashes(&tools("")), hashes(&chat(&[FIRST])));
        let behind = format!(r#"{{"messages":[{FIRST}],"tools":[{{"type":"x"}}]}}"#);
        assert_eq!(hashes(&tools("")), hashes(&behind));
    }

    #[test]
    fn other_request_formats_have_a_prefix() {
        assert_eq!(hashes(r#"{"prompt":"once upon"}"#).len(), 1);
        assert_eq!(hashes(r#"{"input":["a","b"]}"#).len(), 2);
        for body in ["", "[]", "{}", r#"{"messages":[]}"#, r#"{"messages":"#] {
            assert_eq!(hashes(body), [0; 0], "{body}");
        }
    }

    #[test]
    fn the_hashed_length_is_bounded() {
        let many = vec![FIRST; BOUNDARIES * 2];
        assert_eq!(hashes(&chat(&many)).len(), BOUNDARIES);

        let long = "x".repeat(HASHED);
        let long = format!(r#"{{"role":"user","content":"{long}"}}"#);
        let boundaries = Prompt::read(chat(&[&long, FIRST]).as_bytes()).into_boundaries();
        assert_eq!(boundaries.len(), 1);
        assert_eq!(boundaries[0].bytes as usize, HASHED);
    }
}
