//! Quantities with units.

use std::fmt::{Debug, Display};

use braid_core::units::{UnitError, duration};
use braid_core::{Bytes, Frequency, Rate, Share};

/// An accepted value displays as a text that parses to the same value; an error quotes the text.
pub fn units(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    check(text, str::parse::<Rate>, Rate::to_string);
    check(text, str::parse::<Bytes>, Bytes::to_string);
    check(text, str::parse::<Share>, Share::to_string);
    check(text, str::parse::<Frequency>, Frequency::to_string);
    check(text, duration::parse, |span| {
        duration::display(*span).to_string()
    });
    if let Ok(share) = text.parse::<Share>() {
        assert!((0.0..=1.0).contains(&share.fraction()), "{share}");
    }
}

fn check<T: Debug + PartialEq>(
    text: &str,
    parse: fn(&str) -> Result<T, UnitError>,
    show: fn(&T) -> String,
) {
    match parse(text) {
        Ok(value) => {
            let shown = show(&value);
            assert_eq!(parse(&shown).as_ref(), Ok(&value), "{text:?} as {shown:?}");
        }
        Err(error) => assert_names(&error, text),
    }
}

fn assert_names(error: &dyn Display, text: &str) {
    let said = error.to_string();
    assert!(said.contains(&format!("{text:?}")), "{said}");
}
