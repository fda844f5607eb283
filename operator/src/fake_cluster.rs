//! A simulated cluster for tests of `plan` and `status`: an API server with
//! generations, Deployment and Job controllers, and a kubelet.

use std::collections::BTreeMap;

use fastllm_crds::{
    Bootstrap, FastllmProxy, FastllmProxySpec, FastllmProxyStatus, Reason, SecretKeyRef,
};
use futures_util::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use kube::ResourceExt as _;
use parking_lot::Mutex;

use crate::apply::{self, Applied, ApplyError, Cluster, set_child};
use crate::build::Object;
use crate::error::CallError;
use crate::names::{Component, ObjectKey};
use crate::observe::{
    Children, Observed, PodFailure, PodReports, PodView, ReadOutcome, content_hash, image_of,
    template_hash,
};
use crate::plan::{Plan, Precondition, bootstrapped, plan};
use crate::secrets::{SecretData, SecretValue, required_references};
use crate::status::{ReconcileOutcome, build};

pub(crate) const URL: &str = "postgres://user:canary@db/fastllm";
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn reference(name: &str, key: &str) -> SecretKeyRef {
    SecretKeyRef {
        name: name.to_owned(),
        key: key.to_owned(),
    }
}

/// A resource with all references.
pub(crate) fn proxy() -> FastllmProxy {
    let spec = FastllmProxySpec {
        image: "fastllm/fastllm-proxy:1".to_owned(),
        database: reference("db", "uri"),
        proxy_token: reference("token", "token"),
        encryption_key: reference("key", "key"),
        bootstrap: Some(Bootstrap {
            name: "admin".to_owned(),
            password: reference("login", "password"),
        }),
        ..FastllmProxySpec::default()
    };
    let mut proxy = FastllmProxy::new("llm", spec);
    proxy.metadata.namespace = Some("ns".to_owned());
    proxy.metadata.uid = Some("uid-llm".to_owned());
    proxy.metadata.generation = Some(1);
    proxy
}

/// The failure to pull an image.
pub(crate) fn pull_failure(image: &str) -> PodFailure {
    PodFailure {
        reason: Reason::ImagePullFailed,
        message: format!("cannot pull image {image:?}"),
    }
}

/// The Secrets that the resource references.
pub(crate) fn secrets() -> BTreeMap<String, SecretData> {
    let one = |key: &str, value: &str| {
        BTreeMap::from([(key.to_owned(), SecretValue::new(value.as_bytes().to_vec()))])
    };
    BTreeMap::from([
        ("db".to_owned(), one("uri", URL)),
        ("token".to_owned(), one("token", "canary-token")),
        ("key".to_owned(), one("key", KEY)),
        ("login".to_owned(), one("password", "canary-password")),
    ])
}

fn deployment_key(deployment: &Deployment) -> ObjectKey {
    ObjectKey {
        kind: "Deployment",
        name: deployment.name_any(),
    }
}

/// The cluster.
#[derive(Clone)]
pub(crate) struct FakeCluster {
    pub(crate) proxy: FastllmProxy,
    pub(crate) secrets: BTreeMap<String, SecretData>,
    pub(crate) reports: PodReports,
    /// The names of the autoscalers of the planes' Deployments.
    pub(crate) autoscalers: BTreeMap<Component, String>,
    /// Whether the gateway's Service selects no pods.
    pub(crate) selects_nothing: bool,
    pub(crate) pods: Vec<PodView>,
    pub(crate) children: Children,
    pub(crate) now: i64,
    pub(crate) writes: usize,
    /// Number of writes that succeed before one fails.
    pub(crate) outage: Option<usize>,
    /// Whether an admission policy prefixes images with a mirror.
    pub(crate) mirror: bool,
    /// Content hash of each Deployment in the API server's response to the last apply.
    applied_hashes: BTreeMap<ObjectKey, String>,
    serial: usize,
}

impl FakeCluster {
    pub(crate) fn new() -> Self {
        Self {
            proxy: proxy(),
            secrets: secrets(),
            reports: PodReports::default(),
            autoscalers: BTreeMap::new(),
            selects_nothing: false,
            pods: Vec::new(),
            children: Children::default(),
            now: 1_800_000_000,
            writes: 0,
            outage: None,
            mirror: false,
            applied_hashes: BTreeMap::new(),
            serial: 0,
        }
    }

    /// A cluster in which everything is rolled out.
    pub(crate) fn ready() -> Self {
        let mut cluster = Self::new();
        cluster.settle();
        cluster
    }

