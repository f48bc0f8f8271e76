//! What an Envoy and a sidecar say of themselves, and what it is that answers where they were thought to be.

use std::io;
use std::time::Duration;

use attache::doctor::Evidence;
use http::Method;
use serde_json::Value;

use super::{LONGEST_DUMP_BYTES, parse};
use crate::cli::http::{Answer, Bounds, Fault, ask};

/// A large dump takes seconds to be made.
const OF_ENVOY: Bounds = Bounds { patience: Duration::from_secs(30), longest_bytes: LONGEST_DUMP_BYTES };
/// Pages from memory, without a question to the store.
const OF_SIDECAR: Bounds = Bounds { patience: Duration::from_secs(5), longest_bytes: 16 * 1024 * 1024 };

/// Asks Envoy's admin interface for its configuration and its counters.
pub(super) fn envoy(admin: &str) -> Result<Evidence, String> {
    let wanted = "Envoy's admin interface";
    let hint = "say where that is with --admin: `admin` of the bootstrap, port 19000 of the pod under Envoy Gateway";
    let dump = page(admin, "/config_dump?include_eds", OF_ENVOY)
        .and_then(|page| page.filter(|page| page.get("configs").is_some_and(Value::is_array)).ok_or(Mistaken::Other));
    let dump = dump.map_err(|mistaken| mistaken.explained(admin, wanted, hint))?;
    let mut evidence = Evidence { dump, ..Evidence::default() };
    for (target, counters) in [
        ("/stats?format=json", &mut evidence.stats),
        ("/clusters?format=json", &mut evidence.clusters),
        // Last: its age is held against that of the sidecar, which is asked next.
        ("/server_info", &mut evidence.server_info),
    ] {
        match page(admin, target, OF_ENVOY) {
            Ok(Some(page)) => *counters = page,
            Ok(None) | Err(_) => evidence.unread.push(format!("{target} of {admin}")),
        }
    }
    Ok(evidence)
}

/// Asks a sidecar's admin port what it may choose, and whether it is asked. One that does not answer is evidence, too.
///
/// # Errors
/// For an address that is none, or is another's.
pub(super) fn sidecar(admin: &str, token: Option<&str>, evidence: &mut Evidence) -> Result<(), String> {
    let hint = "say where that is with --sidecar-admin: `attache run --admin-listen`, port 10002 by default";
    for (target, member, into) in
        [("/config", "backends", &mut evidence.sidecar), ("/attached", "attached", &mut evidence.attached)]
    {
        let page = page_with(admin, token, target, OF_SIDECAR)
            .and_then(|page| page.filter(|page| page.get(member).is_some()).ok_or(Mistaken::Other));
        match page {
            Ok(page) => *into = page,
            Err(Mistaken::Fault(fault)) if is_silence(&fault) => {
                evidence.silence = Some(format!("at {admin}, {target}: {fault}"));
                break;
            }
            Err(Mistaken::Token) => {
                return Err(format!(
                    "the sidecar's admin port at {admin} demands a token: name its file with --admin-token-file"
                ));
            }
            Err(mistaken) => return Err(mistaken.explained(admin, "a sidecar's admin port", hint)),
        }
    }
    Ok(())
}

/// Whether a sidecar may be there, and be down or hang, so that all else is worth examining.
fn is_silence(fault: &Fault) -> bool {
    match fault {
        Fault::Unreachable(error) => error.kind() != io::ErrorKind::InvalidInput,
        Fault::Silent(_) | Fault::Cut | Fault::TooLong(_) => true,
        Fault::Grpc | Fault::Scheme(_) | Fault::Path => false,
    }
}

/// Why a page is not there.
enum Mistaken {
    /// No answer.
    Fault(Fault),
    /// It wants to be told a token.
    Token,
    /// An answer of somebody else.
    Other,
}

impl Mistaken {
    fn explained(self, address: &str, wanted: &str, hint: &str) -> String {
        match self {
            Self::Fault(Fault::Grpc) => {
                format!("{address} is a gRPC port, such as the sidecar's --extproc-listen, and not {wanted}; {hint}")
            }
            Self::Fault(fault) => format!("no answer from {wanted} at {address}: {fault}; {hint}"),
            Self::Token | Self::Other => format!("{address} is {}, and not {wanted}; {hint}", what_answers(address)),
        }
    }
}

/// A page of JSON; `None` for an answer that is no such page.
fn page(address: &str, target: &str, bounds: Bounds) -> Result<Option<Value>, Mistaken> {
    page_with(address, None, target, bounds)
}

/// The same for those who know the token.
fn page_with(address: &str, token: Option<&str>, target: &str, bounds: Bounds) -> Result<Option<Value>, Mistaken> {
    let answer = ask(Method::GET, address, token, target, b"", bounds).map_err(Mistaken::Fault)?;
    if answer.status == 401 {
        return Err(Mistaken::Token);
    }
    Ok(Some(answer).filter(|answer| answer.status == 200).and_then(|answer| parse(&answer.body).ok()))
}

/// What it is that speaks HTTP there, by what it has to say.
fn what_answers(address: &str) -> &'static str {
    let has = |target: &str, member: &str| {
        page(address, target, OF_SIDECAR).ok().flatten().is_some_and(|page| page.get(member).is_some())
    };
    if has("/attached", "last_refusal") {
        return "a sidecar's admin port";
    }
    if has("/server_info", "command_line_options") {
        return "Envoy's admin interface";
    }
    match ask(Method::GET, address, None, "/", b"", OF_SIDECAR) {
        Ok(Answer { server, .. }) if server == "envoy" => "a listener of an Envoy, where clients call",
        _ => "an HTTP server of another kind, or a listener where clients call",
    }
}
