//! The bytes for the client and the data for accounting do not depend on read
//! boundaries.

#![no_main]

use fastllm_wire::{StreamEnding, StreamInspector};
use libfuzzer_sys::fuzz_target;

fn run<'a>(
    hide: bool,
    ending: StreamEnding,
    limit: usize,
    reads: impl Iterator<Item = &'a [u8]>,
) -> (Vec<u8>, StreamInspector) {
    let mut tail = StreamInspector::with_limit(hide, ending, limit);
    let mut out = Vec::new();
    for read in reads {
        let forward = tail.push(read);
        forward
            .slices(read)
            .for_each(|part| out.extend_from_slice(part));
        assert!(tail.carried() <= limit);
    }
    out.extend_from_slice(&tail.finish().carried);
    (out, tail)
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (read, hide, stream) = input;
    let read = usize::from(read).max(1);
    let (whole, one) = run(hide, StreamEnding::Choices(2), 1 << 20, std::iter::once(stream));
    let (parts, many) = run(hide, StreamEnding::Choices(2), 1 << 20, stream.chunks(read));
    assert_eq!(whole, parts);
    assert_eq!(one.usage(), many.usage());
    assert_eq!(one.first(), many.first());
    assert_eq!(one.is_complete(), many.is_complete());
    assert_eq!(
        (one.events(), one.data_bytes()),
        (many.events(), many.data_bytes())
    );
    let (shown, _) = run(false, StreamEnding::Body, 16, stream.chunks(read));
    assert_eq!(shown, stream);
});
