//! The only place that spawns tasks. A task that ends makes the process exit,
//! so that no operator is ready but idle.

use tokio::task::JoinSet;

use crate::error::OperatorError;

/// The tasks of the process.
#[derive(Default)]
pub struct Tasks(JoinSet<(&'static str, Result<(), OperatorError>)>);

impl Tasks {
    /// Spawns a task.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), OperatorError>> + Send + 'static,
    ) {
        self.0.spawn(async move { (name, task.await) });
    }

    /// Waits for the first task to end, which is an error in any case.
    pub async fn first_end(&mut self) -> OperatorError {
        match self.0.join_next().await {
            Some(Ok((_, Err(error)))) => error,
            Some(Ok((name, Ok(())))) => OperatorError::TaskEnded(name),
            Some(Err(_)) => OperatorError::TaskEnded("a task that panicked"),
            None => OperatorError::TaskEnded("every task"),
        }
    }
}
