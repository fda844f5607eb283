//! Simulated Deployment and Job controllers and kubelet.

use fastllm_crds::FastllmProxyStatus;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, apply, poll};

/// The end of the names of simulated `ReplicaSets`.
const POD_TEMPLATE_HASH: &str = "abc12";

/// Makes a simulated `ReplicaSet` of a Deployment control a pod.
fn own(pod: &mut Pod, deployment: &str) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("pod-template-hash".to_owned(), POD_TEMPLATE_HASH.to_owned());
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: format!("{deployment}-{POD_TEMPLATE_HASH}"),
        uid: "00000000-0000-0000-0000-000000000001".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
}

impl TestCluster {
    /// Waits for a Deployment that matches.
    pub(crate) async fn deployment(
        &self,
        name: &str,
        test: impl Fn(&Deployment) -> bool,
    ) -> Deployment {
        let api: Api<Deployment> = self.api();
        let deadline = Instant::now() + REACTION;
        loop {
            let found = api.get_opt(name).await.unwrap();
            if let Some(deployment) = found.filter(&test) {
                return deployment;
            }
            assert!(
                Instant::now() < deadline,
                "Deployment {name} does not match"
            );
            poll().await;
        }
    }

    /// Waits until an admission policy prefixes images.
    pub(crate) async fn rewrites(&self, name: &str, prefix: &str) {
        let probe: Deployment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": name, "image": name}]},
                },
            },
        }))
        .unwrap();
        let api: Api<Deployment> = self.api();
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let deadline = Instant::now() + REACTION * 4;
        loop {
            let made = api.create(&dry, &probe).await.unwrap();
            let image = made.spec.template.spec.unwrap().containers[0].image.clone();
            if image.is_some_and(|image| image.starts_with(prefix)) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the admission policy {name} is not in force"
            );
            poll().await;
        }
    }

    /// The generation of a Deployment, if it exists.
    pub(crate) async fn generation(&self, name: &str) -> Option<i64> {
        let api: Api<Deployment> = self.api();
        api.get_opt(name).await.unwrap()?.metadata.generation
    }

    /// The pods of a Deployment, found by its selector.
    async fn pods_of(&self, deployment: &Deployment) -> Vec<Pod> {
        let desired = deployment.spec.selector.match_labels.clone().unwrap();
        let selector: Vec<_> = desired.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let api: Api<Pod> = self.api();
        api.list(&ListParams::default().labels(&selector.join(",")))
            .await
            .unwrap()
            .items
    }

    /// Creates one pod of a Deployment's template.
    pub(crate) async fn start_pod(&self, deployment: &Deployment, name: &str, status: Value) {
        let template = &deployment.spec.template;
        let mut pod = Pod {
            metadata: template.metadata.clone().unwrap(),
            spec: template.spec.clone(),
            status: None,
        };
        pod.metadata.name = Some(name.to_owned());
        own(&mut pod, &deployment.name_any());
        let api: Api<Pod> = self.api();
        api.create(&PostParams::default(), &pod).await.unwrap();
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Completes a rollout: all pods have the current template and are ready.
    pub(crate) async fn finish(&self, name: &str) {
        let deployment = self.deployment(name, |_| true).await;
        let generation = deployment.metadata.generation.unwrap();
        let replicas = deployment.spec.replicas.unwrap();
        let pods: Api<Pod> = self.api();
        for pod in self.pods_of(&deployment).await {
            let now = DeleteParams::default().grace_period(0);
            pods.delete(&pod.name_any(), &now).await.unwrap();
        }
        for index in 0..replicas {
            let ready = json!({
                "phase": "Running",
                "podIP": "127.0.0.1",
                "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            });
            self.start_pod(&deployment, &format!("{name}-{generation}-{index}"), ready)
                .await;
        }
        self.set_endpoints(name, replicas).await;
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
            "readyReplicas": replicas, "availableReplicas": replicas,
        }});
        self.deployment_status(name, status).await;
    }

    /// Sets the number of ready endpoints of a Service. As Kubernetes does, the labels
    /// of the Service are copied.
    pub(crate) async fn set_endpoints(&self, name: &str, ready: i32) {
        let service: Service = self.api().get(name).await.unwrap();
        let mut labels = service.metadata.labels.unwrap();
        labels.insert("kubernetes.io/service-name".to_owned(), name.to_owned());
        let address = |index| json!({"addresses": [format!("10.0.0.{index}")]});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "addressType": "IPv4",
            "endpoints": (1..=ready).map(address).collect::<Vec<_>>(),
        });
        apply(&self.client, slice).await;
    }

    pub(crate) async fn deployment_status(&self, name: &str, status: Value) {
        let api: Api<Deployment> = self.api();
        let patch = Patch::Merge(status);
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Completes the bootstrap Job.
    pub(crate) async fn finish_job(&self, name: &str) {
        let api: Api<Job> = self.api();
        let deadline = Instant::now() + REACTION;
        while api.get_opt(name).await.unwrap().is_none() {
            assert!(Instant::now() < deadline, "Job {name} was not created");
            poll().await;
        }
        let now = jiff::Timestamp::now();
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let patch = Patch::Merge(json!({"status": {
            "startTime": now, "completionTime": now, "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        }}));
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Creates a resource and simulates the controllers until it is ready.
    pub(crate) async fn install(&self, name: &str) -> FastllmProxyStatus {
        self.create(name).await;
        self.finish(&format!("{name}-control")).await;
        self.finish_job(&format!("{name}-bootstrap")).await;
        self.finish(&format!("{name}-proxy")).await;
        self.until(name, |s| s.is_true(fastllm_crds::ConditionType::Ready))
            .await
    }
}
