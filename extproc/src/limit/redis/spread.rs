//! One operation in as many calls as it takes. On a single server that is one; in a cluster, where groups of counters lie on
//! several nodes, one for each group, all at once.
//!
//! No script can be atomic over two nodes. A reservation of which one part is refused or fails is given back where it was
//! granted. Where its fate is unknown, it is the caller's to give back, as the whole of it would be: a hold that comes later than
//! its settlement does nothing.

use futures_util::future::join_all;

use super::call::Call;
use super::part::Part;
use super::reply::Verdict;
use super::script::{GROW, RESERVE, SETTLE, Script};
use super::{Done, RedisStore};
use crate::limit::{CounterState, Growth, Hold, ReserveRequest, Settlement, StoreError};

/// How often a part is given back before it is left to its lease.
const ATTEMPTS: u32 = 3;

impl RedisStore {
    pub(super) async fn reserve_parts(&self, request: &ReserveRequest) -> Result<Done, StoreError> {
        let parts = self.parts(request.holds.iter());
        let (channel, deadline) = (&self.shared.reserving, self.shared.options.deadline);
        let calls = parts
            .iter()
            .map(|part| self.ask(channel, &RESERVE, deadline, move |known| Call::reserve(request, part, known)));
        let answers = join_all(calls).await;
        let granted: Vec<_> = granted(&parts, &answers).cloned().collect();
        let answer = together(&parts, answers, request.holds.len());
        if !is_granted(&answer) {
            granted.into_iter().for_each(|part| self.give_back(request.release(), part));
        }
        answer
    }

    /// Nobody waits for it.
    fn give_back(&self, release: Settlement, part: Part) {
        let store = self.clone();
        tokio::spawn(async move {
            for _ in 0..ATTEMPTS {
                if store.settle_part(&release, &part).await.is_ok() {
                    return;
                }
                tokio::time::sleep(store.shared.options.settle_deadline).await;
            }
        });
    }

    pub(super) async fn settle_parts(&self, settlement: &Settlement) -> Result<Done, StoreError> {
        let parts = self.parts(settlement.charges.iter().map(|charge| &charge.hold));
        let answers = join_all(parts.iter().map(|part| self.settle_part(settlement, part))).await;
        // All are tried again where one failed: settling twice is settling once.
        together(&parts, answers, settlement.charges.len())
    }

    async fn settle_part(&self, settlement: &Settlement, part: &Part) -> Result<Done, StoreError> {
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        self.ask(channel, &SETTLE, deadline, |known| Call::settle(settlement, part, known)).await
    }

    pub(super) async fn grow_parts(&self, growth: &Growth) -> Result<Done, StoreError> {
        let parts = self.parts(growth.to.holds.iter());
        let answers = join_all(parts.iter().map(|part| self.grow_part(growth, part))).await;
        let grown: Vec<_> = granted(&parts, &answers).cloned().collect();
        let answer = together(&parts, answers, growth.to.holds.len());
        match &answer {
            Ok(done) if matches!(done.verdict, Verdict::Refused(_)) => {}
            // A part that was not reached did not grow; the others did.
            Err(StoreError::Unreachable(reason)) if !grown.is_empty() => {
                return Err(StoreError::Failed(reason.clone()));
            }
            _ => return answer,
        }
        // Where it has grown, it shrinks again. If that fails, it is in doubt.
        let shrink = Growth { from: growth.to.clone(), doubt: None, to: growth.from.clone(), keeper: growth.keeper };
        for shrunk in join_all(grown.iter().map(|part| self.grow_part(&shrink, part))).await {
            if let Err(error) = shrunk {
                return Err(StoreError::Failed(error.to_string()));
            }
        }
        answer
    }

    async fn grow_part(&self, growth: &Growth, part: &Part) -> Result<Done, StoreError> {
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        self.ask(channel, &GROW, deadline, |known| Call::grow(growth, part, known)).await
    }

    pub(super) async fn run_on_counters(&self, script: &Script, holds: &[Hold]) -> Result<Done, StoreError> {
        let parts = self.parts(holds.iter());
        let (channel, deadline) = (&self.shared.settling, self.shared.options.settle_deadline);
        let calls = parts
            .iter()
            .map(|part| self.ask(channel, script, deadline, move |known| Call::of_counters(holds, part, known)));
        together(&parts, join_all(calls).await, holds.len())
    }
}

fn granted<'p>(parts: &'p [Part], answers: &'p [Result<Done, StoreError>]) -> impl Iterator<Item = &'p Part> {
    parts.iter().zip(answers).filter(|(_, answer)| is_granted(answer)).map(|(part, _)| part)
}

fn is_granted(answer: &Result<Done, StoreError>) -> bool {
    matches!(answer, Ok(done) if !matches!(done.verdict, Verdict::Refused(_)))
}

/// What the parts answered, together: the worst there is.
fn together(parts: &[Part], answers: Vec<Result<Done, StoreError>>, holds: usize) -> Result<Done, StoreError> {
    // What is certain gives way to what is not.
    let errors = answers.iter().filter_map(|answer| answer.as_ref().err());
    let is_certain = |error: &&StoreError| matches!(error, StoreError::Unreachable(_) | StoreError::NoRoom(_));
    if let Some(error) = errors.min_by_key(is_certain) {
        return Err(error.clone());
    }
    let mut answers = answers;
    if answers.len() == 1
        && let Some(only) = answers.pop()
    {
        return only;
    }
    let mut states: Vec<Option<CounterState>> = vec![None; holds];
    let mut verdict = Verdict::Done;
    #[cfg(test)]
    let mut at_ms = 0;
    for (part, done) in parts.iter().zip(answers.into_iter().flatten()) {
        for (position, state) in part.positions().iter().zip(done.states) {
            if let Some(slot) = states.get_mut(*position) {
                *slot = Some(state);
            }
        }
        if let Verdict::Refused(by) = done.verdict {
            let by = part.positions().get(by).copied().unwrap_or_default();
            verdict = match verdict {
                Verdict::Refused(first) => Verdict::Refused(first.min(by)),
                Verdict::Done | Verdict::OutsideCalendar | Verdict::Crowded => Verdict::Refused(by),
            };
        }
        #[cfg(test)]
        {
            at_ms = at_ms.max(done.at_ms);
        }
    }
    let states: Option<Vec<_>> = states.into_iter().collect();
    let states = states.ok_or_else(|| StoreError::Failed("it answered for too few counters".to_owned()))?;
    Ok(Done {
        verdict,
        #[cfg(test)]
        at_ms,
        states,
    })
}
