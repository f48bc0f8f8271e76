//! What is answered here: the models that a caller may ask for, or one of them.

use std::borrow::Cow;

use attache_gate::Passed;
use attache_proto::{Dialect, Operation};

use super::event::{Headers, LocalResponse};
use super::plan;
use crate::config::Config;
use crate::route::models::{self, Item};

/// The answer to a request for models, in the form in which the caller asks. About a model that the caller may not ask for it says what
/// a request to it would get.
pub(super) fn answer(config: &Config, passed: &Passed, headers: &Headers) -> LocalResponse {
    let authority = headers.only(":authority");
    let caller = passed.caller.as_ref();
    let path = headers.get(":path").unwrap_or_default();
    let dialect = asked_in(headers, path, &config.settings.path_prefix);
    let body = match Operation::model_in_path(path, &config.settings.path_prefix) {
        Some(name) => {
            let unescaped = || models::unescaped(name).map_or(Cow::Borrowed(name), Cow::Owned);
            match models::item(config, caller, authority, name, dialect) {
                Item::Listed(body) => body,
                Item::NotAttached => {
                    let name = unescaped();
                    return LocalResponse::refusal(&config.gate.key_not_attached(plan::quoted(&name), dialect));
                }
                Item::Unknown => {
                    let name = unescaped();
                    return plan::model_not_found(&name, models::similar(config, caller, authority, &name), dialect);
                }
            }
        }
        None => models::list(config, caller, authority, dialect),
    };
    LocalResponse { status: 200, headers: Vec::new(), body, reason: "models" }
}

/// Anthropic's API lists models at the path at which OpenAI's does. Its clients say with every request which version of it they know.
fn asked_in(headers: &Headers, path: &str, prefix: &str) -> Dialect {
    match headers.bytes("anthropic-version") {
        Some(_) => Dialect::Anthropic,
        None => Dialect::of_path(path, prefix),
    }
}
