//! Every kind of configuration error has a file in `bad-configs/`, and beside it the text that a user
//! reads; configurations with warnings are in `odd-configs/`.
//! `BLESS=1 cargo test -p braid-daemon` writes the texts anew; read the difference before you commit
//! it.

use std::fs;
use std::path::Path;

use braid_daemon::config::Config;
use braid_host::config::Paint;

/// Compares the output of `say` for every `.toml` of a folder with the `.txt` beside it.
fn against_golden(folder: &str, least: usize, say: impl Fn(&str, &str) -> String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let bless = std::env::var_os("BLESS").is_some();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        seen += 1;
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let said = say(name, &text);
        let golden = path.with_extension("txt");
        if bless {
            fs::write(&golden, &said).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if said != expected {
            wrong.push(format!("{name}: expected\n{expected}\nbut got\n{said}"));
        }
    }
    assert!(seen >= least, "only {seen} files in {}", folder.display());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn bad_configurations_are_met_with_the_expected_words() {
    against_golden("tests/bad-configs", 30, |name, text| {
        let error = Config::parse(name, text).expect_err(name);
        error.render(Paint::Plain)
    });
}

#[test]
fn odd_configurations_are_accepted_with_the_expected_words() {
    against_golden("tests/odd-configs", 5, |name, text| {
        match Config::check(name, text) {
            Ok((_, warnings)) if warnings.is_empty() => "nothing odd\n".to_owned(),
            Ok((_, warnings)) => warnings.render(Paint::Plain),
            Err(error) => panic!("{}", error.render(Paint::Plain)),
        }
    });
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("braid.toml");
    let error = Config::load(&file).unwrap_err();
    assert_eq!(
        error.render(Paint::Plain),
        format!(
            "error: cannot read the configuration {}: No such file or directory (os error 2)\n  \
             fix: name a file that exists with --config FILE\n",
            file.display()
        )
    );
}

/// The TOML examples of the manual.
fn examples(manual: &str) -> Vec<String> {
    let blocks = manual.split("```toml\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_manuals_examples_are_accepted() {
    let manual = include_str!("../../../docs/configuration.md");
    let examples = examples(manual);
    assert!(examples.len() >= 4);
    for example in examples {
        if let Err(error) = Config::parse("docs/configuration.md", &example) {
            panic!("{}", error.render(Paint::Plain));
        }
    }
}

#[test]
fn the_manual_explains_every_key() {
    let manual = include_str!("../../../docs/configuration.md");
    for (table, keys) in Config::keys() {
        for key in *keys {
            assert!(
                manual.contains(&format!("`{key}`")),
                "`{key}` of {table} is not explained"
            );
        }
    }
}
