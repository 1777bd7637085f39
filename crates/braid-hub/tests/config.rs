//! Golden tests of error messages for invalid configurations: each file of `bad-configs` has its
//! text beside it. `BLESS=1` rewrites the texts.

use std::path::{Path, PathBuf};
use std::{env, fs};

use braid_host::config::Paint;
use braid_hub::config::HubConfig;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-configs");
    let files = fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "toml")
    });
    files.sort();
    files
}

#[test]
fn a_line_names_the_first_problems_with_their_places() {
    let text = "mtu = 9\n\nforward = \"yes\"\ngre = 1\nlisten = 70000\n";
    let error = HubConfig::parse("hub.toml", text).unwrap_err();
    assert_eq!(
        error.in_a_line(),
        "hub.toml:1:7: `mtu` cannot be 9; hub.toml:3:11: `forward` cannot be \"yes\"; hub.toml:4:7: `gre` must be true \
         or false; and 1 more"
    );
}

#[test]
fn wrong_configurations_are_explained() {
    let files = files();
    assert!(!files.is_empty());
    for path in files {
        let text = fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy();
        let error = HubConfig::parse(&name, &text).expect_err(&name);
        let shown = error.render(Paint::Plain);
        let beside = path.with_extension("txt");
        if env::var_os("BLESS").is_some() {
            fs::write(&beside, &shown).expect("writable");
        }
        let expected = fs::read_to_string(&beside).expect("a text is beside it");
        assert_eq!(shown, expected, "{name}");
    }
}
