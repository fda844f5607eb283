//! Counts the images in a response without keeping any of it.

use memchr::memchr2;

const NAME: &[u8; 4] = b"data";

/// Counts the objects in the array `data` of a JSON object while its bytes are
/// forwarded. Strings, which make up nearly all bytes, are only searched for
/// their ends. Uses a fixed number of bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct ImageCounter {
    depth: u32,
    /// The outermost value is an object.
    object: bool,
    text: StringState,
    /// The last name of the outermost object, up to the length of `data`.
    name: [u8; NAME.len()],
    name_len: usize,
    /// Where a name of the outermost object may begin.
    expects_name: bool,
    /// Within such a name.
    in_name: bool,
    data: ArrayState,
    count: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Within,
    /// The next byte is escaped.
    Escaped,
}

/// How much of the array was received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ArrayState {
    #[default]
    Nothing,
    Some,
    All,
}

impl ImageCounter {
    /// The number of images, once all were received.
    pub(super) fn images(&self) -> Option<u32> {
        (self.data == ArrayState::All).then_some(self.count)
    }

    /// Processes the next bytes of the response.
    pub(super) fn push(&mut self, part: &[u8]) {
        let mut rest = part;
        while let Some((first, after)) = rest.split_first() {
            rest = if self.text == StringState::Outside {
                self.between(*first);
                after
            } else {
                self.text(rest)
            };
        }
    }

    /// Skips the rest of a string, as far as received.
    fn text<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        if self.text == StringState::Escaped {
            self.text = StringState::Within;
            self.note(rest.get(..1).unwrap_or_default());
            return rest.get(1..).unwrap_or_default();
        }
        let end = memchr2(b'"', b'\\', rest);
        let (text, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.note(text);
        match rest.split_first() {
            Some((b'"', after)) => {
                self.text = StringState::Outside;
                self.in_name = false;
                after
            }
            Some((escape, after)) => {
                self.note(&[*escape]);
                self.text = StringState::Escaped;
                after
            }
            None => rest,
        }
    }

    /// Stores what may be the name.
    fn note(&mut self, text: &[u8]) {
        if !self.in_name {
            return;
        }
        let place = self.name.get_mut(self.name_len..).unwrap_or_default();
        for (kept, byte) in place.iter_mut().zip(text) {
            *kept = *byte;
        }
        self.name_len = self.name_len.saturating_add(text.len());
    }

    fn is_data(&self) -> bool {
        self.name_len == NAME.len() && self.name == *NAME
    }

    /// Processes a byte outside strings.
    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text = StringState::Within;
                if self.depth == 1 && self.expects_name {
                    self.in_name = true;
                    self.name_len = 0;
                }
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && self.data == ArrayState::Some {
                    self.data = ArrayState::All;
                }
            }
            b',' if self.depth == 1 => self.expects_name = self.object,
            b':' if self.depth == 1 => self.expects_name = false,
            _ => {}
        }
    }

    fn open(&mut self, bracket: u8) {
        match (self.depth, bracket) {
            (0, b'{') => {
                self.object = true;
                self.expects_name = true;
            }
            (1, b'[') if self.is_data() => {
                self.data = ArrayState::Some;
                self.count = 0;
            }
            (2, b'{') if self.data == ArrayState::Some => self.count = self.count.saturating_add(1),
            _ => {}
        }
        self.depth = self.depth.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::ImageCounter;

    fn count(response: &str, read: usize) -> Option<u32> {
        let mut counter = ImageCounter::default();
        response
            .as_bytes()
            .chunks(read)
            .for_each(|part| counter.push(part));
        counter.images()
    }

    #[test]
    fn only_the_objects_of_the_outermost_data_count() {
        for (response, images) in [
            (
                r#"{"created":1,"data":[{"b64_json":"AA"},{"url":"x"}]}"#,
                Some(2),
            ),
            (r#"{"data":[]}"#, Some(0)),
            (
                r#" { "x" : {"data":[{}]} , "data" : [ {"a":[{},{}]} ] }"#,
                Some(1),
            ),
            (r#"{"x":"data","y":[{},{}],"data":[{}]}"#, Some(1)),
            (r#"{"data":[null,{"a":"}]\"{"}]}"#, Some(1)),
            (r#"{"da\"ta":[{}],"datax":[{}]}"#, None),
            (r#"{"data":{"a":[{}]}}"#, None),
            (r#"{"data":[{"a":1},{"#, None),
            (r#"[{"data":[{}]}]"#, None),
            (r#"["a","data",[{}]]"#, None),
            ("", None),
        ] {
            for read in [1, 3, 100] {
                assert_eq!(count(response, read), images, "{response}");
            }
        }
    }

    proptest! {
        #[test]
        fn other_members_and_read_boundaries_do_not_matter(
            before in crate::tests::value(), after in crate::tests::value(),
            elements in proptest::collection::vec(crate::tests::value(), 0..5),
            pretty: bool, read in 1_usize..200,
        ) {
            let images = elements.iter().filter(|element| element.is_object()).count();
            let response: Value = json!({"a": before, "data": elements, "z": after});
            let text = crate::tests::written(&response, pretty);
            prop_assert_eq!(count(&text, read), Some(u32::try_from(images).unwrap()));
        }
    }
}
