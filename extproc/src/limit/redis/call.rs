//! One script call: its keys and its arguments, which `common.lua` reads.
//!
//! Keys are `att1:{<group>}:<limit>:<window>:<counter>`, `att1:{<group>}:leases` and `att1:{<group>}:settled:<id>`. Group, limit
//! and counter are hashes, a window is named in letters that cannot end a part early: no clear text of anybody's. The window is
//! in the key, the amount is not: a changed amount acts on the next request. A reservation has one lease for each group it
//! holds of, so whoever next asks for a counter of that group gives back what a dead sidecar held.

use std::fmt::Write;

use redis::Cmd;
use xxhash_rust::xxh3::xxh3_64;

use super::floors::{Floor, FloorKey};
use super::known::Known;
use super::part::Part;
use super::reply::Answer;
use super::script::Script;
use crate::limit::{
    Charge, CounterState, Dimension, Enforcement, Growth, Hold, Mode, ReservationId, ReserveRequest, Settlement, Window,
};

/// Keys and arguments of one call, all of one hash slot if its part is of one group.
pub(super) struct Call<'h> {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
    counters: Vec<(FloorKey, &'h Hold)>,
}

impl<'h> Call<'h> {
    /// Of keys in one slot and arguments as they are.
    pub(super) fn plain(keys: Vec<String>, arguments: Vec<Vec<u8>>) -> Self {
        Self { keys, arguments, counters: Vec::new() }
    }

    /// What a part of a reservation asks for.
    pub(super) fn reserve(request: &'h ReserveRequest, part: &Part, known: &Known) -> Self {
        let counters = part.of(&request.holds).map(|hold| Counted {
            hold,
            refuses: match hold.limit.enforcement {
                Enforcement::Refuse => Refuses::Beyond(hold.limit.admission()),
                Enforcement::Shadow => Refuses::Never,
            },
            number: hold.ceiling,
        });
        let call = Self::new(Some(&request.id), counters.collect(), &[amounts(&request.holds, part)], known);
        call.with_made(request.key_id.as_deref(), known.share_of_room())
    }

    /// Where the client makes counters, by values of a header: with the counter of those that its key has made. It is one of a sliding
    /// window as long as they live unused.
    fn with_made(mut self, key_id: Option<&str>, at_most: u64) -> Self {
        let by_header = |hold: &Hold| hold.limit.per.iter().any(|dimension| matches!(dimension, Dimension::Header(_)));
        let holds = self.counters.iter().map(|(_, hold)| *hold).filter(|hold| by_header(hold));
        let Some(made_of) = holds.max_by_key(|hold| hold.limit.time_to_live_ms()) else { return self };
        let lives_ms = made_of.limit.time_to_live_ms();
        let made = Argument {
            set: 0,
            kind: SLIDING,
            mode: 4,
            length_ms: lives_ms,
            time_to_live_ms: lives_ms.saturating_mul(2),
            amount: 0,
            number: at_most,
            floor: Floor::default(),
        };
        // Everybody without a key is one.
        let (limit, owner) = (xxh3_64(b"made"), xxh3_64(key_id.unwrap_or_default().as_bytes()));
        let key = format!("att1:{{{}}}:{limit:016x}:s{lives_ms}:{owner:016x}", made_of.counter.parts().0);
        // Before the tombstone.
        self.keys.insert(self.keys.len().saturating_sub(1), key);
        self.arguments.push(made.packed().0);
        self
    }

    /// What a part of a growth asks for.
    pub(super) fn grow(growth: &'h Growth, part: &Part, known: &Known) -> Self {
        let versions = [
            amounts(&growth.from.holds, part),
            growth.doubt.as_ref().map(|doubt| amounts(&doubt.holds, part)).unwrap_or_default(),
            amounts(&growth.to.holds, part),
        ];
        let counters = part.of(&growth.to.holds).zip(part.of(&growth.from.holds)).map(|(to, from)| Counted {
            hold: to,
            refuses: match to.is_capped() && to.amount() > from.amount() {
                true => Refuses::Beyond(Mode::Strict),
                false => Refuses::Never,
            },
            number: to.ceiling,
        });
        Self::new(Some(&growth.to.id), counters.collect(), &versions, known)
    }

