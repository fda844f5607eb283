//! The threads that serve requests, each with a current-thread runtime, so that a
//! request never changes threads.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use super::Tasks;

/// All threads that serve requests. Dropping it stops them.
#[derive(Debug)]
pub(crate) struct Workers {
    list: Vec<Worker>,
    stop: CancellationToken,
}

/// A thread that serves requests.
#[derive(Debug)]
pub(crate) struct Worker {
    handle: Handle,
    load: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Counts a connection of a worker while it is held.
#[derive(Debug)]
pub(crate) struct ConnectionCount(Arc<AtomicUsize>);

impl Workers {
    /// Starts this many threads.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let list = (0..count)
            .map(|number| Worker::start(number, stop.clone()))
            .collect::<io::Result<_>>()?;
        Ok(Self { list, stop })
    }

    /// The number of workers.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// All workers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.list.iter()
    }

    /// The worker with the fewest connections, and its number.
    pub(crate) fn least_loaded(&self) -> Option<(usize, &Worker)> {
        self.list
            .iter()
            .enumerate()
            .min_by_key(|(_, worker)| worker.load.load(Ordering::Relaxed))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for worker in &mut self.list {
            if let Some(thread) = worker.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a thread that serves requests has panicked");
            }
        }
    }
}

impl Worker {
    fn start(number: usize, stop: CancellationToken) -> io::Result<Self> {
        let name = format!("worker-{number}");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(format!("beside-{number}"))
            .build()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || runtime.block_on(stop.cancelled()))?;
        Ok(Self {
            handle,
            load: Arc::default(),
            thread: Some(thread),
        })
    }

    /// Runs a task on this thread.
    pub(crate) fn spawn(&self, tasks: &Tasks, task: impl Future<Output = ()> + Send + 'static) {
        tasks.spawn_on(task, &self.handle);
    }

    /// Counts a connection.
    pub(crate) fn begin(&self) -> ConnectionCount {
        self.load.fetch_add(1, Ordering::Relaxed);
        ConnectionCount(Arc::clone(&self.load))
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
