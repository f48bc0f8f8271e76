//! An Envoy that is configured otherwise than ours.

use std::net::SocketAddr;

use attache_tests::{Envoy, Stack, port, tools::Profile};

use crate::{profile, profiles::AS_ENVOY_GATEWAY};

/// A second Envoy before the same sidecar, on the stack's bootstrap with these replacements. Each must be there to replace.
pub(crate) async fn envoy_with(stack: &Stack, replacements: &[(&str, &str)]) -> Envoy {
    let mut attempts = port::ATTEMPTS;
    loop {
        let (listen, admin) = (port::free().unwrap(), port::free().unwrap());
        let bootstrap = stack.directory().join("envoy-other.yaml");
        std::fs::write(&bootstrap, text(stack, replacements, listen, admin)).unwrap();
        match Envoy::start_with("envoy-other", &bootstrap, listen, admin, stack.directory()).await {
            Ok(envoy) => return envoy,
            Err(error) if attempts == 0 || !port::was_taken(&error) => panic!("{error}"),
            Err(_) => attempts -= 1,
        }
    }
}

fn text(stack: &Stack, replacements: &[(&str, &str)], listen: SocketAddr, admin: SocketAddr) -> String {
    let mut text = std::fs::read_to_string(stack.directory().join("envoy-0.yaml")).unwrap();
    let is_json = profile::is(Profile::EnvoyGateway);
    // What was translated from manifests is so already.
    let replacements = if is_json && replacements == AS_ENVOY_GATEWAY { &[] } else { replacements };
    let (before, after) = if is_json { ("\"port_value\": ", "\n") } else { ("port_value: ", "}") };
    let ports = [(stack.gateway.envoy.url(), listen), (stack.gateway.envoy.admin_url(), admin)].map(|(url, new)| {
        let old = url.rsplit(':').next().unwrap();
        (format!("{before}{old}{after}"), format!("{before}{}{after}", new.port()))
    });
    let ports = ports.iter().map(|(old, new)| (old.as_str(), new.as_str()));
    for (old, new) in ports.chain(replacements.iter().copied()) {
        assert!(text.contains(old), "{old:?} is not in the bootstrap");
        text = text.replace(old, new);
    }
    text
}