    /// What a part of a settlement charges and gives back.
    pub(super) fn settle(settlement: &'h Settlement, part: &Part, known: &Known) -> Self {
        let versions = [
            part.of(&settlement.charges).map(|charge| charge.hold.amount()).collect(),
            settlement.doubt.as_ref().map(|doubt| amounts(&doubt.holds, part)).unwrap_or_default(),
        ];
        let counters = part.of(&settlement.charges).map(|Charge { hold, actual }| Counted {
            hold,
            refuses: Refuses::Never,
            number: *actual,
        });
        Self::new(Some(&settlement.id), counters.collect(), &versions, known)
    }

    /// A look at the counters of some holds, or their reset.
    pub(super) fn of_counters(holds: &'h [Hold], part: &Part, known: &Known) -> Self {
        let counters = part.of(holds).map(|hold| Counted { hold, refuses: Refuses::Never, number: 0 });
        Self::new(None, counters.collect(), &[], known)
    }

    /// `versions` are what may be held of the counters, each in their order, or empty for nothing.
    fn new(id: Option<&ReservationId>, counters: Vec<Counted<'h>>, versions: &[Vec<u64>], known: &Known) -> Self {
        let mut groups: Vec<&str> = Vec::new();
        for counter in counters.iter().filter(|counter| counter.may_hold()) {
            if !groups.contains(&counter.group()) {
                groups.push(counter.group());
            }
        }
        let names: Vec<_> = counters.iter().map(Counted::name).collect();
        let mut keys: Vec<_> = groups.iter().map(|group| format!("att1:{{{group}}}:leases")).collect();
        keys.extend(counters.iter().zip(&names).map(|(counter, name)| format!("att1:{{{}}}:{name}", counter.group())));
        let floor_keys: Vec<_> = keys.iter().skip(groups.len()).map(|key| FloorKey::of(key)).collect();
        if let (Some(id), Some(first)) = (id, counters.first()) {
            keys.push(format!("att1:{{{}}}:settled:{}", first.group(), id.0));
        }

        let mut arguments = vec![groups.len().to_string().into_bytes()];
        for group in &groups {
            for version in versions {
                let holds = counters.iter().zip(&names).zip(version).filter(|((c, _), _)| c.group() == *group);
                let holds = holds.map(|((_, name), amount)| (name.as_str(), *amount));
                arguments.push(member(id, holds).into_bytes());
            }
        }
        let now_ms = known.now_ms();
        for (counter, floor) in counters.iter().zip(known.floors(&floor_keys)) {
            // Counted from 1; 0 for a limit that never holds. No request has as many groups as would not fit.
            let set = groups.iter().position(|group| counter.may_hold() && counter.group() == *group);
            let set = set.and_then(|index| u16::try_from(index + 1).ok()).unwrap_or(0);
            arguments.push(counter.argument(set, floor, now_ms));
        }
        let counters = floor_keys.into_iter().zip(counters).map(|(key, counter)| (key, counter.hold)).collect();
        Self { keys, arguments, counters }
    }

    /// One of its keys: all lie in its slot, if the part is of one group.
    pub(super) fn slot_key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    /// How many counters its answer is about.
    pub(super) fn counters(&self) -> usize {
        self.counters.len()
    }

    /// How the counters stood, by the answer.
    pub(super) fn states(&self, answer: &Answer) -> Vec<CounterState> {
        let counters = self.counters.iter().zip(&answer.counters);
        counters.map(|((_, hold), packed)| packed.counter().state(&hold.limit.window, answer.now_ms)).collect()
    }

    /// What the answer says for later calls.
    pub(super) fn floors(&self, answer: &Answer) -> impl Iterator<Item = (FloorKey, Floor)> {
        self.counters.iter().zip(&answer.counters).map(|((key, _), packed)| (*key, packed.floor()))
    }

    pub(super) fn by_hash(&self, script: &Script) -> Cmd {
        self.command("EVALSHA", &script.sha1)
    }

