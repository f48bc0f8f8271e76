//! What a complete request asks for: what its body says, and the rule that serves it.

use attache_proto::Operation;
use attache_proto::multipart;
use attache_proto::request::{self, RequestScan, ScanError};

use super::Head;
use super::event::LocalResponse;
use super::plan::{malformed, model_not_found, no_backend, not_served, quoted};
use crate::config::Config;
use crate::config::model::RuleId;
use crate::route::{self, Resolution, models};

/// What a request asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) scan: RequestScan,
    pub(super) rule: RuleId,
}

impl Asked {
    /// Reads a request whose body is complete.
    pub(super) fn read(body: &[u8], head: &Head, config: &Config) -> Result<Self, LocalResponse> {
        match head.operation {
            Operation::PassThrough => Self::read_passing(body, head, config),
            operation => {
                let scan = request::scan_as(operation, head.headers.only("content-type"), body)
                    .map_err(|error| malformed(&error, head.dialect))?;
                let header = |name: &str| head.headers.only(name);
                let resolution = route::resolve(config, &scan.model, head.caller.as_ref(), header);
                Self::resolved(resolution, scan, head, config)
            }
        }
    }

    /// Whatever the body is, it passes. A model that it names is asked for; without one it is for the first that the route
    /// serves. A model of routes that do not name the path is not served there, and to a key that is not attached to them it says
    /// nothing else than everywhere.
    fn read_passing(body: &[u8], head: &Head, config: &Config) -> Result<Self, LocalResponse> {
        let method = head.headers.get(":method").unwrap_or_default();
        let path = head.headers.get(":path").unwrap_or_default();
        let passage = route::Passage { config, method, path, caller: head.caller.as_ref() };
        match named_model(body, head.headers.only("content-type")) {
            Err(error) => Err(malformed(&error, head.dialect)),
            Ok(Some(scan)) => {
                let header = |name: &str| head.headers.only(name);
                let resolution = match passage.resolve(&scan.model, header) {
                    Resolution::Unknown => match route::resolve(config, &scan.model, head.caller.as_ref(), header) {
                        Resolution::Rule(_) => return Err(not_served(&scan, head)),
                        elsewhere => elsewhere,
                    },
                    here => here,
                };
                Self::resolved(resolution, scan, head, config)
            }
            Ok(None) => {
                let (rule, model) =
                    passage.first(head.headers.only(":authority")).ok_or_else(|| no_backend(head.dialect))?;
                Ok(Self { scan: RequestScan::without_model(model.to_string()), rule })
            }
        }
    }

    fn resolved(
        resolution: Resolution,
        scan: RequestScan,
        head: &Head,
        config: &Config,
    ) -> Result<Self, LocalResponse> {
        let dialect = head.dialect;
        match resolution {
            Resolution::Rule(rule) => Ok(Self { scan, rule }),
            Resolution::NotAttached => {
                Err(LocalResponse::refusal(&config.gate.key_not_attached(quoted(&scan.model), dialect)))
            }
            Resolution::Unknown => {
                let similar =
                    models::similar(config, head.caller.as_ref(), head.headers.only(":authority"), &scan.model);
                Err(model_not_found(&scan.model, similar, dialect))
            }
        }
    }
}

/// What the same request says once its body was changed for an upstream.
pub(super) fn read_again(body: &[u8], head: &Head, before: RequestScan) -> Result<RequestScan, LocalResponse> {
    let content_type = head.headers.only("content-type");
    let scan = match head.operation {
        Operation::PassThrough => {
            named_model(body, content_type).map(|scan| scan.unwrap_or_else(|| RequestScan::without_model(before.model)))
        }
        operation => request::scan_as(operation, content_type, body),
    };
    scan.map_err(|error| malformed(&error, head.dialect))
}

/// The model that a body names of which nothing else is known, if it names one. Two of them are one too many for anybody, and a name that
/// only some servers take for `model` is one that nobody checked.
fn named_model(body: &[u8], content_type: Option<&str>) -> Result<Option<RequestScan>, ScanError> {
    let scan = match content_type.filter(|content_type| multipart::is_form(content_type)) {
        Some(content_type) => multipart::scan(content_type, body),
        None => request::scan(Operation::PassThrough, body),
    };
    match scan {
        Ok(RequestScan { model, model_span, model_syntax, .. }) => {
            Ok(Some(RequestScan { model_span, model_syntax, ..RequestScan::without_model(model) }))
        }
        Err(error @ (ScanError::Duplicate(_) | ScanError::Misspelt(_))) => Err(error),
        Err(_) => Ok(None),
    }
}
