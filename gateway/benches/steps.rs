//! Times the steps of a request that are private to the gateway's crate, and
//! prints a line of JSON for each. `python3 -m e2e.bench micro` runs it.

use std::error::Error;
use std::hint::black_box;

use fastllm_contract::UsageBatch;
use fastllm_gateway::bench::{Input, Steps};
use fastllm_steps::{Size, Stopwatch, answer, chat, key, model, request_head, tables};

const WATCH: Stopwatch = Stopwatch {
    rounds: 9,
    round_ns: 40_000_000,
};

fn main() -> Result<(), Box<dyn Error>> {
    for (step, bytes) in [("prompt-1k", 1 << 10), ("prompt-64k", 64 << 10)] {
        let body = chat(bytes);
        WATCH.time(step, || Steps::hash_prompt(black_box(&body)))?;
    }
    let tables = tables(Size {
        keys: 1_000,
        models: 10,
    })?;
    let (key, response) = (key(0), answer(250));
    let mut steps = Steps::new(Input {
        tables: &tables,
        head: request_head(&key).into_bytes(),
        key: key.as_bytes(),
        response: &response,
    })?;
    WATCH.time("metrics", || steps.count_request())?;
    let count = u32::try_from(UsageBatch::MAX_EVENTS)?;
    WATCH.each("usage-event", count, || steps.queue_events(count))?;
    WATCH.time("account", || steps.log_request())?;
    let name = model(0);
    let log = Steps::access_log()?;
    WATCH.time("access-line", || log.write(&name))?;
    Ok(())
}