    pub(super) fn by_text(&self, script: &Script) -> Cmd {
        self.command("EVAL", &script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

fn amounts(holds: &[Hold], part: &Part) -> Vec<u64> {
    part.of(holds).map(Hold::amount).collect()
}

/// A lease set's member for a reservation that holds this of the set's counters: empty if it holds nothing.
fn member<'n>(id: Option<&ReservationId>, holds: impl Iterator<Item = (&'n str, u64)>) -> String {
    let mut member = String::new();
    for (name, amount) in holds.filter(|(_, amount)| *amount > 0) {
        if member.is_empty() {
            member.push_str(id.map_or("", |id| &id.0));
        }
        // Writing to a string cannot fail.
        let _ = write!(member, " {name} {amount}");
    }
    member
}

/// One counter of a call.
struct Counted<'h> {
    hold: &'h Hold,
    refuses: Refuses,
    /// Whatever the script makes of it.
    number: u64,
}

/// Whether a call may be refused for a counter.
enum Refuses {
    /// Where this mode does not admit it.
    Beyond(Mode),
    Never,
}

impl Counted<'_> {
    fn group(&self) -> &str {
        self.hold.counter.parts().0
    }

    /// The last three parts of its key.
    fn name(&self) -> String {
        let Hold { limit, counter, .. } = self.hold;
        format!("{:016x}:{}:{}", xxh3_64(limit.id.as_bytes()), limit.window, counter.parts().1)
    }

    fn may_hold(&self) -> bool {
        self.hold.limit.admission() != Mode::Check
    }

    fn argument(&self, set: u16, floor: Floor, now_ms: u64) -> Vec<u8> {
        let limit = &self.hold.limit;
        let (kind, calendar) = match &limit.window {
            Window::Fixed(_) => (0, None),
            Window::Sliding(_) => (SLIDING, None),
            Window::Calendar(calendar) => (2, Some(calendar)),
        };
        let mode = match self.refuses {
            Refuses::Beyond(Mode::Soft) => 0,
            Refuses::Beyond(Mode::Strict) => 1,
            Refuses::Beyond(Mode::Check) => 2,
            Refuses::Never => 3,
        };
        let argument = Argument {
            set,
            kind,
            mode,
            length_ms: u64::try_from(limit.window.longest().as_millis()).unwrap_or(u64::MAX),
            time_to_live_ms: limit.time_to_live_ms(),
            amount: self.hold.amount(),
            number: self.number,
            floor,
        };
        let mut argument = argument.packed();
        if let Some(calendar) = calendar {
            let buckets = calendar.around(now_ms);
            buckets.iter().for_each(|bucket| argument.index(bucket.index));
            buckets.iter().for_each(|bucket| argument.number(bucket.start_ms));
            buckets.last().into_iter().for_each(|bucket| argument.number(bucket.end_ms));
        }
        argument.0
    }
}

/// Of a window, as `common.lua` knows it.
const SLIDING: u8 = 1;

/// What is said of a counter.
struct Argument {
    set: u16,
    kind: u8,
    mode: u8,
    length_ms: u64,
    time_to_live_ms: u64,
    amount: u64,
    number: u64,
    floor: Floor,
}

impl Argument {
    /// As `common.lua` reads it: `<I2BBddddI4I4ddI4`, after which a calendar has `<I4I4I4dddd`. Small numbers as bytes, the rest as
    /// doubles, as Lua has no other numbers: no text to be parsed while everybody waits.
    fn packed(self) -> Packer {
        let mut packed = Packer::default();
        packed.0.extend(self.set.to_le_bytes());
        packed.0.extend([self.kind, self.mode]);
        packed.number(self.length_ms);
        packed.number(self.time_to_live_ms);
        packed.number(self.amount);
        packed.number(self.number);
        packed.index(u64::from(self.floor.epoch));
        packed.index(self.floor.bucket);
        packed.number(self.floor.settled);
        packed.number(self.floor.previous);
        packed.index(u64::from(self.floor.life));
        packed
    }
}

#[derive(Default)]
struct Packer(Vec<u8>);

impl Packer {
    fn index(&mut self, index: u64) {
        self.0.extend(u32::try_from(index).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn number(&mut self, number: u64) {
        self.0.extend((number as f64).to_le_bytes());
    }
}
