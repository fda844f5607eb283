//! What a client sent.

use std::hint::black_box;

use fastllm_steps::{Stopwatch, chat, key, request_head};
use fastllm_wire::http1::{Framing, HeadWriter, Limits, Persistence, Request, RequestHead};
use fastllm_wire::{RequestSchema, Splice, scan};

pub(crate) fn run(watch: Stopwatch) -> anyhow::Result<()> {
    let head = request_head(&key(0)).into_bytes();
    let mut parsed = RequestHead::default();
    watch.time("read-head", || {
        let read = parsed.parse(black_box(&head), Limits::default());
        read.map(|len| (len, parsed.framing()))
    })?;
    time_upstream_head(watch, parsed.on(&head))?;
    for (step, bytes) in [("members-1k", 1 << 10), ("members-64k", 64 << 10)] {
        let body = chat(bytes);
        watch.time(step, || scan(black_box(&body), RequestSchema::Chat))?;
    }
    let body = chat(1 << 10);
    let members = scan(&body, RequestSchema::Chat)?;
    watch.time("splice-model-1k", || {
        let splice = Splice::new(black_box(&members)).model("the-upstream-calls-it-so");
        splice.to_vec(&body)
    })?;
    Ok(())
}

/// As the gateway writes it: what the client may say, and the fields of its own.
fn time_upstream_head(watch: Stopwatch, request: Request<'_>) -> anyhow::Result<()> {
    const PASSED: [&str; 5] = [
        "accept",
        "user-agent",
        "traceparent",
        "tracestate",
        "openai-beta",
    ];
    let mut out = Vec::with_capacity(1 << 10);
    watch.time("write-upstream-head", || {
        out.clear();
        let mut head = HeadWriter::request(&mut out, b"POST", black_box(b"/v1/chat/completions"));
        head.field(b"host", b"127.0.0.1:9000");
        head.field(b"authorization", b"Bearer upstream-credential");
        for field in request.fields().iter() {
            if PASSED.iter().any(|name| field.is(name)) {
                head.copy(field);
            }
        }
        head.field(b"content-type", b"application/json");
        head.field(b"accept-encoding", b"identity");
        head.field(b"x-request-id", b"0123456789abcdef-1");
        head.end(Framing::Length(1 << 10), Persistence::Keep)
    })?;
    Ok(())
}
