use proptest::prelude::*;

use super::*;

fn account(figures: &[(Figure, &str)]) -> Option<Account> {
    let mut counts = Figures::default();
    for (figure, number) in figures {
        counts.read(*figure, number.as_bytes());
    }
    counts.account()
}

fn usage(figures: &[(Figure, &str)]) -> Option<Usage> {
    Some(account(figures)?.usage)
}

fn sides(input: u64, output: u64) -> Usage {
    Usage { input, output, total: input + output, ..Usage::default() }
}

#[test]
fn two_of_input_output_and_total_tell_the_third() {
    use Figure::*;
    let told = |figures| account(figures).map(|account| (account.usage, account.told));
    assert_eq!(told(&[(Prompt, "7"), (Completion, "3"), (Total, "10")]), Some((sides(7, 3), Told::Both)));
    assert_eq!(told(&[(Prompt, "7"), (Completion, "3")]), Some((sides(7, 3), Told::Both)));
    assert_eq!(told(&[(Prompt, "7"), (Total, "10")]), Some((sides(7, 3), Told::Both)));
    assert_eq!(told(&[(Completion, "3"), (Total, "10")]), Some((sides(7, 3), Told::Both)));
    assert_eq!(told(&[(Prompt, "7"), (Total, "6")]), Some((sides(7, 0), Told::Input)));
    assert_eq!(told(&[(Completion, "7"), (Total, "6")]), Some((sides(0, 7), Told::Output)));
    assert_eq!(told(&[(Total, "10")]), Some((sides(10, 0), Told::Both)));
    assert_eq!(told(&[(Prompt, "7")]), Some((sides(7, 0), Told::Input)));
    assert_eq!(told(&[(Output, "3")]), Some((sides(0, 3), Told::Output)));
    assert_eq!(told(&[]), None);
    assert_eq!(told(&[(Reasoning, "3"), (Cached, "3"), (AudioSeconds, "3")]), None);
}

#[test]
fn a_total_that_is_larger_than_its_parts_has_output_in_it_and_a_smaller_one_is_wrong() {
    use Figure::*;
    assert_eq!(usage(&[(Prompt, "20"), (Completion, "198"), (Total, "623")]), Some(sides(20, 603)));
    assert_eq!(usage(&[(Prompt, "20"), (Completion, "198"), (Total, "3")]), Some(sides(20, 198)));
    let audio = [(Prompt, "4"), (Completion, "635"), (Total, "3264"), (AudioSeconds, "203")];
    assert_eq!(usage(&audio), Some(sides(2629, 635)));
}

#[test]
fn a_part_is_at_most_its_whole_and_reasoning_beyond_the_output_is_added_to_it() {
    use Figure::*;
    let cached = usage(&[(Prompt, "5"), (Completion, "2"), (Cached, "9"), (CacheWritten, "9")]);
    assert_eq!(cached, Some(Usage { cached_input: 5, ..sides(5, 2) }));
    let written = usage(&[(Prompt, "5"), (Completion, "2"), (Cached, "3"), (CacheWritten, "9")]);
    assert_eq!(written, Some(Usage { cached_input: 3, cache_creation_input: 2, ..sides(5, 2) }));
    let reasoning = usage(&[(Prompt, "5"), (Completion, "2"), (Reasoning, "9")]);
    assert_eq!(reasoning, Some(Usage { reasoning: 9, ..sides(5, 11) }));
}

#[test]
fn what_is_written_to_a_cache_counts_once_under_whatever_names() {
    use Figure::*;
    let expected = Some(Usage { cached_input: 3, cache_creation_input: 9, ..sides(20, 2) });
    let names = [CacheWritten, CacheCreated, CacheCreatedInput, CreatedCache, CacheCreatedLong, CacheCreation];
    for name in names {
        let told = [(Prompt, "20"), (Completion, "2"), (Cached, "3"), (name, "9")];
        assert_eq!(usage(&told), expected, "{name:?}");
        // As LiteLLM has it: under its own name, in parts, and beside the prompt under Anthropic's.
        let parts = [(CacheCreatedShort, "4"), (CacheCreatedLong, "5"), (CacheCreation, "9"), (CacheRead, "3")];
        assert_eq!(usage(&[&told[..], &parts].concat()), expected, "{name:?}");
    }
    let responses = [(Input, "20"), (Output, "2"), (Cached, "3"), (CacheWritten, "9"), (CacheCreated, "0")];
    assert_eq!(usage(&responses), expected);
}

