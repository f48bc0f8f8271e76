//! README, ARCHITECTURE and docs/ say nothing that is not there: links lead somewhere, and commands of ours are commands.

#![cfg(test)]

use std::path::{Path, PathBuf};
use std::{fs, iter};

use attache_tests::tools;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn documents() -> Vec<(PathBuf, String)> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let all = pages.chain(["README.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    let all: Vec<_> = all.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    assert!(all.len() > 5);
    all
}

/// A document's headings as links name them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' '));
    headings.map(|heading| {
        let kept = heading.to_lowercase();
        kept.chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one)).collect::<String>().replace(' ', "-")
    })
}

/// What stands between each `before` and the `after` that follows.
fn between<'t>(mut text: &'t str, before: &'static str, after: &'static str) -> impl Iterator<Item = &'t str> {
    iter::from_fn(move || {
        let (inner, rest) = text.split_once(before)?.1.split_once(after)?;
        text = rest;
        Some(inner)
    })
}

#[test]
fn links_lead_to_files_and_headings_that_there_are() {
    for (document, text) in documents() {
        for link in between(&text, "](", ")").filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", document.display());
            let is_known = || anchors(&fs::read_to_string(&target).unwrap()).any(|known| known == anchor);
            assert!(anchor.is_empty() || is_known(), "{}: {link}", document.display());
        }
    }
}

/// Commands in blocks, and those that sentences name in backticks.
fn commands(text: &str) -> Vec<String> {
    let blocks: Vec<_> =
        ["```console\n", "```sh\n", "```bash\n"].into_iter().flat_map(|kind| between(text, kind, "```")).collect();
    let lines = blocks.iter().map(|block| block.replace("\\\n", " ")).collect::<Vec<_>>();
    let told = lines.iter().flat_map(|block| block.lines()).filter_map(|line| line.trim().strip_prefix("$ "));
    let prose = text.split("```").step_by(2).flat_map(|prose| between(prose, "`", "`"));
    let all = told.chain(prose);
    let of_ours =
        all.flat_map(|line| line.split_once(" #").map_or(line, |(command, _)| command).split(['|', '>', ';']));
    of_ours
        .filter_map(|command| {
            let command = command.trim();
            // Also what is run in a container: `kubectl exec POD -- attache limits show`.
            let at = match command.starts_with("attache ") {
                true => 0,
                false => [" -- ", " -T "]
                    .iter()
                    .find_map(|before| Some(command.find(&format!("{before}attache "))? + before.len()))?,
            };
            Some(command.get(at..)?.to_owned())
        })
        .collect()
}

/// Everything before `--help` is read and judged, and then nothing is run.
#[test]
fn each_command_of_ours_is_one_that_the_program_takes() {
    let mut count = 0;
    for (document, text) in documents() {
        for command in commands(&text) {
            let words: Vec<_> =
                command.split_whitespace().skip(1).filter(|word| !word.contains("...") && *word != "&").collect();
            let is_prose = |word: &&str| !word.chars().all(|one| one.is_ascii_lowercase() || one == '-');
            if words.first().is_none_or(is_prose) {
                continue;
            }
            // A sentence names an option without its value.
            let judged = [&[][..], &["127.0.0.1:1"]]
                .map(|value| tools::attache().unwrap().args(&words).args(value).arg("--help").output().unwrap());
            let said = String::from_utf8_lossy(&judged[0].stderr);
            assert!(judged.iter().any(|output| output.status.success()), "{}: {command}: {said}", document.display());
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}
