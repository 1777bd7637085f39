//! Units: accepted texts, refused texts and their errors, and lossless printing.

use std::time::Duration;

use braid_core::units::duration;
use braid_core::{Bytes, Frequency, Rate, Share};
use proptest::prelude::*;

fn rate_error(text: &str) -> String {
    text.parse::<Rate>().unwrap_err().to_string()
}

#[test]
fn quantities_are_read_as_people_write_them() {
    for (text, bits) in [
        ("20 Mbit/s", 20_000_000),
        ("20Mbit/s", 20_000_000),
        (" 1.5 Gbit/s ", 1_500_000_000),
        ("0.001 kbit/s", 1),
        ("0 bit/s", 0),
    ] {
        assert_eq!(text.parse(), Ok(Rate::from_bits_per_sec(bits)), "{text}");
    }
    assert_eq!("256KB".parse(), Ok(Bytes::new(256_000)));
    assert_eq!("1 KiB".parse(), Ok(Bytes::new(1024)));
    assert_eq!(duration::parse("15ms"), Ok(Duration::from_millis(15)));
    assert_eq!(duration::parse("1.5 ms"), Ok(Duration::from_micros(1500)));
    assert_eq!(duration::parse("2 s"), Ok(Duration::from_secs(2)));
    assert_eq!(duration::parse("50 µs"), Ok(Duration::from_micros(50)));
    assert_eq!("1 %".parse::<Share>(), "0.01".parse());
    assert_eq!("100%".parse::<Share>(), "1".parse());
    assert_eq!("8/s".parse(), Ok(Frequency::per_second(8)));
    assert_eq!(Frequency::per_second(200).to_string(), "200 /s");
}

#[test]
fn refusals_say_what_would_be_right() {
    assert_eq!(
        rate_error("fast"),
        "\"fast\" is not a rate: write a number and a unit, such as \"20 Mbit/s\""
    );
    assert_eq!(
        rate_error("20"),
        "\"20\" has no unit: a rate is in bit/s, kbit/s, Mbit/s or Gbit/s"
    );
    assert_eq!(
        rate_error("20 mbit/s"),
        "\"20 mbit/s\" has the unknown unit \"mbit/s\": a rate is in bit/s, kbit/s, Mbit/s or \
         Gbit/s (did you mean \"Mbit/s\"?)"
    );
    assert_eq!(
        rate_error("-1 Mbit/s"),
        "\"-1 Mbit/s\" is negative: a rate is zero or more"
    );
    assert_eq!(
        rate_error("0.1 bit/s"),
        "\"0.1 bit/s\" is too fine: the smallest step of a rate is 1 bit/s"
    );
    assert_eq!(
        "0.5 /s".parse::<Frequency>().unwrap_err().to_string(),
        "\"0.5 /s\" is too fine: the smallest step of a frequency is 1 /s"
    );
    assert_eq!(
        "5".parse::<Share>().unwrap_err().to_string(),
        "\"5\" is too large: the largest share is 100 %"
    );
    for nonsense in [
        "",
        " ",
        "-",
        ".",
        "1.",
        ".5 Mbit/s",
        "1.2.3 Mbit/s",
        "1e6 bit/s",
        "+1 bit/s",
    ] {
        assert!(nonsense.parse::<Rate>().is_err(), "{nonsense:?}");
    }
}

#[test]
fn the_printed_unit_is_the_one_that_reads_best() {
    assert_eq!(Rate::from_bits_per_sec(20_000_000).to_string(), "20 Mbit/s");
    assert_eq!(Rate::from_bits_per_sec(0).to_string(), "0 bit/s");
    assert_eq!(Bytes::new(1_500).to_string(), "1.5 kB");
    assert_eq!(
        duration::display(Duration::from_micros(1500)).to_string(),
        "1.5 ms"
    );
    assert_eq!(
        duration::display(Duration::from_secs(100)).to_string(),
        "100 s"
    );
    assert_eq!("0.5".parse::<Share>().expect("a share").to_string(), "50 %");
    assert_eq!(
        format!("{:>12}", Rate::from_bits_per_sec(5_000)),
        "    5 kbit/s"
    );
}

#[test]
fn a_number_of_twenty_digits_and_decimals_is_read_back() {
    let bytes = Bytes::new(14_359_536_072_511_415_271);
    assert_eq!(bytes.to_string().parse(), Ok(bytes));
    let span = Duration::from_nanos(14_359_536_072_511_415_271);
    assert_eq!(
        duration::parse(&duration::display(span).to_string()),
        Ok(span)
    );
}

#[test]
fn a_transmission_takes_its_time_and_never_less() {
    let rate = Rate::from_bits_per_sec(3_000_000);
    assert_eq!(
        rate.time_of(Bytes::new(1500)),
        Some(Duration::from_millis(4))
    );
    assert_eq!(
        Rate::from_bits_per_sec(7).time_of(Bytes::new(1)),
        Some(Duration::from_nanos(1_142_857_143))
    );
    assert_eq!(Rate::default().time_of(Bytes::new(1)), None);
    assert_eq!(rate.bytes_in(Duration::from_millis(4)), Bytes::new(1500));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(value in any::<u64>(), shift in 0u32..64) {
        let value = value >> shift;
        let rate = Rate::from_bits_per_sec(value);
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        let bytes = Bytes::new(value);
        prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
        let span = Duration::from_nanos(value);
        prop_assert_eq!(duration::parse(&duration::display(span).to_string()), Ok(span));
    }

    #[test]
    fn shares_are_read_back(billionths in 0u64..=1_000_000_000) {
        let text = format!("{}.{:09}", billionths / 1_000_000_000, billionths % 1_000_000_000);
        let share: Share = text.parse().expect("a fraction");
        prop_assert_eq!(share.to_string().parse(), Ok(share));
        prop_assert!((share.fraction() - billionths as f64 / 1e9).abs() < 1e-12);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,24}", number in "[0-9.+-]{0,40}") {
        for text in [text.clone(), number.clone(), format!("{number} Mbit/s"), format!("{number}{text}")] {
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Share>();
            let _ = duration::parse(&text);
        }
    }
}
