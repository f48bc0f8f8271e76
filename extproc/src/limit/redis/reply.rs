//! What the scripts answer: a verdict, the time, and each counter in its 44 bytes. It comes off a wire, so nothing is believed
//! of it but what can be read.

use redis::Value;

use super::floors::Floor;
use crate::limit::StoreError;
use crate::limit::counter::Counter;

/// The answer to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// Redis's time, in milliseconds since the epoch.
    pub(super) now_ms: u64,
    /// In the order of the call's holds; none where nothing happened.
    pub(super) counters: Vec<Packed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is done, or a settlement was done before.
    Done,
    /// This hold of the call is refused.
    Refused(usize),
    /// Nothing happened: the calendar that was sent does not hold the present.
    OutsideCalendar,
    /// Nothing happened: the request's key has made as many counters as there is room for.
    Crowded,
}

/// A counter as Redis keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packed {
    floor: Floor,
    held: u64,
}

impl Answer {
    /// Reads the answer to a call about so many counters.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when it is no such answer.
    pub(super) fn read(value: &Value, counters: usize) -> Result<Self, StoreError> {
        Self::try_read(value, counters).ok_or_else(|| StoreError::Failed(format!("it answered {value:?}")))
    }

    fn try_read(value: &Value, counters: usize) -> Option<Self> {
        const OUTSIDE: i64 = -1;
        const CROWDED: i64 = -2;
        let [Value::Int(verdict), Value::Int(now_ms), packed @ ..] = value.as_sequence()? else {
            return None;
        };
        let now_ms = u64::try_from(*now_ms).ok()?;
        let verdict = match *verdict {
            OUTSIDE => return Some(Self { verdict: Verdict::OutsideCalendar, now_ms, counters: Vec::new() }),
            CROWDED => return Some(Self { verdict: Verdict::Crowded, now_ms, counters: Vec::new() }),
            verdict => match usize::try_from(verdict).ok()?.checked_sub(1) {
                None => Verdict::Done,
                Some(by) => Verdict::Refused(by),
            },
        };
        let packed: Vec<_> = packed.iter().map(Packed::read).collect::<Option<_>>()?;
        let fits = packed.len() == counters && !matches!(verdict, Verdict::Refused(by) if by >= counters);
        fits.then_some(Self { verdict, now_ms, counters: packed })
    }
}

impl Packed {
    /// As `common.lua` packs it: `<I4I4I4dddd`. What was restored is the scripts' own business.
    fn read(value: &Value) -> Option<Self> {
        let Value::BulkString(bytes) = value else {
            return None;
        };
        let (bucket, bytes) = bytes.split_first_chunk()?;
        let (epoch, bytes) = bytes.split_first_chunk()?;
        let (life, bytes) = bytes.split_first_chunk()?;
        let (_restored, bytes) = bytes.split_first_chunk::<8>()?;
        let (settled, bytes) = bytes.split_first_chunk()?;
        let (previous, bytes) = bytes.split_first_chunk()?;
        let held = bytes.try_into().ok()?;
        // Whole numbers from 0 to 2^53; of anything else, the nearest of those.
        let count = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes) as u64;
        let floor = Floor {
            bucket: u64::from(u32::from_le_bytes(*bucket)),
            epoch: u32::from_le_bytes(*epoch),
            settled: count(settled),
            previous: count(previous),
            life: u32::from_le_bytes(*life),
        };
        Some(Self { floor, held: count(held) })
    }

    /// What it says for later.
    pub(super) fn floor(&self) -> Floor {
        self.floor
    }

    pub(super) fn counter(&self) -> Counter {
        let Floor { bucket, epoch, settled, previous, life: _ } = self.floor;
        Counter::kept(bucket, epoch, settled, previous, self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(bucket: u32, epoch: u32, counts: [f64; 3]) -> Value {
        let mut bytes = [bucket.to_le_bytes(), epoch.to_le_bytes()].concat();
        bytes.extend([7; 12]);
        bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        Value::BulkString(bytes)
    }

    fn answer(verdict: i64, counters: &[Value]) -> Value {
        let mut values = vec![Value::Int(verdict), Value::Int(1_000)];
        values.extend_from_slice(counters);
        Value::Array(values)
    }

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let one = [packed(7, 1, [3.0, 2.0, 1.0])];
        let read = Answer::read(&answer(1, &one), 1).unwrap();
        assert_eq!((read.verdict, read.now_ms), (Verdict::Refused(0), 1_000));
        assert_eq!(read.counters[0].counter(), Counter::kept(7, 1, 3, 2, 1));
        assert_eq!(Answer::read(&answer(0, &one), 1).unwrap().verdict, Verdict::Done);
        assert_eq!(Answer::read(&answer(-1, &[]), 1).unwrap().verdict, Verdict::OutsideCalendar);
        assert_eq!(Answer::read(&answer(-2, &[]), 1).unwrap().verdict, Verdict::Crowded);
        for wrong in [
            answer(2, &one),
            answer(-3, &one),
            answer(0, &[]),
            answer(0, &[Value::Int(7)]),
            answer(0, &[Value::BulkString(vec![0; 43])]),
            Value::Array(vec![Value::Int(0)]),
            Value::Nil,
        ] {
            assert!(matches!(Answer::read(&wrong, 1), Err(StoreError::Failed(_))), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange_to_be_read(bytes in prop::collection::vec(any::<u8>(), 44)) {
            let read = Answer::read(&answer(0, &[Value::BulkString(bytes)]), 1).unwrap();
            prop_assert_eq!(read.counters.len(), 1);
        }
    }
}
