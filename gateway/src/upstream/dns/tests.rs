use std::collections::HashMap;
use std::future::ready;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{
    Backend, BackendId, Concurrency, FORMAT, Failover, HealthCheck, Model, ModelName, Protocol,
    RequestOptions, Section, Snapshot,
};
use fastllm_engine::{Origin, Tuning};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::resolver::LookupIntervals;
use super::{DnsCache, Resolver, interleave_families};
use crate::runtime::Socket;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;
use crate::upstream::Connector;

const NEVER: Duration = Duration::from_hours(1);
const ONCE: LookupIntervals = LookupIntervals {
    every: NEVER,
    gap: NEVER,
};
const WHEN_ASKED: LookupIntervals = LookupIntervals {
    every: NEVER,
    gap: Duration::ZERO,
};
const ALWAYS: LookupIntervals = LookupIntervals {
    every: Duration::from_millis(1),
    gap: Duration::ZERO,
};

/// The addresses of the names, and the names that were looked up.
#[derive(Debug, Clone, Default)]
struct Book(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    leads: HashMap<String, Vec<IpAddr>>,
    requested: Vec<String>,
}

impl Book {
    fn write(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let addresses = addresses.collect();
        self.0.lock().leads.insert(name.to_owned(), addresses);
    }

    fn lose(&self, name: &str) {
        self.0.lock().leads.remove(name);
    }

    fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut pages = self.0.lock();
        pages.requested.push(name.to_owned());
        let found = pages.leads.get(name).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn lookups(&self, name: &str) -> usize {
        let requested = &self.0.lock().requested;
        requested
            .iter()
            .filter(|requested| *requested == name)
            .count()
    }
}

struct ResolverFixture {
    names: Arc<DnsCache>,
    current: Arc<CurrentSnapshot>,
    metrics: Arc<Metrics>,
    book: Book,
    _running: JoinSet<()>,
}

impl ResolverFixture {
    /// A resolver for the names of these addresses.
    fn start(names: Arc<DnsCache>, book: &Book, pace: LookupIntervals, api_bases: &[&str]) -> Self {
        let metrics = Arc::new(Metrics::new().unwrap());
        let current = Arc::new(CurrentSnapshot::new(
            Arc::clone(&metrics),
            Tuning::default(),
        ));
        let resolver = Resolver::new(
            Arc::clone(&names),
            Arc::clone(&current),
            Arc::clone(&metrics),
        );
        let pages = book.clone();
        let look_up = move |name: Arc<str>| ready(pages.look_up(&name));
        let mut running = JoinSet::new();
        running.spawn(async move {
            let stop = CancellationToken::new();
            resolver.at(pace).run_with(look_up, stop).await;
        });
        let rig = Self {
            names,
            current,
            metrics,
            book: book.clone(),
            _running: running,
        };
        rig.serve(api_bases);
        rig
    }

    fn at(pace: LookupIntervals, book: &Book) -> Self {
        Self::start(Arc::default(), book, pace, &["http://a.test:8000/v1"])
    }

    fn serve(&self, api_bases: &[&str]) {
        self.current.publish(Arc::new(snapshot(api_bases))).unwrap();
    }

    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = Arc::from(name);
        let addresses = self.names.addresses(&name);
        tokio::time::timeout(Duration::from_secs(15), addresses)
            .await
            .expect("an end of the lookup")
    }

    fn failures(&self) -> bool {
        let text = String::from_utf8(self.metrics.render(None)).unwrap();
        !text.contains("\nfastllm_dns_failures_total 0\n")
    }
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let met = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), met)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn snapshot(api_bases: &[&str]) -> Snapshot {
    let backend = |(api_base, id): (&&str, u64)| Backend {
        id: BackendId(id),
        api_base: (*api_base).to_owned(),
        upstream_model: "m".to_owned(),
        api_key: None,
        protocol: Protocol::Openai,
        auth_header: "authorization".to_owned(),
        auth_scheme: None,
        default_max_tokens: None,
        weight: 1,
        draining: false,
        concurrency: Concurrency::default(),
        request_options: RequestOptions::default(),
        health: HealthCheck::default(),
    };
    let model = Model {
        cache_ttl_seconds: None,
        failover: Failover::default(),
        name: ModelName::new("m").unwrap(),
        policy: None,
        context_length: None,
        backends: api_bases.iter().zip(1..).map(backend).collect(),
    };
    Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 1,
        open: true,
        models: Section::complete(format!("{api_bases:?}"), vec![model]),
        principals: Section::complete("p", Vec::new()),
        virtual_models: Section::default(),
        fallback_model: None,
        key_shards: Vec::new(),
    }
}

