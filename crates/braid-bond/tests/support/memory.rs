//! Search of a process's memory for parts of secrets, also in memory that was given back.
//!
//! The test's own copies of secrets have all bits inverted, or they would be what it finds.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test uses its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use braid_bond::proto::handshake::KeyBytes;
use braid_host::seal::{CREDENTIAL, SealKey};
use zeroize::{Zeroize, Zeroizing};

/// Memory that is given back is never used again: all that was left in it is found.
struct KeepsAll;

// SAFETY: the system's allocator does all that is done.
unsafe impl GlobalAlloc for KeepsAll {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: KeepsAll = KeepsAll;

/// Bytes of a secret.
pub const SECRET: usize = 32;

/// Bytes read from the memory at a time.
const CHUNK: usize = 1 << 16;

/// A secret, inverted.
#[derive(Clone, Copy)]
pub struct Hidden {
    name: &'static str,
    inverted: [u8; SECRET],
}

impl Hidden {
    /// A secret that nobody else has.
    pub fn new(name: &'static str, seed: u32) -> Hidden {
        let mut state = seed;
        let byte = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        Hidden {
            name,
            inverted: std::array::from_fn(byte),
        }
    }

    /// Hides a secret.
    pub fn of(name: &'static str, secret: &[u8; SECRET]) -> Hidden {
        Hidden {
            name,
            inverted: secret.map(|byte| !byte),
        }
    }

    /// Writes the secret itself.
    pub fn write(&self, bytes: &mut [u8]) {
        for (byte, inverted) in bytes.iter_mut().zip(self.inverted) {
            *byte = !inverted;
        }
    }

    /// The secret as a key.
    pub fn key(&self) -> KeyBytes {
        let key = KeyBytes::try_fill(|bytes| {
            self.write(bytes);
            Ok::<_, Infallible>(())
        });
        key.expect("it cannot fail")
    }

    /// Parts of it by which it is recognised, inverted: as it is, as numbers of JSON, and as base64 of either alphabet, also
    /// behind other bytes.
    fn parts(&self) -> Vec<Vec<u8>> {
        let parts = [3..12, 12..21, 21..30].map(|part| &self.inverted[part]);
        let forms = parts.map(|part| vec![part.to_vec(), json(part)]);
        let groups = [3..30, 4..31, 5..32].map(|group| &self.inverted[group]);
        let texts = groups.into_iter().flat_map(|part| {
            let texts = [STANDARD, URL].map(|last| base64(part, last));
            let pieces = texts.map(|text| text.chunks(12).map(<[u8]>::to_vec).collect::<Vec<_>>());
            pieces.into_iter().flatten()
        });
        forms.into_iter().flatten().chain(texts).collect()
    }
}

/// Numbers with commas behind them.
fn json(inverted: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in inverted {
        for (power, least) in [(100, 100), (10, 10), (1, 0)] {
            if !byte >= least {
                text.push(!(b'0' + !byte / power % 10));
            }
        }
        text.push(!b',');
    }
    text
}

/// The last two digits of each alphabet of base64 (RFC 4648 §4 and §5).
const STANDARD: [u8; 2] = *b"+/";
const URL: [u8; 2] = *b"-_";

fn base64(inverted: &[u8], last: [u8; 2]) -> Vec<u8> {
    const DIGITS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let digit = |at: usize| DIGITS.get(at).copied().unwrap_or_else(|| last[at - 62]);
    let groups = inverted.chunks(3).map(|group| {
        group
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(!byte))
    });
    let digits = |number: usize| [18, 12, 6, 0].map(|shift| !digit(number >> shift & 63));
    groups.flat_map(digits).collect()
}

/// A part of the process's memory that it can write: its heaps, its stacks.
struct Mapping {
    from: u64,
    to: u64,
}

impl Mapping {
    fn has(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }
}

fn mappings() -> Vec<Mapping> {
    let maps = fs::read_to_string("/proc/self/maps").expect("a process has memory");
    let mapping = |line: &str| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let is_writable = fields.next()?.starts_with("rw");
        let address = |text| u64::from_str_radix(text, 16).ok();
        is_writable.then_some(Mapping {
            from: address(from)?,
            to: address(to)?,
        })
    };
    maps.lines().filter_map(mapping).collect()
}

/// Returns the places at which the memory shows a part of these secrets.
pub fn found(secrets: &[Hidden]) -> Vec<String> {
    let memory = File::open("/proc/self/mem").expect("it is ours");
    let parts = secrets.iter().flat_map(|secret| {
        let parts = secret.parts().into_iter();
        parts.map(|part| (secret.name, part))
    });
    let mut by_first: [Vec<(&str, Vec<u8>)>; 256] = std::array::from_fn(|_| Vec::new());
    let mut longest = 0;
    for (name, part) in parts {
        longest = longest.max(part.len());
        by_first[usize::from(!part[0])].push((name, part));
    }
    let mut chunk = vec![0; CHUNK + longest];
    let own = Mapping {
        from: chunk.as_ptr().addr() as u64,
        to: (chunk.as_ptr().addr() + chunk.len()) as u64,
    };
    let stack = (&raw const longest).addr() as u64;
    let mut found = Vec::new();
    for mapping in mappings() {
        let place = match mapping.has(stack) {
            true => "this stack",
            false => "elsewhere",
        };
        for from in (mapping.from..mapping.to).step_by(CHUNK) {
            let wanted = chunk.len().min((mapping.to - from) as usize);
            let Ok(read) = memory.read_at(&mut chunk[..wanted], from) else {
                break;
            };
            for at in 0..read.min(CHUNK) {
                for (name, part) in &by_first[usize::from(chunk[at])] {
                    let shown = chunk[at..read].get(..part.len());
                    let is_part = shown.is_some_and(|shown| {
                        let pairs = shown.iter().zip(part);
                        pairs.into_iter().all(|(byte, inverted)| *byte == !inverted)
                    });
                    let address = from + at as u64;
                    if is_part && !own.has(address) {
                        found.push(format!(
                            "{name}: {} bytes at {address:x}, {place}",
                            part.len()
                        ));
                    }
                }
            }
        }
    }
    found
}

/// The key of a credential that is this secret.
pub fn seal(folder: &Path, credential: Hidden) -> SealKey {
    let mut bytes = Zeroizing::new(vec![0; SECRET]);
    credential.write(&mut bytes);
    fs::write(folder.join(CREDENTIAL), &*bytes).expect("room");
    let key = SealKey::from_directory(folder).expect("a credential");
    key.expect("it is there")
}

/// Fails if the memory shows a part of these secrets; the caller has them in no place any more.
pub fn expect_none(secrets: &[Hidden]) {
    overwrite_old_frames();
    let left = found(secrets);
    assert!(
        left.is_empty(),
        "{} places:\n{}",
        left.len(),
        left.join("\n")
    );
}

/// Fails unless the search finds what is there.
pub fn expect_search_to_find(secrets: &[Hidden]) {
    let mut kept: Box<[[u8; SECRET]]> = vec![[0; SECRET]; secrets.len()].into();
    let places = kept.iter_mut().zip(secrets);
    places.for_each(|(place, secret)| secret.write(place));
    assert!(found(secrets).len() >= 3 * secrets.len());
    kept.iter_mut().for_each(Zeroize::zeroize);
    assert_eq!(found(secrets), [""; 0]);
}

/// Overwrites the frames of calls that have returned, as later calls do: nobody promises what they hold.
#[inline(never)]
fn overwrite_old_frames() {
    std::hint::black_box([0_u8; 1 << 18]);
}
