//! Documents and their tables.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use miette::NamedSource;
use toml::de::{DeTable, DeValue};

use super::problem::{ConfigError, Problem};
use super::table::{Located, Table, wrong_type};

/// Parses a text; `top` reads its top level and collects errors.
///
/// # Errors
/// All errors in it.
pub fn document<T>(
    name: &str,
    text: &str,
    top: impl FnOnce(&DeTable<'_>, &mut Vec<Problem>) -> T,
) -> Result<T, ConfigError> {
    let mut problems = Vec::new();
    let (document, syntax) = DeTable::parse_recoverable(text);
    for error in syntax {
        let at = error.span().unwrap_or(0..0);
        problems.push(Problem::new(error.message(), at, "here"));
    }
    // After a syntax error keys may have landed in the wrong table, and errors about them would
    // mislead. Meaning is checked only once the text can be parsed.
    let read = problems
        .is_empty()
        .then(|| top(document.get_ref(), &mut problems));
    match read.filter(|_| problems.is_empty()) {
        Some(config) => Ok(config),
        None => Err(ConfigError::Invalid {
            name: name.to_owned(),
            problems: in_order(problems, &Arc::new(NamedSource::new(name, text.to_owned()))),
        }),
    }
}

pub(super) fn in_order(
    mut problems: Vec<Problem>,
    source: &Arc<NamedSource<String>>,
) -> Vec<Problem> {
    problems.sort_by_key(Problem::offset);
    problems
        .into_iter()
        .map(|problem| problem.within(source))
        .collect()
}

/// Takes a list of `[[tables]]`, each with the place of its header.
pub fn tables<'t, 'i>(
    table: &mut Table<'t, 'i>,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(&'t DeTable<'i>, Range<usize>)> {
    let Some(value) = table.take(key) else {
        return Vec::new();
    };
    let DeValue::Array(items) = value.get_ref() else {
        let fix = format!("write [[{key}]], with two brackets, for each of them");
        problems.push(wrong_type(key, "a list of tables", value).fix(fix));
        return Vec::new();
    };
    let mut tables = Vec::new();
    for item in items.iter() {
        match item.get_ref().as_table() {
            Some(inner) => tables.push((inner, item.span())),
            None => problems.push(wrong_type(key, "a list of tables", item)),
        }
    }
    tables
}

/// Reports entries that are listed twice.
pub fn no_repeats<T: PartialEq + Display>(
    key: &str,
    items: &[Located<T>],
    problems: &mut Vec<Problem>,
) {
    for (i, item) in items.iter().enumerate() {
        if let Some(first) = items[..i].iter().find(|other| other.value == item.value) {
            let what = format!("`{key}` lists \"{}\" twice", item.value);
            problems.push(
                Problem::new(what, item.at.clone(), "again here")
                    .also(first.at.clone(), "first here")
                    .fix("remove one of the two"),
            );
        }
    }
}

/// Takes a `[section]`.
pub fn section<'t, 'i>(
    table: &mut Table<'t, 'i>,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Option<(&'t DeTable<'i>, Range<usize>)> {
    let value = table.take(key)?;
    let inner = value.get_ref().as_table();
    if inner.is_none() {
        let fix = format!("write [{key}] on a line of its own, and its keys below");
        problems.push(wrong_type(key, "a table", value).fix(fix));
    }
    inner.map(|inner| (inner, value.span()))
}
