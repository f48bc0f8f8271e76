//! What is answered here: the models that a caller may ask for, or one of them.

use std::borrow::Cow;

use attache_gate::Passed;
use attache_proto::Operation;

use super::event::LocalResponse;
use super::plan;
use crate::config::Config;
use crate::route::models::{self, Item};

/// The answer to a request for models. About a model that the caller may not ask for it says what a request to it would get.
pub(super) fn answer(config: &Config, passed: &Passed, path: &str) -> LocalResponse {
    let caller = passed.caller.as_ref();
    let body = match Operation::model_in_path(path, &config.settings.path_prefix) {
        Some(name) => {
            let dialect = passed.operation.dialect();
            let unescaped = || models::unescaped(name).map_or(Cow::Borrowed(name), Cow::Owned);
            match models::item(config, caller, name) {
                Item::Listed(body) => body,
                Item::NotAttached => {
                    let name = unescaped();
                    return LocalResponse::refusal(&config.gate.key_not_attached(plan::quoted(&name), dialect));
                }
                Item::Unknown => return plan::model_not_found(&unescaped(), dialect),
            }
        }
        None => models::list(config, caller),
    };
    LocalResponse { status: 200, headers: Vec::new(), body, reason: "models" }
}
