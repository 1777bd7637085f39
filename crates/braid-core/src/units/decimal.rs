//! Exact decimal numbers with a unit: the parser and the printer of every type.

use std::fmt;

use super::UnitError;

/// A unit's name and its size in the type's base unit.
pub(super) type Unit = (&'static str, u64);

/// Written form of one type.
pub(super) struct Kind {
    /// Name, for errors.
    pub name: &'static str,
    /// A text that is accepted.
    pub example: &'static str,
    /// Smallest step of the type, as text.
    pub step: &'static str,
    /// Units for printing, largest first; the last one has size 1.
    pub units: &'static [Unit],
    /// Further units for parsing.
    pub aliases: &'static [Unit],
    /// The largest value in base units.
    pub max: u64,
}

impl Kind {
    /// Parses `number [space] unit` to base units.
    pub fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let (number, unit) = split(text);
        if unit.is_empty() {
            // "" and "-" are no numbers either; the message names the number first.
            self.scale(text, number, 1)?;
            return Err(UnitError::NoUnit {
                text: text.to_owned(),
                kind: self.name,
                units: self.names(),
            });
        }
        match self.known().find(|(name, _)| *name == unit) {
            Some((_, size)) => self.scale(text, number, *size),
            None => {
                self.scale(text, number, self.units[0].1)?;
                Err(self.unknown(text, unit))
            }
        }
    }

    /// Prints `value` base units in the largest unit that is not above it, without loss.
    pub fn write(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, size) = self
            .units
            .iter()
            .find(|(_, size)| value >= *size)
            .unwrap_or_else(|| &self.units[self.units.len() - 1]);
        let (whole, rest) = (value / size, value % size);
        if rest == 0 {
            return f.pad(&format!("{whole} {name}"));
        }
        match fraction(rest, *size) {
            Some(digits) => f.pad(&format!("{whole}.{digits} {name}")),
            None => {
                let (name, size) = self.finest_below(*size, value);
                f.pad(&format!("{} {name}", value / size))
            }
        }
    }

    /// Returns the next unit that divides `value`: minutes and hours have no finite decimal
    /// fractions.
    fn finest_below(&self, above: u64, value: u64) -> Unit {
        *self
            .units
            .iter()
            .find(|(_, size)| *size < above && value.is_multiple_of(*size))
            .unwrap_or_else(|| &self.units[self.units.len() - 1])
    }

    /// Returns `number` times `size`, exactly; errors quote `text`.
    pub fn scale(&self, text: &str, number: &str, size: u64) -> Result<u64, UnitError> {
        let not_a_number = || UnitError::NotANumber {
            text: text.to_owned(),
            kind: self.name,
            example: self.example,
        };
        let (negative, digits) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !plain(whole) || !plain(fraction) || whole.is_empty() || digits.ends_with('.') {
            return Err(not_a_number());
        }
        let too_large = || UnitError::TooLarge {
            text: text.to_owned(),
            kind: self.name,
            largest: format!("{}", Show(self, self.max)),
        };
        let too_fine = || UnitError::TooFine {
            text: text.to_owned(),
            kind: self.name,
            step: self.step,
        };
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 18 {
            return Err(too_fine());
        }
        let parsed = |digits: &str| digits.parse::<u128>().map_err(|_| too_large());
        let (whole, part) = (
            parsed(whole)?,
            if fraction.is_empty() {
                0
            } else {
                parsed(fraction)?
            },
        );
        if negative && (whole, part) != (0, 0) {
            return Err(UnitError::Negative {
                text: text.to_owned(),
                kind: self.name,
            });
        }
        // At most 18 digits times 2^64, which a u128 holds.
        let part = part * u128::from(size);
        let divisor = 10u128.pow(fraction.len() as u32);
        if part % divisor != 0 {
            return Err(too_fine());
        }
        let value = whole
            .checked_mul(u128::from(size))
            .and_then(|v| v.checked_add(part / divisor));
        let value = value.and_then(|value| u64::try_from(value).ok());
        value
            .filter(|value| *value <= self.max)
            .ok_or_else(too_large)
    }

    fn unknown(&self, text: &str, unit: &str) -> UnitError {
        let meant = self
            .known()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit));
        UnitError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            kind: self.name,
            units: self.names(),
            meant: meant.map(|(name, _)| *name),
        }
    }

    fn known(&self) -> impl Iterator<Item = &'static Unit> + use<> {
        self.units.iter().chain(self.aliases)
    }

    /// Returns, for instance, "bit/s, kbit/s, Mbit/s or Gbit/s".
    fn names(&self) -> String {
        let names: Vec<&str> = self.units.iter().rev().map(|(name, _)| *name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

/// A value of a kind, for printing.
pub(super) struct Show<'a>(pub &'a Kind, pub u64);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(self.1, f)
    }
}

/// Splits a text into a number and the rest.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Returns the decimals of `rest / size`; none if they never end.
fn fraction(rest: u64, size: u64) -> Option<String> {
    let (mut rest, size) = (u128::from(rest), u128::from(size));
    let mut digits = String::new();
    while rest != 0 {
        if digits.len() == 18 {
            return None;
        }
        rest *= 10;
        digits.push(char::from(b'0' + u8::try_from(rest / size).ok()?));
        rest %= size;
    }
    Some(digits)
}
