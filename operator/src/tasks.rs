//! The one place that starts tasks. Each has an owner that sees it end: a task
//! that ends by itself ends the process, so that there is no operator that is
//! ready but idle.

use tokio::task::JoinSet;

use crate::error::OperatorError;

/// The tasks of the process.
#[derive(Default)]
pub struct Tasks(JoinSet<(&'static str, Result<(), OperatorError>)>);

impl Tasks {
    /// Starts a task.
    pub fn start(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), OperatorError>> + Send + 'static,
    ) {
        self.0.spawn(async move { (name, task.await) });
    }

    /// Waits for the first task that ends; that is an error in any case.
    pub async fn first_end(&mut self) -> OperatorError {
        match self.0.join_next().await {
            Some(Ok((_, Err(error)))) => error,
            Some(Ok((name, Ok(())))) => OperatorError::TaskEnded(name),
            Some(Err(_)) => OperatorError::TaskEnded("a task (it panicked)"),
            None => OperatorError::TaskEnded("every task"),
        }
    }
}
