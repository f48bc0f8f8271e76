//! Every seed of every fuzz target keeps its law.

use std::fs;
use std::path::Path;

use attache_laws::LAWS;

#[test]
fn every_seed_keeps_its_law_and_every_law_has_seeds() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for &(name, law) in LAWS {
        let seeds: Vec<_> = fs::read_dir(directory.join(name)).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(seeds.len() >= 3, "{name} has {} seeds", seeds.len());
        for seed in seeds {
            let input = fs::read(&seed).unwrap();
            let kept = std::panic::catch_unwind(|| law(&input));
            assert!(kept.is_ok(), "{} breaks the law of {name}", seed.display());
        }
    }
}

#[test]
fn every_law_is_a_fuzz_target_and_the_other_way_round() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    let targets: Vec<_> = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")).collect();
    let laws: Vec<_> = LAWS.iter().map(|(name, _)| format!("{name}.rs\"")).collect();
    assert_eq!(targets, laws);
}
