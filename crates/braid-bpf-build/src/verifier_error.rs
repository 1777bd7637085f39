
/// Formats the verifier's refusal: the error, and the last lines of its log before the statistics,
/// which show the instruction in question.
#[must_use]
pub fn verifier_error(error: &::std::io::Error, log: &str) -> String {
    const STATISTICS: [&str; 3] = ["processed", "verification time", "stack depth"];
    const LINES: usize = 3;
    let says_something =
        |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|word| line.starts_with(word));
    let mut told: ::std::vec::Vec<&str> = log
        .lines()
        .map(str::trim)
        .rev()
        .filter(says_something)
        .take(LINES)
        .collect();
    let error = error.to_string();
    told.push(&error);
    told.reverse();
    told.join("; ")
}
