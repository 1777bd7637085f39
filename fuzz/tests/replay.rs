//! Replays the committed corpus: inputs that once broke a property must not do so again.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use braid_fuzz::TARGETS;

fn here(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Names in a folder, without extension.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(here(folder)).expect("a folder");
    let stem = |path: PathBuf| {
        path.file_stem()
            .and_then(|stem| stem.to_str())
            .map(str::to_owned)
    };
    entries
        .map(|entry| stem(entry.expect("an entry").path()).expect("a name"))
        .collect()
}

#[test]
fn every_target_has_a_fuzzer_and_a_corpus() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
}

#[test]
fn the_corpus_keeps_every_promise() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        let folder = here("corpus").join(name);
        let entries = fs::read_dir(&folder).expect("a corpus");
        let files: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        for file in files {
            let data = fs::read(&file).expect("a file");
            if catch_unwind(|| target(&data)).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "promises broken by {broken:#?}");
}
