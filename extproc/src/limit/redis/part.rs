//! Which holds of an operation go into one script call. On a single node that is all of them; in a Cluster, where a script may
//! only touch one hash slot, each group of counters has a call of its own, with its own lease and tombstone.

use crate::limit::Hold;

/// Some holds of an operation, by their positions in it, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part(Vec<usize>);

impl Part {
    /// All of an operation's holds.
    pub(super) fn whole(holds: usize) -> Self {
        Self((0..holds).collect())
    }

    /// One part for each group of counters, in the order in which the groups come up.
    pub(super) fn by_group<'h>(holds: impl IntoIterator<Item = &'h Hold>) -> Vec<Self> {
        let mut parts: Vec<(&str, Self)> = Vec::new();
        for (position, hold) in holds.into_iter().enumerate() {
            let (group, _) = hold.counter.parts();
            match parts.iter_mut().find(|(of, _)| *of == group) {
                Some((_, part)) => part.0.push(position),
                None => parts.push((group, Self(vec![position]))),
            }
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    /// The positions.
    pub(super) fn positions(&self) -> &[usize] {
        &self.0
    }

    /// What stands at these positions.
    pub(super) fn of<'t, T>(&self, all: &'t [T]) -> impl Iterator<Item = &'t T> {
        self.0.iter().filter_map(|position| all.get(*position))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::Mode;
    use super::super::super::tests::{hold, limit};
    use super::*;

    #[test]
    fn holds_of_one_group_go_together_wherever_they_stand() {
        let limit = Arc::new(limit("a", 300, Mode::Soft));
        let holds = ["acme", "other", "acme"].map(|tenant| hold(&limit, tenant, 1));
        assert_eq!(Part::by_group(&holds), [Part(vec![0, 2]), Part(vec![1])]);
        assert_eq!(Part::whole(3), Part(vec![0, 1, 2]));
        assert_eq!(Part(vec![0, 2]).of(&["x", "y", "z"]).collect::<Vec<_>>(), [&"x", &"z"]);
    }
}
