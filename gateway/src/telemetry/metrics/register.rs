use prometheus::core::{AtomicU64, Collector, GenericGauge};
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// The upper bounds of every histogram, in seconds.
const BOUNDS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

pub(super) type Registered<T> = Result<T, prometheus::Error>;

/// Creates metrics and registers them.
#[derive(Debug, Default)]
pub(super) struct Register(Registry);

impl Register {
    pub(super) fn counter(&self, name: &str, help: &str) -> Registered<IntCounter> {
        self.add(IntCounter::new(name, help))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Registered<IntGauge> {
        self.add(IntGauge::new(name, help))
    }

    pub(super) fn seconds(&self, name: &str, help: &str) -> Registered<Gauge> {
        self.add(Gauge::new(name, help))
    }

    /// A gauge for unsigned numbers; a hash fits into it, too.
    pub(super) fn count(&self, name: &str, help: &str) -> Registered<GenericGauge<AtomicU64>> {
        self.add(GenericGauge::new(name, help))
    }

    pub(super) fn histogram(&self, name: &str, help: &str) -> Registered<Histogram> {
        self.add(Histogram::with_opts(bounded(name, help)))
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<HistogramVec> {
        self.add(HistogramVec::new(bounded(name, help), labels))
    }

    /// One counter for each value of the label, starting at zero.
    pub(super) fn fixed(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Registered<Vec<IntCounter>> {
        let family = self.counters(name, help, &[label])?;
        values
            .into_iter()
            .map(|value| family.get_metric_with_label_values(&[value]))
            .collect()
    }

    /// Adds buckets to an existing histogram.
    pub(super) fn of(registry: &Registry) -> Self {
        Self(registry.clone())
    }

    pub(super) fn into_registry(self) -> Registry {
        self.0
    }

    fn add<C: Collector + Clone + 'static>(&self, metric: Registered<C>) -> Registered<C> {
        let metric = metric?;
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

fn bounded(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(BOUNDS.to_vec())
}
