//! What an upstream answered.

use std::hint::black_box;
use std::num::NonZeroUsize;

use anyhow::Context;
use fastllm_steps::{ANSWER_HEAD, Stopwatch, answer, event, stream_end};
use fastllm_wire::http1::{ChunkLine, Framing, HeadWriter, Limits, Persistence, ResponseHead};
use fastllm_wire::usage::BodyExcerpt;
use fastllm_wire::{StreamEnding, StreamInspector};

/// Events that come in one read.
const TOGETHER: u32 = 60;

pub(crate) fn run(watch: Stopwatch) -> anyhow::Result<()> {
    time_heads(watch)?;
    time_json(watch)?;
    time_stream(watch)
}

fn time_heads(watch: Stopwatch) -> anyhow::Result<()> {
    let mut parsed = ResponseHead::default();
    watch.time("read-answer-head", || {
        let read = parsed.parse(black_box(ANSWER_HEAD.as_bytes()), false, Limits::default());
        read.map(|len| (len, parsed.status()))
    })?;
    let mut out = Vec::with_capacity(1 << 10);
    watch.time("write-answer-head", || {
        out.clear();
        let mut head = HeadWriter::response(&mut out, black_box(200));
        for field in parsed.on(ANSWER_HEAD.as_bytes()).fields().end_to_end() {
            head.copy(field);
        }
        head.field(b"x-request-id", b"0123456789abcdef-1");
        head.end(Framing::Length(602), Persistence::Keep)
    })?;
    Ok(())
}

fn time_json(watch: Stopwatch) -> anyhow::Result<()> {
    let unknown = vec![b'x'; 602];
    for (step, body) in [
        ("tail-json-small", answer(250)),
        ("tail-json-22k", answer(22 << 10)),
        ("tail-json-none", unknown),
    ] {
        watch.time(step, || {
            let mut tail = BodyExcerpt::new();
            for read in black_box(&body).chunks(16 << 10) {
                tail.push(read);
            }
            tail.usage()
        })?;
    }
    Ok(())
}

fn time_stream(watch: Stopwatch) -> anyhow::Result<()> {
    let one = event();
    let mut tail = StreamInspector::new(true, StreamEnding::Choices(1));
    watch.time("frame-event", || tail.push(black_box(&one)).len())?;
    let many = one.repeat(TOGETHER as usize);
    watch.each("frame-event-of-60", TOGETHER, || {
        tail.push(black_box(&many)).len()
    })?;
    let (half, rest) = one.split_at(one.len() / 2);
    watch.time("frame-event-in-two-reads", || {
        tail.push(black_box(half)).len() + tail.push(black_box(rest)).len()
    })?;
    let end = stream_end();
    watch.time("tail-stream", || {
        let mut tail = StreamInspector::new(true, StreamEnding::Choices(1));
        tail.push(black_box(&end));
        tail.usage()
    })?;
    let len = NonZeroUsize::new(one.len()).context("an event is empty")?;
    watch.time("chunk-line", || ChunkLine::new(black_box(len)))?;
    Ok(())
}
