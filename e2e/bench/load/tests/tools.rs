//! Tests the tools against each other: load generator, relay and upstream.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::time::Duration;

use fastllm_bench::load::{Load, LoadPlan};
use fastllm_bench::upstream::Upstream;
use fastllm_bench::{
    BURST_FRAMES, CLOSING_EVENTS, Error, JSON_BYTES, PACED_FRAMES, Population, relay,
};

fn upstream() -> SocketAddr {
    let upstream = Upstream::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = upstream.address().unwrap();
    std::thread::spawn(|| upstream.run());
    address
}

fn relayed(target: SocketAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            relay::run(listener, target, None).await
        })
    });
    address
}

fn plan(target: SocketAddr, model: &str, body_bytes: usize) -> LoadPlan {
    LoadPlan {
        target,
        connections: 8,
        body_bytes,
        model: model.to_owned(),
        stream: model != "bench-json",
        stagger_ms: 5,
        population: Population {
            keys: 1,
            principals: 1,
            metadata: false,
            models: 1,
        },
    }
}

#[test]
fn every_request_completes_and_every_event_is_counted() {
    let direct = upstream();
    for target in [direct, relayed(direct)] {
        for (model, body_bytes, events) in [
            ("bench-json", 1024, 0),
            ("bench-json", 65_536, 0),
            ("bench-burst", 1024, BURST_FRAMES + CLOSING_EVENTS),
            ("bench-clump", 1024, BURST_FRAMES + CLOSING_EVENTS),
            ("bench-paced", 1024, PACED_FRAMES + CLOSING_EVENTS),
        ] {
            let mut load = Load::connect(&plan(target, model, body_bytes)).unwrap();
            for _ in 0..2 {
                let outcome = load.window(Duration::from_millis(20)).unwrap();
                assert!(outcome.requests >= 8, "{model}: {outcome:?}");
                assert_eq!(outcome.events, outcome.requests * events as u64, "{model}");
                if events == 0 {
                    assert_eq!(outcome.content_bytes, outcome.requests * JSON_BYTES as u64);
                }
                assert!(outcome.first_byte_us.p50 <= outcome.latency_us.p50);
                assert!(outcome.latency_us.p50 <= outcome.latency_us.p99);
            }
        }
    }
}

#[test]
fn a_paced_stream_is_paced() {
    let mut load = Load::connect(&plan(upstream(), "bench-paced", 1024)).unwrap();
    let outcome = load.window(Duration::from_millis(1)).unwrap();
    let pauses = u32::try_from(PACED_FRAMES - 1).unwrap();
    let least = fastllm_bench::upstream::FRAME_INTERVAL * pauses;
    assert!(outcome.latency_us.p50 >= least.as_secs_f64() * 1e6 * 0.99);
}

#[test]
fn held_streams_stay_open() {
    let mut load = Load::connect(&plan(upstream(), "bench-hold", 1024)).unwrap();
    load.hold(Duration::from_secs(10)).unwrap();
    assert_eq!(load.lost(), 0);
}

#[test]
fn an_error_response_ends_the_run() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::Write;
        let connections: Vec<_> = listener.incoming().take(8).map(Result::unwrap).collect();
        for mut connection in &connections {
            let refusal = b"HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\nno";
            connection.write_all(refusal).unwrap();
        }
        connections
    });
    // All requests are sent before the first response is read, so that none is
    // unsolicited.
    let together = LoadPlan {
        stagger_ms: 0,
        ..plan(target, "bench-json", 1024)
    };
    let mut load = Load::connect(&together).unwrap();
    let error = load.window(Duration::from_millis(20)).unwrap_err();
    assert!(
        matches!(error, Error::Status { status: 401, .. }),
        "{error}"
    );
}