fn parsed(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn families_alternate_without_duplicate_addresses() {
    let found = parsed(&["::1", "::2", "::3", "10.0.0.1", "::1", "10.0.0.1"]);
    let ordered = parsed(&["::1", "10.0.0.1", "::2", "::3"]);
    assert_eq!(interleave_families(found), ordered);
    let found = parsed(&["10.0.0.1", "::1"]);
    assert_eq!(interleave_families(found.clone()), found);
}

#[tokio::test]
async fn names_of_a_snapshot_are_resolved_and_addresses_rotate() {
    let book = Book::default();
    book.write("a.test", &["10.0.0.1", "10.0.0.2", "::1"]);
    let bases = [
        "http://a.test:1/v1",
        "https://A.test:2/v1",
        "http://10.1.1.1/v1",
    ];
    let rig = ResolverFixture::start(Arc::default(), &book, ONCE, &bases);
    for expected in [
        ["10.0.0.1", "::1", "10.0.0.2"],
        ["::1", "10.0.0.2", "10.0.0.1"],
        ["10.0.0.2", "10.0.0.1", "::1"],
        ["10.0.0.1", "::1", "10.0.0.2"],
    ] {
        assert_eq!(rig.addresses("a.test").await.unwrap(), parsed(&expected));
    }
    assert_eq!(book.0.lock().requested, ["a.test"]);
    assert!(!rig.failures());
}

#[tokio::test]
async fn an_unresolvable_name_fails_with_its_lookup() {
    let rig = ResolverFixture::at(WHEN_ASKED, &Book::default());
    assert!(rig.addresses("a.test").await.is_err());
    assert!(rig.failures());
    // An empty response is a failure.
    rig.book.write("a.test", &[]);
    assert!(rig.addresses("a.test").await.is_err());
    // A waiting request has requested the lookup, so that the wait is short.
    rig.book.write("a.test", &["10.0.0.1"]);
    until("the address", async || {
        rig.addresses("a.test").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_changed_address_is_found() {
    let book = Book::default();
    book.write("a.test", &["10.0.0.1"]);
    let rig = ResolverFixture::at(ALWAYS, &book);
    assert_eq!(
        rig.addresses("a.test").await.unwrap(),
        parsed(&["10.0.0.1"])
    );
    book.write("a.test", &["10.0.0.2"]);
    until("the new address", async || {
        rig.addresses("a.test").await.unwrap() == parsed(&["10.0.0.2"])
    })
    .await;
}

#[tokio::test]
async fn the_last_addresses_are_kept_while_the_resolver_fails() {
    let book = Book::default();
    book.write("a.test", &["10.0.0.1"]);
    let rig = ResolverFixture::at(ALWAYS, &book);
    rig.addresses("a.test").await.unwrap();
    book.lose("a.test");
    until("a failure", async || rig.failures()).await;
    assert_eq!(
        rig.addresses("a.test").await.unwrap(),
        parsed(&["10.0.0.1"])
    );
}

#[tokio::test]
async fn repeated_requests_cause_one_lookup() {
    let book = Book::default();
    for name in ["a.test", "b.test", "c.test"] {
        book.write(name, &["10.0.0.1"]);
    }
    let rig = ResolverFixture::at(ONCE, &book);
    rig.addresses("a.test").await.unwrap();
    for other in ["b.test", "c.test"] {
        rig.names.request_lookup(&Arc::from("a.test"));
        // Once this has its address, the earlier request was processed, too.
        rig.addresses(other).await.unwrap();
    }
    assert_eq!(book.lookups("a.test"), 1);

    let rig = ResolverFixture::at(WHEN_ASKED, &book);
    rig.addresses("a.test").await.unwrap();
    let before = book.lookups("a.test");
    rig.names.request_lookup(&Arc::from("a.test"));
    until("another lookup", async || book.lookups("a.test") > before).await;
}

#[tokio::test]
async fn unused_names_are_removed() {
    let book = Book::default();
    book.write("a.test", &["10.0.0.1"]);
    let rig = ResolverFixture::at(ONCE, &book);
    rig.addresses("a.test").await.unwrap();
    rig.serve(&["http://b.test/v1"]);
    until("the end of it", async || {
        !rig.names.entries.lock().contains_key("a.test")
    })
    .await;
}

#[tokio::test]
async fn a_late_request_does_not_restore_a_removed_name() {
    let book = Book::default();
    book.write("b.test", &["10.0.0.1"]);
    let rig = ResolverFixture::start(Arc::default(), &book, ALWAYS, &["http://b.test/v1"]);
    assert!(rig.addresses("a.test").await.is_err());
    let (once, others) = (book.lookups("a.test"), book.lookups("b.test"));
    assert_eq!(once, 1);
    until("lookups of others", async || {
        book.lookups("b.test") > others + 5
    })
    .await;
    assert_eq!(book.lookups("a.test"), once);
}

#[tokio::test]
async fn connections_rotate_and_skip_a_dead_address() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    let second = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let book = Book::default();
    book.write("a.test", &["127.0.0.1", "127.0.0.2"]);
    let connector = Connector::new(crate::tls::client_config(None).unwrap(), Arc::default());
    let _rig = ResolverFixture::start(connector.names(), &book, WHEN_ASKED, &["http://a.test/v1"]);
    let origin = Origin {
        tls: false,
        host: Arc::from("a.test"),
        port,
    };
    let peer = async || -> SocketAddr {
        match connector.connect(&origin).await.unwrap() {
            Socket::Plain(stream) => stream.peer_addr().unwrap(),
            Socket::Tls(_) => panic!("no TLS was asked for"),
        }
    };
    let both = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    assert_eq!([peer().await, peer().await], both);
    let before = book.lookups("a.test");
    drop(second);
    assert_eq!([peer().await, peer().await], [both[0]; 2]);
    until("a fresh lookup", async || book.lookups("a.test") > before).await;
    drop(first);
    assert!(connector.connect(&origin).await.is_err());
}

#[tokio::test]
async fn a_name_is_not_followed_to_an_address_that_is_not_permitted() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let book = Book::default();
    book.write("bad.test", &["169.254.169.254", "::ffff:169.254.169.254"]);
    book.write("mixed.test", &["169.254.169.254", "127.0.0.1"]);
    let connector = Connector::new(crate::tls::client_config(None).unwrap(), Arc::default());
    let urls = ["http://bad.test/v1", "http://mixed.test/v1"];
    let _rig = ResolverFixture::start(connector.names(), &book, WHEN_ASKED, &urls);
    let origin = |host: &str| Origin {
        tls: false,
        host: Arc::from(host),
        port,
    };
    for refused in [
        "bad.test",
        "169.254.169.254",
        "0.0.0.0",
        "64:ff9b::a9fe:a9fe",
    ] {
        let error = connector.connect(&origin(refused)).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("not permitted") && !text.contains("169.254"),
            "{text}"
        );
    }
    assert!(connector.connect(&origin("mixed.test")).await.is_ok());
}
