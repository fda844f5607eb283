//! A TCP proxy for PostgreSQL that can interrupt connections.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::Database;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    target: (String, u16),
    running: Option<CancellationToken>,
    frozen: watch::Sender<()>,
    tasks: TaskTracker,
}

impl Proxy {
    /// Creates a closed proxy, which refuses connections.
    pub(crate) async fn new(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            target: database.address(),
            running: None,
            frozen: watch::Sender::new(()),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let stop = CancellationToken::new();
        self.running = Some(stop.clone());
        let target = self.target.clone();
        let tasks = self.tasks.clone();
        let frozen = self.frozen.clone();
        self.tasks
            .spawn(stop.clone().run_until_cancelled_owned(async move {
                loop {
                    let (mut inner, _) = listener.accept().await.unwrap();
                    let target = target.clone();
                    let mut freeze = frozen.subscribe();
                    tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                        let mut outer = TcpStream::connect(target).await.unwrap();
                        tokio::select! {
                            _ = copy_bidirectional(&mut inner, &mut outer) => {}
                            // Both ends stay open.
                            _ = freeze.changed() => std::future::pending().await,
                        }
                    }));
                }
            }));
    }

    /// Stops forwarding on open connections; new connections work.
    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(());
    }

    /// Closes all connections and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        self.running.take().unwrap().cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks = TaskTracker::new();
    }
}
