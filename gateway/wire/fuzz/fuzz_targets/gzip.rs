//! The result for a compressed response does not depend on read boundaries, and
//! decoding is bounded by the number of its bytes.

#![no_main]

use fastllm_wire::gzip::{ALLOWANCE, RATIO};
use fastllm_wire::{Gunzip, Measure, StreamEnding};
use libfuzzer_sys::fuzz_target;

fn whole<'a>(reads: impl Iterator<Item = &'a [u8]>) -> Option<(u64, Option<fastllm_wire::Usage>)> {
    let mut gunzip = Gunzip::whole(Measure::Tokens);
    let mut came = 0;
    for read in reads {
        came += read.len() as u64;
        gunzip.push(read);
        let decoded = gunzip.piece().map_or(0, |tail| tail.total());
        assert!(decoded <= RATIO * came + ALLOWANCE);
    }
    gunzip.finish();
    let tail = gunzip.piece()?;
    Some((tail.total(), tail.usage()))
}

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let one = whole(std::iter::once(bytes));
    let many = whole(bytes.chunks(usize::from(cut).max(1)));
    // Bytes that are received later allow less: inspection may be abandoned
    // sooner.
    assert!(one == many || one.is_none() || many.is_none());
    let mut events = Gunzip::events(StreamEnding::Choices(1));
    bytes
        .chunks(usize::from(cut).max(1))
        .for_each(|read| events.push(read));
    events.finish();
});
