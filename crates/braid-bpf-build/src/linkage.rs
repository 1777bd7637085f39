//! Finds global functions that take pointers. A kernel without its own types
//! (`CONFIG_DEBUG_INFO_BTF`) cannot verify them alone.
//!
//! The kernel recognises a packet by its own types only. Without them it takes the `struct
//! __sk_buff *` of a global function for plain memory. A static function is verified at each call,
//! with the arguments of that call.

/// Kinds of types (`BTF_KIND_…` of linux/btf.h).
const PTR: u32 = 2;
const FUNC: u32 = 12;

/// `BTF_FUNC_GLOBAL`, in a function's `vlen`.
const GLOBAL: u32 = 1;

/// Returns the offsets in the object of the words that make such functions global, where a loader
/// can write `BTF_FUNC_STATIC`.
///
/// # Panics
/// If it is not a little-endian ELF object with types, as clang makes it.
pub(crate) fn global_linkage_offsets(object: &[u8]) -> Vec<usize> {
    let types = section(object, ".BTF").expect("an object with types (clang -g)");
    let at = |offset: usize| word(object, types + offset);
    let header = at(4) as usize;
    let (first, length) = (header + at(8) as usize, at(12) as usize);
    // Each type's offset, its `info`, and the type it refers to.
    let mut all = vec![(0, 0, 0)];
    let mut next = first;
    while next < first + length {
        let (info, refers) = (at(next + 4), at(next + 8));
        all.push((types + next, info, refers));
        next += 12 + trailer(info >> 24 & 0x1f, (info & 0xffff) as usize);
    }
    let takes_pointer = |prototype: u32| {
        let (place, info, _) = all[prototype as usize];
        let parameters =
            (0..(info & 0xffff) as usize).map(|n| word(object, place + 12 + 8 * n + 4));
        parameters.into_iter().any(|kind| is_pointer(&all, kind))
    };
    all.iter()
        .skip(1)
        .filter(|(_, info, prototype)| {
            info >> 24 & 0x1f == FUNC && info & 0xffff == GLOBAL && takes_pointer(*prototype)
        })
        .map(|(place, ..)| place + 4)
        .collect()
}

/// Returns the bytes behind the twelve that every type has.
fn trailer(kind: u32, entries: usize) -> usize {
    match kind {
        1 | 14 | 17 => 4,                // INT, VAR, DECL_TAG
        3 => 12,                         // ARRAY
        4 | 5 | 15 | 19 => 12 * entries, // STRUCT, UNION, DATASEC, ENUM64
        6 | 13 => 8 * entries,           // ENUM, FUNC_PROTO
        _ => 0,
    }
}

fn is_pointer(all: &[(usize, u32, u32)], mut number: u32) -> bool {
    loop {
        let (_, info, refers) = all[number as usize];
        match info >> 24 & 0x1f {
            PTR => return true,
            8..=11 => number = refers, // TYPEDEF, VOLATILE, CONST, RESTRICT
            _ => return false,
        }
    }
}

/// Returns the offset of a section in a 64-bit ELF file.
fn section(object: &[u8], name: &str) -> Option<usize> {
    assert_eq!(&object[..6], b"\x7fELF\x02\x01", "a little-endian object");
    let headers = long(object, 40);
    let count = half(object, 60);
    let header = |number: usize| headers + 64 * number;
    let names = long(object, header(half(object, 62)) + 24);
    (0..count).map(header).find_map(|header| {
        let begin = names + word(object, header) as usize;
        let found = object[begin..].split(|byte| *byte == 0).next()?;
        (found == name.as_bytes()).then(|| long(object, header + 24))
    })
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> usize {
    let value = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    usize::try_from(value).expect("a file that fits into memory")
}
