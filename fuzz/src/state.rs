//! The state file, by which one daemon undoes the changes of another.

use std::path::Path;

use braid_host::state::State;

/// Other files are refused with advice. A state survives being written, and none of its prefixes is
/// accepted.
pub fn state(data: &[u8]) {
    let path = Path::new("/run/braid/state.json");
    let state = match State::parse(path, data) {
        Ok(state) => state,
        Err(refused) => {
            assert!(refused.text.contains("state.json") && refused.fix.is_some());
            return;
        }
    };
    let written = serde_json::to_vec(&state).expect("a state is plain data");
    let again = State::parse(path, &written).expect("what is written is read");
    assert_eq!(again, state);
    for end in 0..written.len() {
        let half = State::parse(path, &written[..end]);
        assert!(
            half.is_err(),
            "{end} of {} bytes were enough",
            written.len()
        );
    }
}
