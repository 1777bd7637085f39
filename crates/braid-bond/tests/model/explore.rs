//! A search through all states, the nearest first.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

/// A broken promise, and the steps to it.
pub type Broken<S> = (&'static str, Vec<S>);

/// States with their steps.
pub trait Model: Clone + Eq + Hash {
    /// Rules that differ between drafts.
    type Rules: Copy;
    type Step: Copy + Debug;

    /// All possible next steps.
    fn steps(&self, rules: Self::Rules) -> Vec<Self::Step>;

    /// Applies a step; an error is a broken promise.
    fn take(&mut self, rules: Self::Rules, step: Self::Step) -> Result<(), &'static str>;

    /// Checks the state itself; an error is a broken promise.
    fn check(&self, rules: Self::Rules) -> Result<(), &'static str>;
}

/// The number of states that keep all promises, or the shortest way to one that does not.
pub fn explore<M: Model>(
    rules: M::Rules,
    starts: impl IntoIterator<Item = M>,
) -> Result<usize, Broken<M::Step>> {
    let mut from: HashMap<M, Option<(M, M::Step)>> = HashMap::new();
    let mut waiting = VecDeque::new();
    for start in starts {
        from.insert(start.clone(), None);
        waiting.push_back(start);
    }
    let way = |from: &HashMap<M, Option<(M, M::Step)>>, state: &M, last: Option<M::Step>| {
        let mut steps: Vec<M::Step> = last.into_iter().collect();
        let mut at = state;
        while let Some(Some((before, step))) = from.get(at) {
            steps.push(*step);
            at = before;
        }
        steps.reverse();
        steps
    };
    while let Some(state) = waiting.pop_front() {
        if let Err(broken) = state.check(rules) {
            return Err((broken, way(&from, &state, None)));
        }
        for step in state.steps(rules) {
            let mut next = state.clone();
            if let Err(broken) = next.take(rules, step) {
                return Err((broken, way(&from, &state, Some(step))));
            }
            if next != state && !from.contains_key(&next) {
                from.insert(next.clone(), Some((state.clone(), step)));
                waiting.push_back(next);
            }
        }
    }
    Ok(from.len())
}
