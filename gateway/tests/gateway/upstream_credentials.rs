//! Header fields of upstreams pass by an allow-list, and the credential that the
//! gateway sends never comes back to a client.

use std::io::Write;

use fastllm_contract::Secret;

use crate::cache::cached_content;
use crate::support::{
    Options, Reply, SnapshotContent, Step, TestGateway, Upstream, chat_over_http2, content, events,
    json_response, logged, next_data, raw,
};

const CREDENTIAL: &str = "sk-canary/upstream+credential";
const TENANT: &str = "canary-tenant-token";
const BODY: &str = "{\"model\":\"small\",\"messages\":[]}";

fn with_credentials(mut content: SnapshotContent) -> SnapshotContent {
    for backend in content
        .models
        .iter_mut()
        .flat_map(|model| &mut model.backends)
    {
        backend.api_key = Some(Secret::new(CREDENTIAL));
        let headers = &mut backend.request_options.headers;
        headers.insert(
            "x-tenant".to_owned(),
            Secret::new(format!("Token {TENANT}")),
        );
    }
    content
}

async fn start(upstream: &Upstream, flags: &[&str]) -> TestGateway {
    let content = with_credentials(content(&[upstream.api_base()]));
    let flags = [&["--max-retries=0"], flags].concat();
    TestGateway::serving(&content, Options::flags(&flags)).await
}

/// Whether nothing in a response is part of a credential.
fn is_clean(reply: &Reply) -> bool {
    let text = [reply.head.as_bytes(), &reply.body].concat();
    !String::from_utf8_lossy(&text).contains("canary")
}

/// The fields of an upstream that repeats what it got, and of its server.
const FIELDS: &str = "server: uvicorn\r\nset-cookie: a=b\r\n\
location: https://h/?key=sk-canary/upstream+credential\r\nx-goog-api-key: canary\r\n\
authorization: Bearer canary\r\nopenai-organization: canary\r\nx-ratelimit-limit-requests: 7\r\n\
strict-transport-security: max-age=1\r\naccess-control-allow-origin: *\r\nx-team: search\r\n\
openai-processing-ms: 12\r\ncontent-language: sk-canary%2Fupstream%2Bcredential\r\n\
content-disposition: attachment; filename=canary-tenant-token\r\n";

#[tokio::test]
async fn header_fields_pass_by_an_allow_list() {
    let response = raw(format!(
        "HTTP/1.1 200 canary\r\ncontent-type: application/json\r\n{FIELDS}\
         content-length: 2\r\n\r\n{{}}"
    ));
    let upstream = Upstream::start([response]).await;
    let gateway = start(&upstream, &[]).await;
    let reply = gateway.chat(BODY).await;
    let lines = reply.head.lines().skip(1).filter(|line| !line.is_empty());
    let mut names: Vec<_> = lines.map(|line| line.split(':').next().unwrap()).collect();
    names.sort_unstable();
    let expected = [
        "content-length",
        "content-type",
        "date",
        "openai-processing-ms",
        "x-request-id",
    ];
    assert_eq!(names, expected, "{}", reply.head);
    assert!(is_clean(&reply));

    chat_over_http2(&gateway, "https://page.example", BODY, async |response| {
        let mut names: Vec<_> = response.headers().keys().map(ToString::to_string).collect();
        names.sort_unstable();
        assert_eq!(names, expected[1..]);
    })
    .await;

    let flags = ["--forward-response-header=x-team,x-ratelimit-limit-requests"];
    let gateway = start(&upstream, &flags).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.header("x-team"), Some("search"));
    assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("7"));
    assert!(is_clean(&reply));
}

#[tokio::test]
async fn a_listed_field_with_a_credential_is_withheld() {
    let response = raw(format!(
        "HTTP/1.1 200 OK\r\nx-echo: Bearer {CREDENTIAL}\r\nx-echo: {TENANT}\r\nx-echo: fine\r\n\
         content-length: 2\r\n\r\n{{}}"
    ));
    let upstream = Upstream::start([response]).await;
    let gateway = start(&upstream, &["--forward-response-header=x-echo"]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.head.matches("x-echo").count(), 1);
    assert_eq!(reply.header("x-echo"), Some("fine"));
    assert!(is_clean(&reply));
}

#[tokio::test]
async fn a_cached_response_has_no_credential() {
    // A response with a cookie is not cached.
    let fields = FIELDS.replace("set-cookie", "x-cookie");
    let response = raw(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}content-length: 2\r\n\r\n{{}}"
    ));
    let upstream = Upstream::start([response]).await;
    let content = with_credentials(cached_content(&[upstream.api_base()]));
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for cached in ["miss", "hit"] {
        let reply = gateway.chat(BODY).await;
        assert_eq!(reply.header("x-fastllm-cache"), Some(cached));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("content-disposition"), None);
        assert!(is_clean(&reply), "{}", reply.head);
    }
}

/// Errors that repeat the credential, with the same length as what clients get.
fn errors() -> [(String, String); 4] {
    let error = |text: &str| format!("{{\"error\":{{\"message\":\"cannot use {text}, sorry\"}}}}");
    [
        CREDENTIAL,
        "sk-canary\\/upstream\\u002bcredential",
        "https:\\/\\/h\\/?k=sk-canary%2Fupstream%2Bcredential&t=canary-tenant-token",
        "sk-canary***************tial",
    ]
    .map(|text| {
        let mut hidden = text.to_owned();
        for secret in [
            CREDENTIAL,
            "sk-canary\\/upstream\\u002bcredential",
            "sk-canary%2Fupstream%2Bcredential",
            TENANT,
            "sk-canary***************tial",
        ] {
            hidden = hidden.replace(secret, &"*".repeat(secret.len()));
        }
        (error(text), error(&hidden))
    })
}

