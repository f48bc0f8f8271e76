//! What is answered here: the models that a caller may ask for, or one of them.

use std::borrow::Cow;

use attache_gate::Passed;
use attache_proto::Operation;

use super::event::LocalResponse;
use super::plan;
use crate::config::Config;
use crate::route::models;

/// The answer to a request for models. A model that the caller may not ask for is none: the list does not have it either.
pub(super) fn answer(config: &Config, passed: &Passed, path: &str) -> LocalResponse {
    let caller = passed.caller.as_ref();
    let body = match Operation::model_in_path(path, &config.settings.path_prefix) {
        Some(name) => match models::item(config, caller, name) {
            Some(body) => body,
            None => {
                let name = models::unescaped(name).map_or(Cow::Borrowed(name), Cow::Owned);
                return plan::model_not_found(&name, passed.operation.dialect());
            }
        },
        None => models::list(config, caller),
    };
    LocalResponse { status: 200, headers: Vec::new(), body, reason: "models" }
}
