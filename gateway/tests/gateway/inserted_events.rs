//! The bytes that the gateway adds to a stream, heartbeats and its own error
//! event, as the parsers of common clients understand them.

use serde_json::json;

use crate::support::{
    Barrier, Options, Seen, SseClient, Step, TestGateway, Upstream, chat, events, raw,
};

const BODY: &str = "{\"model\":\"small\",\"stream\":true}";
const HEARTBEAT: &str = ": keep-alive\n";

fn event(number: u32) -> String {
    format!("id: {number}\ndata: {{\"choices\":[{{\"delta\":{{\"content\":\"{number}\"}}}}]}}\n\n")
}

fn seen(number: u32) -> Seen {
    Seen::Event(json!({"choices": [{"delta": {"content": number.to_string()}}]}))
}

fn aborted() -> Seen {
    Seen::Error("upstream_aborted".to_owned())
}

/// The clients that can read lines with this ending.
fn clients(end: &str) -> impl Iterator<Item = SseClient> {
    let is_lf = end.ends_with('\n');
    let can = move |client: &SseClient| is_lf || *client != SseClient::Go;
    SseClient::ALL.into_iter().filter(can)
}

#[tokio::test]
async fn the_error_event_of_an_aborted_stream_is_the_next_event_for_every_client() {
    let partial = [
        "",
        "data: {\"cho",
        "data: {}\n",
        "event: x\n",
        ": ping\n",
        ":",
    ];
    for end in ["\n", "\r\n", "\r"] {
        let stream = [event(1), event(2)].concat();
        for (closes, partial) in partial
            .iter()
            .flat_map(|part| [(true, part), (false, part)])
        {
            let stream = [&stream, *partial].concat().replace('\n', end);
            let last = if closes {
                vec![Step::Send(events(&[&stream], true))]
            } else {
                vec![Step::Send(events(&[&stream], false)), Step::Close]
            };
            let upstream = Upstream::start([last]).await;
            let gateway = TestGateway::start(&[&upstream]).await;
            let reply = gateway.chat(BODY).await;
            assert!(reply.complete);
            for client in clients(end) {
                assert_eq!(
                    client.sees(std::slice::from_ref(&reply.body)),
                    [seen(1), seen(2), aborted()],
                    "{client:?} {end:?} {partial:?} {closes}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_in_the_middle_of_a_line_end_is_continued() {
    let stream = event(1).replace('\n', "\r\n");
    let script = vec![
        Step::Send(events(&[stream.strip_suffix('\n').unwrap()], false)),
        Step::Close,
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    for client in SseClient::ALL {
        let seen_by = client.sees(std::slice::from_ref(&reply.body));
        assert_eq!(seen_by, [seen(1), aborted()], "{client:?}");
    }
}

#[tokio::test]
async fn a_heartbeat_is_nothing_to_any_client() {
    for (end, pause) in [
        ("\n", ""),
        ("\r\n", ""),
        ("\r", ""),
        ("\n", "data: {\"cho"),
        ("\n", ": c"),
    ] {
        let barrier = Barrier::new();
        let all = [event(1), event(2)].concat().replace('\n', end);
        let cut = event(1).replace('\n', end).len();
        let (before, after) = all.split_at(cut);
        let (sent, rest) = match pause {
            "" => (before.to_owned(), after.to_owned()),
            ": c" => (format!("{before}: c"), format!("omment\n{after}")),
            _ => {
                let at = cut + after.find("data").unwrap() + "data: {\"cho".len();
                (all[..at].to_owned(), all[at..].to_owned())
            }
        };
        let done = "data: [DONE]\n\n".replace('\n', end);
        let rest = format!("{rest}{done}");
        let script = vec![
            Step::Send(events(&[&sent], false)),
            Step::Wait(barrier.clone()),
            Step::Send(format!("{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len()).into_bytes()),
        ];
        let upstream = Upstream::start([script]).await;
        let flags = Options::flags(&["--sse-heartbeat=1"]);
        let gateway = TestGateway::start_with(&[&upstream], flags).await;
        let mut client = gateway.client().await;
        client.write(&chat(BODY)).await;
        client.head().await;
        let mut reads = vec![client.chunk().await.unwrap()];
        assert_eq!(reads[0], before.as_bytes());
        let heartbeat = client.chunk().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&heartbeat), HEARTBEAT);
        reads.push(heartbeat);
        barrier.cancel();
        while let Some(read) = client.chunk().await.filter(|read| !read.is_empty()) {
            reads.push(read);
        }
        for client in clients(end) {
            let seen_by = client.sees(&reads);
            assert_eq!(seen_by, [seen(1), seen(2)], "{client:?} {end:?} {pause:?}");
        }
    }
}

#[tokio::test]
async fn no_heartbeat_comes_between_the_halves_of_a_line_end() {
    let one = event(1).replace('\n', "\r\n");
    let sent = one.strip_suffix('\n').unwrap();
    let script = vec![Step::Send(events(&[sent], false)), Step::UntilDisconnect];
    let upstream = Upstream::start([script]).await;
    // A heartbeat would be due before the upstream has stalled.
    let flags = ["--sse-heartbeat=1", "--stream-idle-timeout=2"];
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&flags)).await;
    let reply = gateway.chat(BODY).await.text();
    let added = reply.strip_prefix(sent).unwrap();
    assert!(added.starts_with("\ndata: {\"error\":"), "{added:?}");
}

#[tokio::test]
async fn an_upstreams_comments_are_forwarded_at_once() {
    let barrier = Barrier::new();
    let script = vec![
        Step::Send(events(&[&event(1), ": ping\n", ": ping\r\n: pi"], false)),
        Step::Wait(barrier.clone()),
        Step::Send(b"3\r\nng\n\r\n".to_vec()),
        Step::UntilDisconnect,
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    client.head().await;
    client
        .until(&[&event(1), ": ping\n: ping\r\n"].concat())
        .await;
    barrier.cancel();
    client.until(": ping\n").await;
}

#[tokio::test]
async fn within_an_event_that_is_too_long_the_connection_is_aborted_instead() {
    let overlong = format!("data: {{\"x\":\"{}", "y".repeat(1_100_000));
    for complete in [true, false] {
        let mut script = raw(events(&[&event(1), &overlong], complete));
        script.push(Step::Close);
        let upstream = Upstream::start([script]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let reply = gateway.chat(BODY).await;
        assert!(!reply.complete);
        assert_eq!(reply.text(), [event(1), overlong.clone()].concat());
    }
}
