//! Reads a TOML table key by key and collects all errors.
//!
//! `#[derive(Deserialize)]` would stop at the first error and suggest no similar keys.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use braid_core::units::{UnitError, duration};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;

/// Minimum similarity (Jaro–Winkler, 0 to 1) at which one name is suggested for another;
/// `wieght`/`weight` has 0.95, `name`/`ports` 0.45.
const NEAR_MISS: f64 = 0.8;

/// Returns the name most similar to the given one, if any is similar enough.
pub fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known
        .iter()
        .map(|name| (strsim::jaro_winkler(written, name), *name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= NEAR_MISS).then_some(best.1)
}

/// A value and its place in the file.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Byte range in the file.
    pub at: Range<usize>,
}

/// A table from which keys are taken one by one.
pub struct Table<'t, 'i> {
    /// Title as a user writes it: `[datapath]`, or a description of the top level.
    title: &'static str,
    entries: Vec<(Range<usize>, &'t str, &'t Spanned<DeValue<'i>>)>,
    known: &'static [&'static str],
}

impl<'t, 'i> Table<'t, 'i> {
    /// Wraps a table with the keys `known`; `title` is its name as a user writes it.
    pub fn new(
        title: &'static str,
        known: &'static [&'static str],
        table: &'t DeTable<'i>,
    ) -> Self {
        let entries = table
            .iter()
            .map(|(key, value)| (key.span(), key.get_ref().as_ref(), value))
            .collect();
        Self {
            title,
            entries,
            known,
        }
    }

    /// Takes a key's value; `None` if the key is absent.
    pub fn take(&mut self, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
        debug_assert!(
            self.known.contains(&key),
            "{key} is not among {}'s keys",
            self.title
        );
        let index = self.entries.iter().position(|(_, name, _)| *name == key)?;
        Some(self.entries.swap_remove(index).2)
    }

    /// Takes a string.
    pub fn text(&mut self, key: &str, problems: &mut Vec<Problem>) -> Option<Located<String>> {
        let value = self.take(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Located {
                value: text.to_owned(),
                at: value.span(),
            }),
            None => {
                problems.push(wrong_type(key, "a string in quotes", value));
                None
            }
        }
    }

    /// Takes and parses a string; `fix` shows how to write it.
    pub fn parsed<T>(
        &mut self,
        key: &str,
        fix: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Located<T>>
    where
        T: FromStr<Err: std::fmt::Display>,
    {
        let value = self.take(key)?;
        let Some(text) = value.get_ref().as_str() else {
            problems.push(wrong_type(key, "a string in quotes", value).fix(fix));
            return None;
        };
        read_text(key, text, value.span(), fix, problems)
    }

    /// Takes and parses a string or a list of strings; whole numbers may be written without quotes.
    pub fn list<T>(&mut self, key: &str, fix: &str, problems: &mut Vec<Problem>) -> Vec<Located<T>>
    where
        T: FromStr<Err: std::fmt::Display>,
    {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let items: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        if items.is_empty() {
            let what = format!("`{key}` is an empty list");
            let fix = "leave the line out, or write something into the list";
            problems.push(Problem::new(what, value.span(), "says nothing").fix(fix));
        }
        let mut list = Vec::new();
        for item in items {
            let text = match item.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.to_string(),
                _ => {
                    problems.push(wrong_type(
                        key,
                        "a string in quotes, or a list of them",
                        item,
                    ));
                    continue;
                }
            };
            list.extend(read_text(key, &text, item.span(), fix, problems));
        }
        list
    }

    /// Takes and parses a string, or a whole number without quotes.
    pub fn one<T>(
        &mut self,
        key: &str,
        fix: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Located<T>>
    where
        T: FromStr<Err: std::fmt::Display>,
    {
        let value = self.take(key)?;
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            _ => {
                problems.push(wrong_type(key, "a string in quotes or a number", value).fix(fix));
                return None;
            }
        };
        read_text(key, &text, value.span(), fix, problems)
    }

    /// Returns true if a key is present and has not been taken.
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(_, name, _)| *name == key)
    }

    /// Takes a duration within bounds.
    pub fn time(
        &mut self,
        key: &str,
        (least, most): (Duration, Duration),
        problems: &mut Vec<Problem>,
    ) -> Option<Located<Duration>> {
        let (low, high) = (duration::display(least), duration::display(most));
        let fix = format!("write a time from \"{low}\" to \"{high}\"");
        let time: Located<Span> = self.parsed(key, &fix, problems)?;
        let Span(span) = time.value;
        let label = match span {
            _ if span < least => "too short",
            _ if span > most => "too long",
            _ => {
                return Some(Located {
                    value: span,
                    at: time.at,
                });
            }
        };
        let what = format!("`{key}` cannot be \"{}\"", duration::display(span));
        problems.push(Problem::new(what, time.at, label).fix(fix));
        None
    }

    /// Takes a keyword.
    pub fn keyword<T>(
        &mut self,
        key: &str,
        words: &[&'static str],
        problems: &mut Vec<Problem>,
    ) -> Option<Located<T>>
    where
        T: FromStr,
    {
        let value = self.take(key)?;
        let Some(text) = value.get_ref().as_str() else {
            problems.push(wrong_type(key, "a string in quotes", value));
            return None;
        };
        if let Ok(parsed) = text.parse() {
            return Some(Located {
                value: parsed,
                at: value.span(),
            });
        }
        let fix = match nearest(text, words) {
            Some(near) => format!("did you mean \"{near}\"? (there are {})", words.join(", ")),
            None => format!("write one of {}", words.join(", ")),
        };
        let what = format!("`{key}` cannot be {text:?}");
        problems.push(Problem::new(what, value.span(), "not one of its words").fix(fix));
        None
    }

    /// Takes `true` or `false`.
    pub fn boolean(&mut self, key: &str, problems: &mut Vec<Problem>) -> Option<bool> {
        let value = self.take(key)?;
        let truth = value.get_ref().as_bool();
        if truth.is_none() {
            problems.push(wrong_type(key, "true or false", value));
        }
        truth
    }

    /// Takes a number within bounds, whole or not.
    pub fn decimal(
        &mut self,
        key: &str,
        (least, most): (f64, f64),
        problems: &mut Vec<Problem>,
    ) -> Option<Located<f64>> {
        let value = self.take(key)?;
        let number = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
            _ => {
                problems.push(wrong_type(key, "a number", value));
                return None;
            }
        };
        let found = number.filter(|number| (least..=most).contains(number));
        if found.is_none() {
            let what = format!("`{key}` is out of bounds");
            let fix = format!("write a number from {least} to {most}");
            problems.push(Problem::new(what, value.span(), "too small or too large").fix(fix));
        }
        found.map(|number| Located {
            value: number,
            at: value.span(),
        })
    }

    /// Takes a whole number within bounds.
    pub fn count(
        &mut self,
        key: &str,
        bounds: std::ops::RangeInclusive<u32>,
        problems: &mut Vec<Problem>,
    ) -> Option<Located<u32>> {
        let value = self.take(key)?;
        let Some(integer) = value.get_ref().as_integer() else {
            problems.push(wrong_type(key, "a whole number", value));
            return None;
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX);
        match u32::try_from(number)
            .ok()
            .filter(|number| bounds.contains(number))
        {
            Some(number) => Some(Located {
                value: number,
                at: value.span(),
            }),
            None => {
                let label = match number {
                    ..0 => "negative",
                    0 => "zero",
                    number if number < i128::from(*bounds.start()) => "too small",
                    _ => "too large",
                };
                let what = format!("`{key}` cannot be {integer}");
                let fix = format!("write a number from {} to {}", bounds.start(), bounds.end());
                problems.push(Problem::new(what, value.span(), label).fix(fix));
                None
            }
        }
    }

    /// Takes a list of strings, or one string by itself.
    pub fn texts(&mut self, key: &str, problems: &mut Vec<Problem>) -> Vec<Located<String>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        match value.get_ref() {
            DeValue::Array(items) => strings(key, items.iter(), problems),
            _ => strings(key, [value], problems),
        }
    }

    /// Takes the words of a command: a list, since one string by itself would be taken for a program and its
    /// arguments. `example` is such a list.
    pub fn words(
        &mut self,
        key: &str,
        example: &str,
        problems: &mut Vec<Problem>,
    ) -> Vec<Located<String>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        match value.get_ref().as_array() {
            Some(items) => strings(key, items.iter(), problems),
            None => {
                problems.push(wrong_type(key, &format!("a list like {example}"), value));
                Vec::new()
            }
        }
    }

    /// Reports every key that was not taken as unknown. `elsewhere` lists the keys of other tables, for
    /// known keys in the wrong table.
    pub fn finish(
        self,
        elsewhere: &[(&str, &'static [&'static str])],
        problems: &mut Vec<Problem>,
    ) {
        for (at, key, _) in self.entries {
            let home = elsewhere
                .iter()
                .find(|(title, keys)| *title != self.title && keys.contains(&key));
            let fix = match (nearest(key, self.known), home) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some((title, _))) => format!("`{key}` belongs to {title}"),
                (None, None) => format!("{} has {}", self.title, self.known.join(", ")),
            };
            let what = format!("unknown key `{key}` in {}", self.title);
            problems.push(Problem::new(what, at, "not known here").fix(fix));
        }
    }
}

