//! Service registry: equal options share one service, and with it kernels and builds.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{CompileService, Inner, ServiceOptions, failure_store};
use crate::build::{BuildOptions, ToolEnvironment};
use crate::cache::Cache;
use crate::environment::Environment;

/// The live services, each with the identity of its options.
static SERVICES: Mutex<Vec<(String, Weak<Inner>)>> = Mutex::new(Vec::new());

impl CompileService {
    /// Returns the live service with these options, or creates one.
    pub fn shared(options: ServiceOptions) -> CompileService {
        let identity = identity(&options);
        let mut services = SERVICES.lock().unwrap_or_else(PoisonError::into_inner);
        services.retain(|(_, service)| service.strong_count() > 0);
        let same = services.iter().find(|(known, _)| *known == identity);
        if let Some(inner) = same.and_then(|(_, service)| service.upgrade()) {
            return CompileService { inner };
        }
        let service = CompileService::new(options);
        services.push((identity, Arc::downgrade(&service.inner)));
        service
    }
}

/// The identity of options. A compiler modified in place counts as another one.
fn identity(options: &ServiceOptions) -> String {
    let ServiceOptions { cache, toolchain, build, jobs, retry_known_bad } = options;
    let build = BuildOptions { cancel: None, ..build.clone() };
    let (launcher, environment) = (build.launcher.as_deref(), Environment::from_process());
    let tools = ToolEnvironment::new(&environment);
    // Tiers' display form omits credentials, which distinguish them.
    let tiers = cache.as_ref().map(Cache::tier_places);
    let stamp =
        toolchain.as_ref().map(|toolchain| failure_store::stamp(toolchain, launcher, &environment, &tools));
    let tools = (tools, environment.launcher);
    format!("{cache:?} {tiers:?} {toolchain:?} {stamp:?} {tools:?} {build:?} {jobs:?} {retry_known_bad}")
}