#[test]
fn what_anthropics_cache_gave_and_took_is_input_once() {
    use Figure::*;
    let parts = [(CacheCreationShort, "60"), (CacheCreationLong, "40")];
    let expected = Usage { cached_input: 2000, cache_creation_input: 100, ..sides(2104, 7) };
    let base = [(Input, "4"), (CacheRead, "2000"), (Output, "7")];
    for created in [vec![(CacheCreation, "100")], parts.to_vec(), [&[(CacheCreation, "100")], &parts[..]].concat()] {
        assert_eq!(usage(&[&base[..], &created].concat()), Some(expected), "{created:?}");
    }
    let translated = usage(&[(Prompt, "2104"), (Completion, "7"), (CacheRead, "2000")]);
    assert_eq!(translated, Some(Usage { cached_input: 2000, ..sides(2104, 7) }));
}

#[test]
fn what_llama_cpp_reused_is_input_and_unknown_where_it_does_not_say() {
    use Figure::*;
    let told = |figures| account(figures).map(|account| (account.usage, account.told));
    let all = told(&[(Evaluated, "1"), (Reused, "236"), (Predicted, "35")]);
    assert_eq!(all, Some((Usage { cached_input: 236, ..sides(237, 35) }, Told::Both)));
    assert_eq!(told(&[(Evaluated, "1"), (Predicted, "35")]), Some((sides(0, 35), Told::Output)));
}

#[test]
fn later_counts_of_the_same_answer_never_lower_earlier_ones() {
    use Figure::*;
    let start = account(&[(Input, "100"), (CacheRead, "0"), (Output, "1")]).unwrap();
    let cached = account(&[(Input, "10"), (CacheRead, "90"), (Output, "15")]).unwrap();
    let expected =
        Account { usage: Usage { cached_input: 90, ..sides(100, 15) }, beyond: Usage::default(), told: Told::Both };
    assert_eq!(start.updated(cached), expected);
    assert_eq!(cached.updated(start), expected);
    let input = account(&[(Input, "100")]).unwrap();
    let output = account(&[(Output, "7")]).unwrap();
    assert_eq!(input.updated(output), Account { usage: sides(100, 7), beyond: Usage::default(), told: Told::Both });
    assert_eq!(input.updated(input).told, Told::Input);
}

#[test]
fn what_is_no_count_is_ignored() {
    use Figure::*;
    for absurd in [
        "-1",
        "1.5",
        "9007199254740993.0e3",
        "1e300",
        "1e400",
        "99999999999999999999",
        "-0.5",
        "",
        "-",
        "1e",
        "0x7",
        "inf",
        "NaN",
        "\u{661}",
    ] {
        assert_eq!(usage(&[(Prompt, "3"), (Completion, absurd), (Total, absurd)]), Some(sides(3, 0)), "{absurd}");
    }
    assert_eq!(usage(&[(Prompt, "3"), (Prompt, "-5")]), Some(sides(3, 0)));
    assert_eq!(usage(&[(Prompt, "9007199254740992"), (Completion, "12.0")]), Some(sides(1 << 53, 12)));
}

#[test]
fn what_is_not_told_is_filled_in_and_never_lowers_what_is() {
    let told = Usage { cached_input: 5, ..sides(7, 3) };
    assert_eq!(told.at_least(9, 2), Usage { cached_input: 5, ..sides(9, 3) });
    assert_eq!(told.at_least(u64::MAX, 4).total, u64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn every_account_is_consistent_and_none_is_lower_than_what_was_said(
        figures in prop::collection::vec((0..24_usize, prop_oneof![0..50_u64, 0..=1_u64 << 53]), 0..12),
    ) {
        use Figure::*;
        let all = [
            Prompt, Input, Completion, Output, Total, Cached, CacheHit, CachedBeside, CacheRead, CacheCreation,
            CacheCreationShort, CacheCreationLong, CacheWritten, CacheCreated, CacheCreatedInput, CreatedCache,
            CacheCreatedShort, CacheCreatedLong, Reasoning, ReasoningBeside, AudioSeconds, Evaluated, Reused, Predicted,
        ];
        let mut counts = Figures::default();
        for (index, count) in figures {
            counts.read(all[index], count.to_string().as_bytes());
        }
        let is_told = [Prompt, Input, Completion, Output, Total, CacheRead, CacheCreation, CacheCreationShort,
            CacheCreationLong, Predicted].into_iter().any(|figure| counts.get(figure).is_some())
            || counts.get(Evaluated).and(counts.get(Reused)).is_some();
        prop_assert_eq!(counts.account().is_some(), is_told);
        if let Some(Account { usage, .. }) = counts.account() {
            let told = |figure| counts.get(figure).unwrap_or_default();
            prop_assert_eq!(usage.total, usage.input + usage.output);
            prop_assert!(usage.cached_input + usage.cache_creation_input <= usage.input);
            prop_assert!(usage.reasoning <= usage.output);
            prop_assert!(usage.total >= told(Total));
            prop_assert!(usage.input >= told(Prompt));
            prop_assert!(usage.output >= told(Completion));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut counts = Figures::default();
        counts.read(Figure::Prompt, &bytes);
        let _ = counts.account();
    }
}