fn read_text<T>(
    key: &str,
    text: &str,
    at: Range<usize>,
    fix: &str,
    problems: &mut Vec<Problem>,
) -> Option<Located<T>>
where
    T: FromStr<Err: std::fmt::Display>,
{
    match text.parse::<T>() {
        Ok(value) => Some(Located { value, at }),
        Err(error) => {
            let what = format!("`{key}` cannot be {text:?}");
            problems.push(Problem::new(what, at, error.to_string()).fix(fix));
            None
        }
    }
}

/// A duration as text.
struct Span(Duration);

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        duration::parse(text).map(Span)
    }
}

fn strings<'v, 'i: 'v>(
    key: &str,
    items: impl IntoIterator<Item = &'v Spanned<DeValue<'i>>>,
    problems: &mut Vec<Problem>,
) -> Vec<Located<String>> {
    let mut texts = Vec::new();
    for item in items {
        match item.get_ref().as_str() {
            Some(text) => texts.push(Located {
                value: text.to_owned(),
                at: item.span(),
            }),
            None => problems.push(wrong_type(key, "a list of strings in quotes", item)),
        }
    }
    texts
}

/// Returns the error for a value of the wrong type.
pub fn wrong_type(key: &str, wanted: &str, value: &Spanned<DeValue<'_>>) -> Problem {
    let kind = value.get_ref().type_str();
    let article = if kind.starts_with(['a', 'i', 'o']) {
        "an"
    } else {
        "a"
    };
    let what = format!("`{key}` must be {wanted}");
    Problem::new(what, value.span(), format!("this is {article} {kind}"))
}