#[tokio::test]
async fn a_credential_in_an_error_is_masked() {
    for (error, expected) in errors() {
        let len = error.len();
        let head = "HTTP/1.1 422 X\r\ncontent-type: application/json\r\n";
        let (first, second) = error.split_at(len / 2);
        let whole = format!("{head}content-length: {len}\r\n\r\n{error}");
        let chunked = format!(
            "{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n\
             0\r\nx-trailer: {CREDENTIAL}\r\n\r\n",
            first.len(),
            second.len()
        );
        let until_close = format!("{head}\r\n{error}");
        let scripts = [
            raw(&whole),
            vec![Step::Trickle(whole.into_bytes())],
            raw(&chunked),
            vec![Step::Trickle(chunked.into_bytes())],
            vec![Step::Send(until_close.into_bytes()), Step::Close],
        ];
        let count = scripts.len();
        let upstream = Upstream::start(scripts).await;
        let gateway = start(&upstream, &[]).await;
        for _ in 0..count {
            let reply = gateway.chat(BODY).await;
            assert_eq!((reply.status, reply.complete), (422, true));
            assert_eq!(reply.text(), expected);
            if let Some(announced) = reply.header("content-length") {
                assert_eq!(announced, len.to_string());
            }
        }
        chat_over_http2(&gateway, "https://page.example", BODY, async |response| {
            let mut body = response.into_body();
            let mut got = Vec::new();
            while let Some(data) = next_data(&mut body).await {
                got.extend_from_slice(&data.unwrap());
            }
            assert!(!String::from_utf8(got).unwrap().contains("canary"));
        })
        .await;
    }
    assert!(!logged().contains(CREDENTIAL));
}

#[tokio::test]
async fn a_credential_in_an_error_event_is_masked() {
    let chunk = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    for (error, expected) in errors() {
        let error = format!("data: {error}\n\n");
        let expected = format!("data: {expected}\n\n");
        let (start_of_error, rest) = error.split_at(error.len() / 2);
        for before in ["", ": hello\n\n", chunk] {
            let parts = |parts: &[&str]| {
                let parts = parts.iter().filter(|part| !part.is_empty());
                events(&parts.collect::<Vec<_>>(), true)
            };
            let scripts = [
                vec![Step::Send(parts(&[before, &error]))],
                vec![Step::Send(parts(&[before, start_of_error, rest]))],
                vec![Step::Trickle(parts(&[before, &error]))],
            ];
            let count = scripts.len();
            let upstream = Upstream::start(scripts).await;
            let gateway = start(&upstream, &[]).await;
            for _ in 0..count {
                let body = "{\"model\":\"small\",\"stream\":true,\"messages\":[]}";
                let reply = gateway.chat(body).await;
                assert!(is_clean(&reply), "{}", reply.text());
                if before == chunk {
                    assert!(reply.text().starts_with(&format!("{before}{expected}")));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_redirect_becomes_an_error_of_the_gateway() {
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let response = raw(format!(
            "HTTP/1.1 {status} X\r\n{FIELDS}content-length: 0\r\n\r\n"
        ));
        let upstream = Upstream::start([response]).await;
        let gateway = start(&upstream, &[]).await;
        let reply = gateway.chat(BODY).await;
        let (replied, _, code, _) = reply.error();
        assert_eq!((replied, code.as_str()), (502, "upstream_misconfigured"));
        assert_eq!(reply.header("location"), None);
        assert!(is_clean(&reply), "{}", reply.head);
    }
}

#[tokio::test]
async fn a_compressed_error_is_replaced() {
    let error = &errors()[0].0;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gzip.write_all(error.as_bytes()).unwrap();
    let body = gzip.finish().unwrap();
    let mut response = format!(
        "HTTP/1.1 422 X\r\ncontent-type: text/html\r\ncontent-encoding: gzip\r\n\
         retry-after: 3\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend(&body);
    let upstream = Upstream::start([raw(response)]).await;
    let gateway = start(&upstream, &[]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.error().0, reply.complete), (422, true));
    assert_eq!(reply.error().2, "upstream_error_compressed");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("content-encoding"), None);
    assert_eq!(reply.header("retry-after"), Some("3"));
    assert!(is_clean(&reply));
}

#[tokio::test]
async fn a_response_and_an_error_without_a_credential_pass_unchanged() {
    let texts = [
        "{\"choices\":[],\"note\":\"sk-canary/upstream+credential\"}",
        "{\"error\":{\"message\":\"**bold** sk-other 100% \\\\u00e9 \\\"x\\\" ...\"}}",
    ];
    let [good, bad] = texts;
    let upstream =
        Upstream::start([json_response("200 OK", good), json_response("422 X", bad)]).await;
    let gateway = start(&upstream, &[]).await;
    // The body of a successful response is not searched.
    assert_eq!(gateway.chat(BODY).await.text(), good);
    assert_eq!(gateway.chat(BODY).await.text(), bad);
}