    /// Changes the specification and its generation.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut FastllmProxySpec)) {
        let before = self.proxy.spec.clone();
        change(&mut self.proxy.spec);
        if before != self.proxy.spec {
            *self.proxy.metadata.generation.get_or_insert_default() += 1;
        }
    }

    pub(crate) fn set_secret(&mut self, name: &str, key: &str, value: &str) {
        let value = SecretValue::new(value.as_bytes().to_vec());
        self.secrets
            .entry(name.to_owned())
            .or_default()
            .insert(key.to_owned(), value);
    }

    pub(crate) fn status(&self) -> FastllmProxyStatus {
        self.proxy.status.clone().unwrap_or_default()
    }

    pub(crate) fn observe(&self) -> Observed {
        let done = bootstrapped(&self.proxy, self.children.bootstrap.as_ref());
        let mut secrets = BTreeMap::new();
        for (_, reference) in required_references(&self.proxy, done) {
            let found = self.secrets.get(&reference.name).cloned();
            secrets.insert(reference.name.clone(), ReadOutcome::Known(found));
        }
        let deployments = [&self.children.control, &self.children.gateway];
        let unmodified = deployments
            .into_iter()
            .flatten()
            .map(|d| (deployment_key(d), content_hash(d)))
            .filter(|(key, now)| self.applied_hashes.get(key) == Some(now))
            .map(|(key, _)| key)
            .collect();
        Observed {
            children: self.children.clone(),
            unmodified,
            pods: self.pods.clone(),
            secrets,
            reports: self.reports.clone(),
            autoscalers: self.autoscalers.clone(),
            endpoints: self.endpoints(),
            ..Observed::default()
        }
    }

    fn endpoints(&self) -> usize {
        let serving = self
            .pods
            .iter()
            .filter(|p| p.component == Component::Gateway && p.ready && !p.terminating);
        if self.selects_nothing {
            0
        } else {
            serving.count()
        }
    }

    /// Reconciles with the current state.
    pub(crate) fn reconcile(&mut self) -> (Plan, Applied) {
        let observed = self.observe();
        self.reconcile_with(&observed)
    }

    /// Reconciles with the given state.
    pub(crate) fn reconcile_with(&mut self, observed: &Observed) -> (Plan, Applied) {
        let proxy = self.proxy.clone();
        let plan = plan(&proxy, observed);
        let cell = Mutex::new(self.clone());
        let applied = apply::execute(&cell, &proxy, &plan, observed)
            .now_or_never()
            .unwrap();
        *self = cell.into_inner();
        self.now += 1;
        let outcome = ReconcileOutcome {
            proxy: &proxy,
            observed,
            plan: &plan,
            applied: &applied,
            now: Timestamp::from_second(self.now).unwrap(),
        };
        self.proxy.status = Some(build(outcome));
        (plan, applied)
    }

    /// Reconciles until everything is rolled out.
    pub(crate) fn settle(&mut self) {
        for _ in 0..60 {
            self.reconcile();
            self.tick();
        }
        self.reconcile();
    }

    /// Advances each controller and kubelet by one step.
    pub(crate) fn tick(&mut self) {
        for component in [Component::Control, Component::Gateway] {
            self.roll(component);
        }
        let failing = self.bootstrap_fails();
        if let Some(job) = self.children.bootstrap.as_mut() {
            let kind = if failing { "Failed" } else { "Complete" };
            job.status = Some(JobStatus {
                conditions: Some(vec![JobCondition {
                    type_: kind.to_owned(),
                    status: "True".to_owned(),
                    ..JobCondition::default()
                }]),
                ..JobStatus::default()
            });
        }
    }

    fn bootstrap_fails(&self) -> bool {
        let name = &self.proxy.spec.bootstrap.as_ref().unwrap().password.name;
        let value = self.secrets.get(name).and_then(|s| s.get("password"));
        value.is_none_or(|v| v.expose() == b"refused")
    }

    pub(crate) fn deployment_mut(&mut self, component: Component) -> &mut Option<Deployment> {
        match component {
            Component::Control => &mut self.children.control,
            Component::Gateway | Component::Bootstrap => &mut self.children.gateway,
        }
    }

    /// Advances a rolling update with surge 1 and unavailable 0 by one step.
    fn roll(&mut self, component: Component) {
        let Some(mut deployment) = self.deployment_mut(component).clone() else {
            return;
        };
        let desired = usize::try_from(deployment.spec.replicas.unwrap_or(1)).unwrap();
        let hash = template_hash(&deployment).map(str::to_owned);
        let image = image_of(&deployment, component).unwrap().to_owned();
        self.pods
            .retain(|p| p.component != component || !p.terminating);
        let live: Vec<usize> = (0..self.pods.len())
            .filter(|i| self.pods[*i].component == component)
            .collect();
        let is_new = |i: &usize| self.pods[*i].template_hash == hash;
        let ready = live.iter().filter(|i| self.pods[**i].ready).count();
        let (new, old): (Vec<usize>, Vec<usize>) = live.iter().partition(|i| is_new(i));
        let unready = |of: &[usize]| of.iter().copied().find(|i| !self.pods[*i].ready);
        let surplus = (ready > desired).then(|| old.first().copied()).flatten();
        let too_many = (new.len() > desired).then(|| unready(&new).or(new.last().copied()));
        if let Some(i) = unready(&old).or(surplus).or(too_many.flatten()) {
            self.pods[i].terminating = true;
        } else if new.len() < desired && live.len() <= desired {
            self.serial += 1;
            self.pods.push(PodView {
                name: format!("{}-{}", component.object_name("llm"), self.serial),
                component,
                template_hash: hash.clone(),
                image: image.clone(),
                ready: false,
                terminating: false,
                overdue: false,
                failure: image.contains("missing").then(|| pull_failure(&image)),
                ip: Some("127.0.0.1".to_owned()),
            });
        } else if let Some(i) = unready(&new).filter(|i| self.pods[*i].failure.is_none()) {
            self.pods[i].ready = true;
        }
        let count = |test: &dyn Fn(&PodView) -> bool| {
            let live = self
                .pods
                .iter()
                .filter(|p| p.component == component && !p.terminating);
            Some(i32::try_from(live.filter(|p| test(p)).count()).unwrap())
        };
        deployment.status = Some(DeploymentStatus {
            observed_generation: deployment.metadata.generation,
            replicas: count(&|_| true),
            updated_replicas: count(&|p| p.template_hash == hash),
            ready_replicas: count(&|p| p.ready),
            ..DeploymentStatus::default()
        });
        *self.deployment_mut(component) = Some(deployment);
    }

    fn fails(&mut self) -> Result<(), ApplyError> {
        match self.outage {
            Some(0) => {
                self.outage = None;
                Err(ApplyError::Call {
                    kind: "object",
                    name: "any".to_owned(),
                    source: CallError::Api {
                        code: 503,
                        message: "the API server is out of order".to_owned(),
                    },
                })
            }
            left => {
                self.outage = left.map(|n| n - 1);
                Ok(())
            }
        }
    }

    fn take(&mut self, mut object: Object) -> Object {
        self.writes += 1;
        self.serial += 1;
        let serial = self.serial;
        if let Object::Deployment(deployment) = &mut object {
            if self.mirror {
                let pod = deployment.spec.template.spec.as_mut().unwrap();
                let image = pod.containers[0].image.as_mut().unwrap();
                image.insert_str(0, "mirror/");
            }
            self.applied_hashes.insert(
                deployment_key(deployment),
                content_hash(deployment.as_ref()),
            );
        }
        let live = match (&object, object.component()) {
            (Object::Deployment(_), Some(Component::Control)) => self.children.control.as_ref(),
            (Object::Deployment(_), _) => self.children.gateway.as_ref(),
            _ => None,
        };
        let (uid, generation) = match (live, &object) {
            (Some(live), Object::Deployment(desired)) => {
                let generation = live.metadata.generation.unwrap();
                let bump = i64::from(live.spec != desired.spec);
                (live.metadata.uid.clone().unwrap(), generation + bump)
            }
            _ => (format!("uid-{serial}"), 1),
        };
        let status = live.and_then(|l| l.status.clone());
        // A field that is not applied keeps the value of its other manager.
        if let (Object::Deployment(desired), Some(live)) = (&mut object, live)
            && desired.spec.replicas.is_none()
        {
            desired.spec.replicas = live.spec.replicas;
            let managers = live.metadata.managed_fields.clone();
            desired.metadata.managed_fields = managers;
        }
        object.metadata_mut().uid = Some(uid);
        object.metadata_mut().generation = Some(generation);
        if let Object::Deployment(deployment) = &mut object {
            deployment.status = status;
        }
        set_child(&mut self.children, object.clone());
        object
    }
}

impl Cluster for Mutex<FakeCluster> {
    async fn apply(
        &self,
        _: &FastllmProxy,
        object: &Object,
        _: &Precondition,
    ) -> Result<Object, ApplyError> {
        let mut cluster = self.lock();
        cluster.fails()?;
        Ok(cluster.take(object.clone()))
    }

    async fn delete_job(&self, _: &str, _: &str, _: &str) -> Result<(), ApplyError> {
        let mut cluster = self.lock();
        cluster.fails()?;
        cluster.writes += 1;
        cluster.children.bootstrap = None;
        Ok(())
    }
}
