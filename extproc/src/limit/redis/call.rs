//! One operation as a script's keys and arguments; `common.lua` says what they are.
//!
//! Keys are `att1:{<group>}:<limit>:<window in ms>:<counter>`, `att1:{<group>}:leases` and `att1:{<group>}:settled:<id>`. All
//! parts are hashes or numbers: no clear text, and no character that could end a part early. The window is in the key, the
//! amount is not: a changed amount acts on the next request. A reservation has one lease for each group it holds of, so
//! whoever next asks for a counter of that group gives back what a dead sidecar held.

use std::fmt::Write;

use redis::Cmd;
use xxhash_rust::xxh3::xxh3_64;

use super::script::Script;
use crate::limit::store::{LEASE_MS, SWEEP_AT_MOST, TOMBSTONE_MS};
use crate::limit::{Hold, Mode, ReservationId, ReserveRequest, Settlement};

pub(super) struct Call {
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl Call {
    /// Of keys in one slot and arguments as they are.
    pub(super) fn plain(keys: Vec<String>, arguments: Vec<String>) -> Self {
        Self { keys, arguments }
    }

    pub(super) fn reserve(request: &ReserveRequest) -> Self {
        Self::new(&request.id, &request.holds.iter().collect::<Vec<_>>(), |index, arguments| {
            if let Some(hold) = request.holds.get(index) {
                arguments.push(mode(hold).to_owned());
                arguments.push(hold.limit.amount.to_string());
            }
        })
    }

    pub(super) fn settle(settlement: &Settlement) -> Self {
        let holds: Vec<_> = settlement.charges.iter().map(|charge| &charge.hold).collect();
        Self::new(&settlement.id, &holds, |index, arguments| {
            if let Some(charge) = settlement.charges.get(index) {
                arguments.push(charge.actual.to_string());
            }
        })
    }

    pub(super) fn renew(request: &ReserveRequest) -> Self {
        Self::new(&request.id, &request.holds.iter().collect::<Vec<_>>(), |_, _| {})
    }

    /// `own` adds what the script reads of each hold for itself.
    fn new(id: &ReservationId, holds: &[&Hold], own: impl Fn(usize, &mut Vec<String>)) -> Self {
        let leases = Leases::new(id, holds);
        let group = holds.first().map_or("", |hold| hold.counter.parts().0);
        let mut keys = vec![format!("att1:{{{group}}}:settled:{}", id.0)];
        keys.extend(leases.0.iter().map(|lease| format!("att1:{{{}}}:leases", lease.group)));
        keys.extend(holds.iter().map(|hold| format!("att1:{{{}}}:{}", hold.counter.parts().0, counter_name(hold))));

        let mut arguments =
            vec![leases.0.len().to_string(), LEASE_MS.to_string(), TOMBSTONE_MS.to_string(), SWEEP_AT_MOST.to_string()];
        arguments.extend(leases.0.iter().map(|lease| lease.member.clone()));
        for (index, hold) in holds.iter().enumerate() {
            arguments.push(hold.limit.window.longest().as_millis().to_string());
            arguments.push(hold.limit.time_to_live_ms().to_string());
            arguments.push(leases.of(hold).to_string());
            arguments.push(hold.amount().to_string());
            own(index, &mut arguments);
        }
        Self { keys, arguments }
    }

    pub(super) fn by_hash(&self, script: &Script) -> Cmd {
        self.command("EVALSHA", &script.sha1)
    }

    pub(super) fn by_text(&self, script: &Script) -> Cmd {
        self.command("EVAL", script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

fn mode(hold: &Hold) -> &'static str {
    match hold.limit.admission() {
        Mode::Soft => "soft",
        Mode::Strict => "strict",
        Mode::Check => "check",
    }
}

/// The last three parts of a counter's key.
fn counter_name(hold: &Hold) -> String {
    format!("{:016x}:{}:{}", xxh3_64(hold.limit.id.as_bytes()), hold.limit.window, hold.counter.parts().1)
}

/// One lease for each group of counters, in the order in which the groups come up.
struct Leases<'h>(Vec<Lease<'h>>);

struct Lease<'h> {
    group: &'h str,
    /// Empty where the request holds nothing of the group: then the set is only swept.
    member: String,
}

impl<'h> Leases<'h> {
    fn new(id: &ReservationId, holds: &[&'h Hold]) -> Self {
        let mut leases: Vec<Lease<'h>> = Vec::new();
        for hold in holds.iter().filter(|hold| hold.limit.admission() != Mode::Check) {
            let (group, _) = hold.counter.parts();
            let index = leases.iter().position(|lease| lease.group == group).unwrap_or_else(|| {
                leases.push(Lease { group, member: String::new() });
                leases.len() - 1
            });
            let Some(lease) = leases.get_mut(index).filter(|_| hold.amount() > 0) else {
                continue;
            };
            if lease.member.is_empty() {
                lease.member.push_str(&id.0);
            }
            // Writing to a string cannot fail.
            let _ = write!(lease.member, " {} {}", counter_name(hold), hold.amount());
        }
        Self(leases)
    }

    /// The number of the hold's lease set, counted from 1; 0 for a limit that never holds.
    fn of(&self, hold: &Hold) -> usize {
        let (group, _) = hold.counter.parts();
        match hold.limit.admission() {
            Mode::Soft | Mode::Strict => {
                self.0.iter().position(|lease| lease.group == group).map_or(0, |index| index + 1)
            }
            Mode::Check => 0,
        }
    }
}
