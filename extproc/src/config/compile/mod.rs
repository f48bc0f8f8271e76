//! Resources into one [`Config`].
//!
//! The kinds are built in the order in which they refer to each other, each by a [`Stage`]. An object that cannot be built
//! without an error keeps its last good state, if that can still be built; else what is sound of it is used, or it is left
//! out. So a mistake costs one object, and a mistake in a reload costs nothing.

mod affinity;
mod backends;
mod credentials;
mod grants;
mod keys;
mod limits;
mod reference;
mod routes;
mod tls;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use attache_gate::{ConfigError, Gate};

use super::diagnostic::{Diagnostic, Location, Origin};
use super::model::{Config, ObjectName, Settings};
use super::resource::{self, Catalog, Object, Read, Resources, Spec, Support};
use super::source::{Documents, Lost};

use affinity::AffinityStage;
use backends::{BackendStage, ServiceBackendStage};
use credentials::CredentialStage;
use grants::GrantStage;
use keys::KeyStage;
use limits::{Limiting, QuotaStage, TokenLimitStage, TrafficStage};
use routes::{Matches, RouteStage};
use tls::TlsStage;

/// What came of the operator's documents.
#[derive(Debug)]
pub struct Outcome {
    /// What is right of them.
    pub config: Config,
    /// The last good state of every object, for the next reload.
    pub resources: Resources,
    /// What is wrong with them, in the order of files and lines; what only follows from the rest, after it.
    pub diagnostics: Vec<Diagnostic>,
    /// How many objects there were, of all kinds.
    pub objects: usize,
}

/// Compiles documents. `previous` is what the last [`Outcome`] left: objects that are wrong now stay as they are there.
///
/// # Errors
/// Whatever the documents hold, this succeeds. [`ConfigError`] says which of the `settings` cannot be.
pub fn compile(
    documents: Documents,
    settings: Settings,
    generation: u64,
    previous: Option<&Resources>,
) -> Result<Outcome, ConfigError> {
    let nothing = Resources::default();
    let previous = previous.unwrap_or(&nothing);
    let Read { resources, secrets, config_maps, keys, lost, diagnostics, objects } = resource::read(documents);
    let mut build = Build { lost, diagnostics };

    let mut stage = GrantStage::default();
    let grants_kept = build.run(&mut stage, &resources.grants, &previous.grants);
    let grants = stage.finish();
    let mut stage = TlsStage::new([&resources.backends, &previous.backends], &config_maps, &previous.authorities);
    let tls_policies_kept = build.run(&mut stage, &resources.tls_policies, &previous.tls_policies);
    let tls = stage.finish();
    let mut stage = BackendStage::new(&tls);
    let backends_kept = build.run(&mut stage, &resources.backends, &previous.backends);
    let replicas = stage.finish();
    let authorities = tls.in_force(&backends_kept, &tls_policies_kept);
    let mut stage =
        ServiceBackendStage::new(&replicas, &grants, [&resources.security_policies, &previous.security_policies]);
    let service_backends_kept = build.run(&mut stage, &resources.service_backends, &previous.service_backends);
    let service_backends = stage.finish();
    let mut stage = CredentialStage::new(&service_backends, &grants, &secrets, keys, &previous.keys);
    let security_policies_kept = build.run(&mut stage, &resources.security_policies, &previous.security_policies);
    let keyed = stage.finish(&build.lost, &previous.served, &mut build.diagnostics);
    let keys_kept = keyed.keys.clone();
    let secrets = keyed.secrets.clone();
    let mut stage = RouteStage::new(&service_backends, &grants);
    let routes_kept = build.run(&mut stage, &resources.routes, &previous.routes);
    let routes = stage.finish();
    let mut stage = TokenLimitStage::new(&routes, Limiting::default());
    let token_limits_kept = build.run(&mut stage, &resources.token_limits, &previous.token_limits);
    let mut stage = TrafficStage::new(&routes, stage.finish());
    let traffic_policies_kept = build.run(&mut stage, &resources.traffic_policies, &previous.traffic_policies);
    let mut stage = QuotaStage::new(&service_backends, &routes, stage.finish());
    let quotas_kept = build.run(&mut stage, &resources.quotas, &previous.quotas);
    let limiting = stage.finish();
    let mut stage = AffinityStage::new(&replicas, &service_backends, &routes);
    let cache_affinities_kept = build.run(&mut stage, &resources.cache_affinities, &previous.cache_affinities);
    let affinities = stage.finish(&service_backends_kept, &mut build.diagnostics);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut stage = KeyStage::new(&routes, now);
    let client_keys_kept = build.run(&mut stage, &resources.client_keys, &previous.client_keys);
    let (access, guard) = stage.finish(&resources.client_keys, &build.lost, previous.guard, &mut build.diagnostics);

    let Matches { by_model: rules_by_model, open: open_matches } = routes.matches(&mut build.diagnostics);
    let mut routes = routes.into_list();
    let mut backends = service_backends.with_affinities(&affinities.policies);
    for backend in &mut backends {
        Arc::make_mut(&mut backend.affinity).canon.secret_seed = settings.affinity_secret;
    }
    let closed = keyed.apply(&mut backends);
    affinities.leave_out_pages(&mut backends);
    let mut served = limiting.apply(&mut routes, &mut backends, &build.lost, &previous.served, &mut build.diagnostics);
    served.backends.retain(|backend| !closed.contains(backend));
    let gate_config = keys::gate_config(&settings, access, &routes, &rules_by_model);
    let filter = previous.filter.followed_by(&gate_config);
    let config = Config {
        generation,
        settings,
        gate: Gate::new(gate_config.clone())?,
        gate_config,
        filter: filter.clone(),
        routes,
        backends,
        secrets,
        rules_by_model,
        open_matches,
    };
    let kept = Resources {
        backends: backends_kept,
        service_backends: service_backends_kept,
        routes: routes_kept,
        token_limits: token_limits_kept,
        cache_affinities: cache_affinities_kept,
        client_keys: client_keys_kept,
        traffic_policies: traffic_policies_kept,
        quotas: quotas_kept,
        security_policies: security_policies_kept,
        grants: grants_kept,
        tls_policies: tls_policies_kept,
        authorities,
        keys: keys_kept,
        guard,
        served,
        filter,
    };
    Ok(Outcome { config, resources: kept, diagnostics: build.into_diagnostics(), objects })
}

