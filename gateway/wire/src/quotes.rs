//! Finds the end of a JSON string, or of base64 in it, 64 bytes at a time.
//!
//! Prompts contain many escaped quotes, and a search that stops at each of them
//! is slower than examining every byte once.

use wide::u8x16;

/// Number of bytes that are examined together.
const BLOCK: usize = 64;

/// Number of bytes in a vector.
const PART: usize = 16;

/// Index of the closing quote of a string whose text begins at `start`.
pub(crate) fn string_end(text: &[u8], start: usize) -> Option<usize> {
    let (blocks, rest) = text.get(start..)?.as_chunks::<BLOCK>();
    let mut escaped_first = false;
    for (index, block) in blocks.iter().enumerate() {
        if let Some(at) = end_in(block, &mut escaped_first) {
            return Some(start + index * BLOCK + at);
        }
    }
    let mut last = [0; BLOCK];
    last.get_mut(..rest.len())?.copy_from_slice(rest);
    let at = end_in(&last, &mut escaped_first)?;
    Some(start + blocks.len() * BLOCK + at)
}

/// Index of the first byte at or after `start` that is not in the alphabet of
/// base64 (without padding).
pub(crate) fn base64_end(text: &[u8], start: usize) -> Option<usize> {
    let (blocks, rest) = text.get(start..)?.as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().enumerate() {
        let others = !base64_mask(block);
        if others != 0 {
            return Some(start + index * BLOCK + others.trailing_zeros() as usize);
        }
    }
    // The padding is not in the alphabet.
    let mut last = [0; BLOCK];
    last.get_mut(..rest.len())?.copy_from_slice(rest);
    let length = base64_mask(&last).trailing_ones() as usize;
    Some(start + blocks.len() * BLOCK + length)
}

/// Index of the first unescaped quote in the block. `escaped_first` is whether
/// the first byte of the block is escaped, and is updated for the next block.
fn end_in(block: &[u8; BLOCK], escaped_first: &mut bool) -> Option<usize> {
    let (quotes, backslashes) = masks(block);
    let after = backslashes << 1 | u64::from(*escaped_first);
    // If no two backslashes are adjacent, each escapes the next byte.
    let escaped = if backslashes & after == 0 {
        *escaped_first = backslashes >> (BLOCK - 1) == 1;
        after
    } else {
        escaped(backslashes, escaped_first)
    };
    let ends = quotes & !escaped;
    (ends != 0).then_some(ends.trailing_zeros() as usize)
}

/// The escaped bytes: every second one in a sequence of backslashes.
fn escaped(backslashes: u64, escaped_first: &mut bool) -> u64 {
    let mut escaped = 0;
    for index in 0..BLOCK {
        if std::mem::take(escaped_first) {
            escaped |= 1 << index;
        } else {
            *escaped_first = backslashes >> index & 1 == 1;
        }
    }
    escaped
}

/// The quotes and the backslashes of a block, one bit per byte.
fn masks(block: &[u8; BLOCK]) -> (u64, u64) {
    let (parts, _) = block.as_chunks::<PART>();
    let mut masks = (0, 0);
    for (index, part) in parts.iter().enumerate() {
        let bytes = u8x16::new(*part);
        let bits = |of| u64::from(bytes.simd_eq(u8x16::splat(of)).to_bitmask()) << (PART * index);
        masks.0 |= bits(b'"');
        masks.1 |= bits(b'\\');
    }
    masks
}

/// The bytes of a block that are in the alphabet of base64, one bit per byte.
fn base64_mask(block: &[u8; BLOCK]) -> u64 {
    let (parts, _) = block.as_chunks::<PART>();
    let mut mask = 0;
    for (index, part) in parts.iter().enumerate() {
        let bytes = u8x16::new(*part);
        // Subtraction wraps: what is below the range becomes larger than it.
        let within = |bytes: u8x16, first: u8, length: u8| {
            let offset = bytes - u8x16::splat(first);
            offset.min(u8x16::splat(length - 1)).simd_eq(offset)
        };
        // The two cases of a letter differ in this bit.
        let letters = within(bytes | u8x16::splat(0x20), b'a', 26);
        let digits_and_slash = within(bytes, b'/', 11);
        let plus = bytes.simd_eq(u8x16::splat(b'+'));
        let found = letters | digits_and_slash | plus;
        mask |= u64::from(found.to_bitmask()) << (PART * index);
    }
    mask
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BLOCK, base64_end, masks, string_end};

    /// Reference implementation of the end of a string.
    fn plainly(text: &[u8], start: usize) -> Option<usize> {
        let mut escaped = false;
        for (index, byte) in text.iter().enumerate().skip(start) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => return Some(index),
                _ => {}
            }
        }
        None
    }

    proptest! {
        #[test]
        fn the_end_matches_the_reference(
            text in proptest::collection::vec(prop_oneof![
                6 => Just(b'\\'), 1 => Just(b'"'), 30 => Just(b'x')
            ], 0..300),
            start in 0..310_usize,
        ) {
            let expected = if start <= text.len() { plainly(&text, start) } else { None };
            prop_assert_eq!(string_end(&text, start), expected);
        }

        #[test]
        fn vectors_and_bytes_give_the_same_result(
            block in proptest::collection::vec(prop_oneof![
                Just(b'\\'), Just(b'"'), any::<u8>()
            ], BLOCK),
        ) {
            let block: [u8; BLOCK] = block.try_into().unwrap();
            let bits = |of: u8| -> u64 {
                let bytes: &[u8; BLOCK] = &block;
                bytes.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(*byte == of))
            };
            prop_assert_eq!(masks(&block), (bits(b'"'), bits(b'\\')));
        }
    }

    #[test]
    fn the_alphabet_of_base64_is_exact() {
        for byte in 0..=u8::MAX {
            let is_base64 = byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
            for at in [0, 63, 64, 100] {
                let mut text = vec![b'A'; 130];
                text[at] = byte;
                let end = if is_base64 { 130 } else { at };
                assert_eq!(base64_end(&text, 0), Some(end), "{byte:#x} at {at}");
                assert_eq!(base64_end(&text, at), Some(end));
            }
        }
        assert_eq!(base64_end(b"QUJD==", 0), Some(4));
        assert_eq!(base64_end(b"", 0), Some(0));
        assert_eq!(base64_end(b"", 1), None);
    }

    #[test]
    fn backslashes_across_a_block_boundary_are_counted() {
        for before in 60..70 {
            for row in 0..5 {
                let mut text = vec![b'x'; before];
                text.extend(std::iter::repeat_n(b'\\', row));
                text.push(b'"');
                let end = row.is_multiple_of(2).then_some(before + row);
                assert_eq!(string_end(&text, 0), end, "{before}, {row}");
            }
        }
    }
}
