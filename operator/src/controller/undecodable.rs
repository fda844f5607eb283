//! Reports of resources that do not decode.

use jiff::Timestamp;
use tokio::time::sleep;

use super::{REQUEUE, Reconciler};
use crate::error::{CallError, Chain};
use crate::events;
use crate::status;
use crate::stored::UndecodableProxy;

impl<P> Reconciler<P> {
    /// Reports undecodable resources until the future is dropped.
    pub(super) async fn report_undecodable(&self) {
        loop {
            for proxy in self.undecodable.unreported() {
                if self.report(&proxy).await {
                    self.undecodable.set_reported(&proxy);
                }
            }
            tokio::select! {
                () = self.undecodable.changed() => {}
                // Repeats a report that failed.
                () = sleep(REQUEUE) => {}
            }
        }
    }

    /// Reports a resource in the log, in an Event and in its status. Returns
    /// whether that is not to be repeated.
    async fn report(&self, proxy: &UndecodableProxy) -> bool {
        let UndecodableProxy {
            metadata, defect, ..
        } = proxy;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(namespace, name, %defect, "the stored resource does not decode");
        let event = events::undecodable(defect);
        events::publish(&self.recorder, &proxy.object_ref(), vec![event]).await;
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let status = status::build_undecodable(proxy, now);
        if status == proxy.status {
            return true;
        }
        match self.api.write_undecodable_status(proxy, &status).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(namespace, name, error = %Chain(&error), "cannot write the status");
                // An API server may reject every write to such a resource.
                matches!(
                    error,
                    CallError::Api {
                        code: 400..=428,
                        ..
                    }
                )
            }
        }
    }
}
