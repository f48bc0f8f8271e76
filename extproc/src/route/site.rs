//! Which of several targets takes a request: sites come before replicas.
//!
//! A conversation has a home among the targets, by rendezvous hashing with their weights, so weights hold over conversations
//! and each stays where its beginning is in cache. The home is left only while waiting there costs a good deal more than the
//! cheapest target. What has nothing in common with other requests goes by weight alone.

use std::time::Duration;

use crate::affinity::rank::preference;

/// A target as the choice sees it.
#[derive(Debug, Clone)]
pub struct Site {
    /// What tells it from the others: the same in every sidecar, whatever else is configured.
    pub id: String,
    /// Its share among them; never 0.
    pub weight: u32,
    /// What its best replica would cost, in seconds.
    pub cost: f64,
    /// How much more than the cheapest it may cost before it is left; `None` where it is never left.
    pub patience: Option<Duration>,
}

/// A choice among sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The index of the site.
    pub site: usize,
    /// Why that one.
    pub reason: SiteReason,
}

/// Why a target was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteReason {
    /// There is no other.
    Only,
    /// It is the home of the conversation.
    Home,
    /// Nothing speaks for one of them but their weights.
    Weight,
    /// Its home, or whoever's turn it was, has too much to do.
    Load,
}

impl SiteReason {
    /// As `x-attache-decision` names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::Home => "home",
            Self::Weight => "weight",
            Self::Load => "load",
        }
    }
}

/// Chooses. `key` is what the requests of a conversation have in common; `entropy` is a fresh random number. `None` only where
/// there are no sites.
pub fn choose(sites: &[Site], key: Option<u64>, entropy: u64) -> Option<Choice> {
    if let [_] = sites {
        return Some(Choice { site: 0, reason: SiteReason::Only });
    }
    let (site, reason) = match key {
        Some(key) => (home(sites, key)?, SiteReason::Home),
        None => (by_weight(sites, entropy)?, SiteReason::Weight),
    };
    let first = sites.get(site)?;
    let (cheapest, least) = sites
        .iter()
        .enumerate()
        .map(|(index, site)| (index, site.cost))
        .min_by(|one, other| one.1.total_cmp(&other.1))?;
    let is_left = first.patience.is_some_and(|patience| first.cost > least + patience.as_secs_f64());
    Some(if is_left { Choice { site: cheapest, reason: SiteReason::Load } } else { Choice { site, reason } })
}

fn home(sites: &[Site], key: u64) -> Option<usize> {
    let preferences = sites.iter().map(|site| preference(key, &site.id, f64::from(site.weight)));
    preferences.enumerate().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| index)
}

fn by_weight(sites: &[Site], entropy: u64) -> Option<usize> {
    let total: u64 = sites.iter().map(|site| u64::from(site.weight)).sum();
    // The bias of a remainder is below 2^-32 for weights that fit 32 bits.
    let mut point = entropy.checked_rem(total)?;
    for (index, site) in sites.iter().enumerate() {
        match point.checked_sub(u64::from(site.weight)) {
            None => return Some(index),
            Some(rest) => point = rest,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    fn sites(weights: &[u32]) -> Vec<Site> {
        let site = |(index, weight): (usize, &u32)| Site {
            id: format!("default/site-{index} m"),
            weight: *weight,
            cost: 0.0,
            patience: SECOND,
        };
        weights.iter().enumerate().map(site).collect()
    }

    fn conversations() -> impl Iterator<Item = u64> {
        (0..1_000_u64).map(|number| xxh3_64(&number.to_le_bytes()))
    }

    #[test]
    fn weights_hold_over_conversations_and_each_stays_where_it_is() {
        let sites = sites(&[75, 25]);
        let mut counts = [0_i32; 2];
        for key in conversations() {
            let choices: Vec<_> = (0..10).map(|turn| choose(&sites, Some(key), turn).unwrap()).collect();
            assert!(choices.iter().all(|choice| *choice == choices[0] && choice.reason == SiteReason::Home));
            counts[choices[0].site] += 1;
        }
        // Three standard deviations of a binomial with 1,000 draws at 0.75.
        assert!((counts[0] - 750).abs() <= 41, "{counts:?}");
    }

    #[test]
    fn a_site_that_goes_moves_only_its_own_conversations() {
        let all = sites(&[1, 2, 3]);
        for key in conversations() {
            let before = choose(&all, Some(key), 0).unwrap().site;
            let after = choose(&all[..2], Some(key), 0).unwrap().site;
            assert!(before == 2 || before == after);
        }
    }

    #[test]
    fn what_has_no_key_goes_by_weight_exactly() {
        let sites = sites(&[3, 1]);
        let choices: Vec<_> = (0..1_000).map(|entropy| choose(&sites, None, entropy).unwrap()).collect();
        assert_eq!(choices.iter().filter(|choice| choice.site == 0).count(), 750);
        assert!(choices.iter().all(|choice| choice.reason == SiteReason::Weight));
    }

    #[test]
    fn an_overloaded_home_is_left_for_the_cheapest_and_only_then() {
        let mut sites = sites(&[1, 1, 1]);
        for key in conversations() {
            let home = choose(&sites, Some(key), 0).unwrap().site;
            let (cheapest, other) = ((home + 1) % 3, (home + 2) % 3);
            (sites[home].cost, sites[cheapest].cost, sites[other].cost) = (1.5, 0.5, 0.6);
            assert_eq!(choose(&sites, Some(key), 0), Some(Choice { site: home, reason: SiteReason::Home }));
            sites[home].cost = 1.6;
            assert_eq!(choose(&sites, Some(key), 0), Some(Choice { site: cheapest, reason: SiteReason::Load }));
            sites[home].patience = None;
            assert_eq!(choose(&sites, Some(key), 0), Some(Choice { site: home, reason: SiteReason::Home }));
            sites.iter_mut().for_each(|site| (site.cost, site.patience) = (0.0, SECOND));
        }
    }

    #[test]
    fn one_site_is_no_choice_and_none_is_none() {
        assert_eq!(choose(&sites(&[1]), Some(1), 1), Some(Choice { site: 0, reason: SiteReason::Only }));
        assert_eq!(choose(&[], Some(1), 1), None);
        // All out of replicas cost the same.
        let mut empty = sites(&[1, 1]);
        empty.iter_mut().for_each(|site| site.cost = f64::MAX);
        assert_eq!(choose(&empty, None, 1).unwrap().reason, SiteReason::Weight);
    }
}
