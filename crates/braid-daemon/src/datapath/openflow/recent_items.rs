//! Recent items of many keys, in bounded memory.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Items of one key, each with its time, the oldest first.
pub(super) type Items<T> = VecDeque<(Instant, T)>;

/// The last `ITEMS` items of each key. Of more than `KEYS` keys the one that has been silent longest gives way.
#[derive(Debug)]
pub(super) struct RecentItems<K, T, const KEYS: usize, const ITEMS: usize> {
    pub(super) by_key: BTreeMap<K, Items<T>>,
}

impl<K, T, const KEYS: usize, const ITEMS: usize> Default for RecentItems<K, T, KEYS, ITEMS> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Ord, T, const KEYS: usize, const ITEMS: usize> RecentItems<K, T, KEYS, ITEMS> {
    pub fn note(&mut self, now: Instant, key: K, item: T) {
        if self.by_key.len() >= KEYS && !self.by_key.contains_key(&key) {
            let last = |items: &Items<T>| items.back().map(|(at, _)| *at);
            let silent = self.by_key.iter().min_by_key(|(_, items)| last(items));
            if let Some(silent) = silent.map(|(key, _)| *key) {
                self.by_key.remove(&silent);
            }
        }
        let items = self.by_key.entry(key).or_default();
        if items.len() >= ITEMS {
            items.pop_front();
        }
        items.push_back((now, item));
    }
}
