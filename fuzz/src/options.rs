//! Options of the link emulator.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use braid_emulate::config::{BurstSetting, RateSetting, Span};
use braid_emulate::io::{Endpoint, Mac};
use braid_emulate::queue::Limit;

/// An accepted value displays as a text that parses to the same value. An end of a link names a
/// possible device and namespace, and never a path out of the namespaces' folder.
pub fn options(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    there_and_back::<RateSetting>(text);
    there_and_back::<BurstSetting>(text);
    there_and_back::<Span>(text);
    there_and_back::<Limit>(text);
    there_and_back::<Mac>(text);
    if let Ok(end) = text.parse::<Endpoint>() {
        assert!((1..=15).contains(&end.device.len()), "{end:?}");
        assert!(!end.device.contains(['/', '\0']), "{end:?}");
        let netns = end.netns.as_deref().unwrap_or("here");
        assert!(!netns.contains(['/', '\0']) && netns != "..", "{end:?}");
    }
}

fn there_and_back<T>(text: &str)
where
    T: FromStr<Err: Debug> + Display + Debug + PartialEq,
{
    let Ok(value) = text.parse::<T>() else {
        return;
    };
    let shown = value.to_string();
    let again: T = shown.parse().expect("what is displayed is read");
    assert_eq!(again, value, "{text:?} as {shown:?}");
}
