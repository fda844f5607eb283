use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{reflector, watcher};

use super::{MutationCache, WRITE_TTL};

fn object(version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some("name".to_owned());
    object.metadata.namespace = Some("ns".to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object
}

fn version(latest: &MutationCache<ConfigMap>) -> Option<String> {
    latest.get("ns", "name")?.metadata.resource_version.clone()
}

#[tokio::test(start_paused = true)]
async fn a_write_is_visible_before_the_watch_delivers_it() {
    let (store, mut writer) = reflector::store();
    let latest = MutationCache::new(store);
    writer.apply_watcher_event(&watcher::Event::Apply(object("9")));
    latest.record_write(object("10"));
    assert_eq!(version(&latest).as_deref(), Some("10"));
    writer.apply_watcher_event(&watcher::Event::Apply(object("11")));
    assert_eq!(version(&latest).as_deref(), Some("11"));
}

#[tokio::test(start_paused = true)]
async fn a_written_object_expires_if_the_watch_does_not_show_it() {
    let (store, _writer) = reflector::store();
    let latest = MutationCache::new(store);
    latest.record_write(object("10"));
    assert_eq!(version(&latest).as_deref(), Some("10"));
    tokio::time::advance(WRITE_TTL * 2).await;
    assert_eq!(version(&latest), None);
}

#[tokio::test(start_paused = true)]
async fn a_removed_object_is_gone_immediately() {
    let (store, _writer) = reflector::store();
    let latest = MutationCache::new(store);
    latest.record_write(object("10"));
    latest.forget("ns", "name");
    assert_eq!(version(&latest), None);
}
