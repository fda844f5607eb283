//! Tasks with an owner that waits for their end.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one component, counted. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(TaskTracker);

impl Tasks {
    /// Runs a task on the runtime of `handle`.
    pub(crate) fn spawn_on<F>(&self, task: F, handle: &Handle)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.spawn_on(task, handle);
    }

    /// Counts a task that runs elsewhere.
    pub(crate) fn count<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.track_future(task)
    }

    /// How many tasks run.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Resolves once no task runs.
    pub(crate) async fn all_ended(&self) {
        self.0.close();
        self.0.wait().await;
    }

    /// Waits until no task runs, at most `limit`; returns how many are left.
    pub(crate) async fn drained(&self, limit: Duration) -> usize {
        match tokio::time::timeout(limit, self.all_ended()).await {
            Ok(()) => 0,
            Err(_) => self.0.len(),
        }
    }
}

/// The tasks that run until shutdown. If one of them ends before, the gateway
/// exits.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTasks {
    tasks: JoinSet<&'static str>,
    stop: CancellationToken,
    late: CancellationToken,
}

/// Time for tasks to record what they could not finish.
const ABORT_GRACE: Duration = Duration::from_secs(1);

impl BackgroundTasks {
    /// Cancelled when the tasks have to end.
    pub(crate) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Cancelled some time after [`BackgroundTasks::stop`], when unfinished work is
    /// abandoned.
    pub(crate) fn late(&self) -> CancellationToken {
        self.late.clone()
    }

    pub(crate) fn spawn<F>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Resolves with the name of a task when it ends.
    pub(crate) async fn ended(&mut self) -> &'static str {
        match self.tasks.join_next().await {
            Some(Ok(name)) => name,
            Some(Err(_)) => "a task that panicked",
            None => std::future::pending().await,
        }
    }

    /// Stops the tasks and waits for them, little longer than `limit`.
    pub(crate) async fn finish(mut self, limit: Duration) {
        self.stop.cancel();
        if self.all_ended(limit).await {
            return;
        }
        self.late.cancel();
        if !self.all_ended(ABORT_GRACE).await {
            tracing::warn!("background tasks did not end in time");
        }
    }

    async fn all_ended(&mut self, limit: Duration) -> bool {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(limit, all).await.is_ok()
    }
}
