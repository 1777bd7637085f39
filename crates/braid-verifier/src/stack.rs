//! Stack usage of a program's functions and call chains.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aya_obj::Function;

/// Unit to which the kernel rounds up each frame: without a JIT always, with one before Linux 6.8.
const FRAME_UNIT: u32 = 32;

/// Call of another function of the program: BPF_JMP | BPF_CALL, with BPF_PSEUDO_CALL in the source
/// register.
const CALL: u8 = 0x85;
const OWN_FUNCTION: u8 = 1;

/// Functions that are active at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Bytes of stack, each frame rounded up; the kernel allows 512.
    pub bytes: u32,
    /// Names of the functions, with the bytes of each before rounding.
    pub functions: Vec<(String, u32)>,
}

/// Returns the bytes of every function from the verifier's statistics, in the program's order.
pub(crate) fn depths(log: &str) -> Vec<u32> {
    let line = log
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("stack depth "));
    let numbers = line.unwrap_or_default().split([' ', '+']);
    numbers.map_while(|number| number.parse().ok()).collect()
}

/// Returns the chain that takes the most stack.
pub(crate) fn deepest(linked: &Function, names: &HashMap<u32, String>, depths: &[u32]) -> Chain {
    let infos = &linked.func_info.func_info;
    let starts: BTreeMap<u32, &str> = infos
        .iter()
        .map(|info| {
            (
                info.insn_off,
                names.get(&info.type_id).map_or("?", String::as_str),
            )
        })
        .collect();
    let mut calls: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (index, instruction) in linked.instructions.iter().enumerate() {
        if instruction.code == CALL && instruction.src_reg() == OWN_FUNCTION {
            let index = index as i32;
            let callee = (index + 1 + instruction.imm) as u32;
            let caller = starts
                .range(..=index as u32)
                .next_back()
                .map_or(0, |(start, _)| *start);
            calls.entry(caller).or_default().insert(callee);
        }
    }
    let bytes = starts.keys().copied().zip(depths.iter().copied()).collect();
    chain_from(0, &starts, &bytes, &calls)
}

fn chain_from(
    start: u32,
    names: &BTreeMap<u32, &str>,
    bytes: &BTreeMap<u32, u32>,
    calls: &BTreeMap<u32, BTreeSet<u32>>,
) -> Chain {
    let own = bytes.get(&start).copied().unwrap_or(0);
    let callees = calls.get(&start).into_iter().flatten();
    let below = callees
        .map(|callee| chain_from(*callee, names, bytes, calls))
        .max_by_key(|chain| chain.bytes)
        .unwrap_or_default();
    let mut functions = vec![(names.get(&start).copied().unwrap_or("?").to_owned(), own)];
    functions.extend(below.functions);
    Chain {
        bytes: own.max(1).next_multiple_of(FRAME_UNIT) + below.bytes,
        functions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_read_off_the_statistics() {
        let log =
            "verification time 5 usec\nstack depth 80+0+24\nprocessed 9 insns (limit 1000000)\n";
        assert_eq!(depths(log), [80, 0, 24]);
        assert_eq!(depths(""), []);
    }

    #[test]
    fn the_deepest_chain_counts_whole_frames() {
        let names = BTreeMap::from([(0, "main"), (9, "wide"), (20, "long"), (30, "leaf")]);
        let bytes = BTreeMap::from([(0, 80), (9, 100), (20, 0), (30, 90)]);
        let calls = BTreeMap::from([(0, BTreeSet::from([9, 20])), (20, BTreeSet::from([30]))]);
        let chain = chain_from(0, &names, &bytes, &calls);
        assert_eq!(chain.bytes, 96 + 32 + 96);
        let functions = chain.functions.iter().map(|(name, _)| name.as_str());
        assert_eq!(functions.collect::<Vec<_>>(), ["main", "long", "leaf"]);
    }
}
