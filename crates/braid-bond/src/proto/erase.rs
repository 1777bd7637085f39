//! Memory that is overwritten on drop.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use zeroize::Zeroize;

/// A value on the heap whose bytes are zeroed on drop, for library types that hold keys and do not
/// overwrite them. Memory that the value points to is not covered, nor are copies that the compiler
/// made on the way here.
pub struct Erased<T>(Box<MaybeUninit<T>>);

impl<T> Erased<T> {
    /// Moves a value to the heap.
    #[must_use]
    pub fn new(value: T) -> Self {
        Erased(Box::new(MaybeUninit::new(value)))
    }
}

impl<T> Deref for Erased<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is initialised from `new` on until `drop`.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> DerefMut for Erased<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.0.assume_init_mut() }
    }
}

impl<T> Drop for Erased<T> {
    fn drop(&mut self) {
        // SAFETY: it is initialised, and nobody sees it afterwards.
        unsafe { self.0.assume_init_drop() };
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_dropped_once_and_its_bytes_are_overwritten() {
        use std::cell::Cell;
        use std::rc::Rc;

        struct Counted(Rc<Cell<u32>>, [u8; 64]);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let drops = Rc::new(Cell::new(0));
        let mut place = Erased::new(Counted(Rc::clone(&drops), [7; 64]));
        place.1[0] = 8;
        assert_eq!((place.1[0], place.1[1]), (8, 7));
        // Same steps as `drop`, with the memory still there for inspection.
        // SAFETY: it is initialised; it is not used as a `Counted` afterwards.
        unsafe { place.0.assume_init_drop() };
        place.0.zeroize();
        let bytes = place.0.as_bytes_for_test();
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(drops.get(), 1);
        std::mem::forget(place);
    }

    trait Bytes {
        fn as_bytes_for_test(&self) -> &[u8];
    }

    impl<T> Bytes for MaybeUninit<T> {
        fn as_bytes_for_test(&self) -> &[u8] {
            // SAFETY: `zeroize` has written every byte, padding included.
            unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of::<T>()) }
        }
    }
}
