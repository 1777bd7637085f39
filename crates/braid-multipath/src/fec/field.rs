//! Arithmetic in GF(2⁸) modulo x⁸ + x⁴ + x³ + x² + 1. Addition is XOR; 2 generates every element
//! but zero, and all but zero have inverses. Buffers are processed eight bytes at a time.

const POLYNOMIAL: u16 = 0x11d;

/// Bytes processed at a time.
const WORD: usize = 8;

const fn tables() -> ([u8; 255], [u8; 256]) {
    let (mut exp, mut log) = ([0; 255], [0; 256]);
    let (mut value, mut power) = (1u16, 0);
    while power < 255 {
        exp[power] = value as u8;
        log[value as usize] = power as u8;
        value <<= 1;
        if value > 0xff {
            value ^= POLYNOMIAL;
        }
        power += 1;
    }
    (exp, log)
}

const TABLES: ([u8; 255], [u8; 256]) = tables();

/// Returns 2^`power`.
#[must_use]
pub fn power_of_two(power: u64) -> u8 {
    TABLES.0[(power % 255) as usize]
}

/// Returns the product.
#[must_use]
pub fn times(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let log = |value: u8| u64::from(TABLES.1[usize::from(value)]);
    power_of_two(log(a) + log(b))
}

/// Returns the multiplicative inverse; zero for zero, which has none.
#[must_use]
pub fn inverse(a: u8) -> u8 {
    match a {
        0 => 0,
        _ => power_of_two(255 - u64::from(TABLES.1[usize::from(a)])),
    }
}

/// Doubles each of eight bytes.
fn double(word: u64) -> u64 {
    let carries = word >> 7 & 0x0101_0101_0101_0101;
    ((word & 0x7f7f_7f7f_7f7f_7f7f) << 1) ^ (carries * (u64::from(POLYNOMIAL) & 0xff))
}

/// Multiplies every byte by 2^`power`.
pub fn scale_by_power(bytes: &mut [u8], power: u8) {
    let scaled = |mut word| {
        (0..power).for_each(|_| word = double(word));
        word
    };
    let mut words = bytes.chunks_exact_mut(WORD);
    for bytes in &mut words {
        bytes.copy_from_slice(&scaled(word(bytes)).to_ne_bytes());
    }
    for byte in words.into_remainder() {
        *byte = scaled(u64::from(*byte)) as u8;
    }
}

/// Adds `factor` times `bytes` to `sum`.
///
/// # Panics
/// If `sum` is shorter than `bytes`.
pub fn add_scaled(sum: &mut [u8], factor: u8, bytes: &[u8]) {
    let scaled = |mut word: u64| {
        let mut result = 0;
        for bit in 0..8 {
            // All ones if the bit is set: no branch.
            result ^= word & u64::from(factor >> bit & 1).wrapping_neg();
            word = double(word);
        }
        result
    };
    let sum = &mut sum[..bytes.len()];
    let mut sums = sum.chunks_exact_mut(WORD);
    let words = bytes.chunks_exact(WORD);
    let rest = words.remainder();
    for (sum, bytes) in (&mut sums).zip(words) {
        let added = match factor {
            1 => word(bytes),
            _ => scaled(word(bytes)),
        };
        let added = word(sum) ^ added;
        sum.copy_from_slice(&added.to_ne_bytes());
    }
    for (sum, byte) in sums.into_remainder().iter_mut().zip(rest) {
        *sum ^= times(factor, *byte);
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("a word's bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long multiplication, as a reference.
    fn product(a: u8, b: u8) -> u8 {
        let mut long = (0..8)
            .filter(|bit| b >> bit & 1 == 1)
            .fold(0, |sum, bit| sum ^ u16::from(a) << bit);
        for bit in (8..15).rev() {
            if long >> bit & 1 == 1 {
                long ^= POLYNOMIAL << (bit - 8);
            }
        }
        long as u8
    }

    #[test]
    fn products_quotients_and_buffers_agree_with_long_multiplication() {
        for a in 0..=255 {
            let bytes: Vec<u8> = (0..=255).collect();
            let mut sum = vec![0x5a; 259];
            add_scaled(&mut sum[..257], a, &bytes);
            for b in 0..=255u8 {
                assert_eq!(times(a, b), product(a, b));
                assert_eq!(sum[usize::from(b)], 0x5a ^ product(a, b));
            }
            assert_eq!(sum[256..], [0x5a; 3]);
            assert_eq!(times(a, inverse(a)), u8::from(a != 0));
        }
    }

    #[test]
    fn powers_of_two_scale_buffers_of_any_length() {
        for power in 0..8u8 {
            for length in [0, 1, 7, 8, 9, 31] {
                let bytes: Vec<u8> = (0..length).map(|at: u8| at.wrapping_mul(37) + 5).collect();
                let mut scaled = bytes.clone();
                scale_by_power(&mut scaled, power);
                let expected = |byte: &u8| product(*byte, power_of_two(power.into()));
                assert_eq!(scaled, bytes.iter().map(expected).collect::<Vec<_>>());
            }
        }
        assert_eq!(
            (power_of_two(0), power_of_two(8), power_of_two(255)),
            (1, 0x1d, 1)
        );
    }
}