/// How the objects of one kind become a part of the configuration.
trait Stage {
    type Spec: Spec;
    type Built;

    /// Builds an object, or what is sound of it, and reports what is not. Changes nothing: an object may be built twice,
    /// as it is now and as it last was.
    fn build(&self, name: &ObjectName, spec: &Self::Spec, findings: &mut Vec<Diagnostic>) -> Option<Self::Built>;

    /// Takes what became of an object; `None` where it is left out.
    fn accept(&mut self, name: &ObjectName, built: Option<Self::Built>);

    /// Takes note of an object that has errors in itself, and no earlier state without.
    fn lose(&mut self, _object: &Object<Self::Spec>) {}
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It was built, or what is sound of it, now or as it last was.
    Built,
    /// Nothing says what it was meant to be.
    Lost,
}

/// A compilation under way.
struct Build {
    lost: Vec<Lost>,
    diagnostics: Vec<Diagnostic>,
}

impl Build {
    /// Takes every object of a kind through its stage. Returns the state of each to fall back to.
    fn run<S: Stage>(
        &mut self,
        stage: &mut S,
        read: &Catalog<S::Spec>,
        previous: &Catalog<S::Spec>,
    ) -> Catalog<S::Spec> {
        let mut kept = Catalog::default();
        // Objects whose text is lost may still be wanted; those that are gone from sound files are not.
        let unseen = previous.iter().filter(|object| read.find(&object.name).is_none());
        let lost: Vec<_> = unseen.filter(|object| self.is_lost(&object.location)).collect();
        for object in read.iter().chain(lost) {
            let (built, good, fate) = self.settle(stage, object, previous.find(&object.name));
            stage.accept(&object.name, built);
            if fate == Fate::Lost {
                stage.lose(object);
            }
            if good.spec.is_some() {
                kept.insert(good.clone());
            }
        }
        read.rejected().iter().for_each(|object| stage.lose(object));
        kept
    }

    /// What becomes of an object, and the state of it to fall back to.
    fn settle<'a, S: Stage>(
        &mut self,
        stage: &S,
        object: &'a Object<S::Spec>,
        last: Option<&'a Object<S::Spec>>,
    ) -> (Option<S::Built>, &'a Object<S::Spec>, Fate) {
        if object.support == Support::Unsupported {
            return (None, object, Fate::Lost);
        }
        let attempt = |spec: &Option<Arc<S::Spec>>| {
            let mut findings = Vec::new();
            let built = spec.as_ref().and_then(|spec| stage.build(&object.name, spec, &mut findings));
            let is_sound = spec.is_some() && !findings.iter().any(Diagnostic::is_error);
            (built, findings, is_sound)
        };
        let (built, findings, is_sound) = attempt(&object.spec);
        self.diagnostics.extend(findings);
        if is_sound {
            return (built, object, Fate::Built);
        }
        let fate = if object.spec.is_some() { Fate::Built } else { Fate::Lost };
        let Some(last) = last else { return (built, object, fate) };
        let (rebuilt, _, is_sound) = attempt(&last.spec);
        if !is_sound {
            return (built.or(rebuilt), last, fate);
        }
        let message = format!("{} {} stays as it last was without errors", S::Spec::KIND, object.name);
        let warning = Diagnostic::warning(&object.location, message).with_help("mend its errors");
        self.diagnostics.push(warning.following_from_another());
        (rebuilt, last, Fate::Built)
    }

    fn is_lost(&self, location: &Location) -> bool {
        self.lost.iter().any(|lost| Path::new(location.file()).starts_with(&lost.path))
    }

    fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        hide_secrets(&mut self.diagnostics);
        // Objects are built in the order in which they refer to each other, so consequences come in their order already.
        fn place(diagnostic: &Diagnostic) -> (Origin, Option<(&str, usize)>) {
            match diagnostic.origin {
                Origin::Itself => (Origin::Itself, diagnostic.location.as_ref().map(Location::sort_key)),
                Origin::Another => (Origin::Another, None),
            }
        }
        self.diagnostics.sort_by(|a, b| place(a).cmp(&place(b)));
        self.diagnostics
    }
}

/// A report shows the line of a finding and those around it, and in a file with Secrets any of them may have a key.
fn hide_secrets(diagnostics: &mut [Diagnostic]) {
    let mut texts = HashMap::new();
    for location in diagnostics.iter_mut().filter_map(|diagnostic| diagnostic.location.as_mut()) {
        if *texts.entry(location.text_identity()).or_insert_with(|| location.may_be_beside_a_secret()) {
            *location = location.clone().secret();
        }
    }
}
