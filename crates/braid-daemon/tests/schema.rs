//! The API's schema is part of the documentation and changes only on purpose.
//! `BLESS=1 cargo test -p braid-daemon` writes it anew; read the difference before you commit it.

use std::fs;
use std::path::Path;

#[test]
fn the_documented_schema_is_the_real_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.schema.json");
    let schema = serde_json::to_string_pretty(&braid_daemon::report::schema()).unwrap() + "\n";
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    let documented = fs::read_to_string(&path).unwrap_or_default();
    let differs = documented
        .lines()
        .zip(schema.lines())
        .position(|(a, b)| a != b);
    assert!(
        documented == schema,
        "docs/api.schema.json differs from line {differs:?} on"
    );
}
