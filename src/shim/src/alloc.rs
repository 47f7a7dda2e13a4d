//! An allocator that only moves forward: the programs here live for a fraction of a millisecond,
//! and then their memory goes with their image.
//!
//! JUSTIFICATION for unsafe code: an allocator is unsafe by its interface. Against musl's allocator
//! `create` of a container without a request takes 47 µs less of 373 µs, any other verb 23 µs of
//! 254 µs (`make bench`'s documents, 2-core virtual machine, 21 November 2026).
//!
//! Large pieces (documents, the lists in them) come from the C library and go back to it, so that
//! what a large document costs stays near its own size.
#![allow(unsafe_code, reason = "see above")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

/// From here on, pieces are the C library's.
const LARGE: usize = 32 << 10;
/// What the program has from the start, and what is taken from the C library at once after that.
/// Pages that are not touched cost nothing.
const CHUNK: usize = 128 << 10;

/// C's malloc aligns every piece so, and code relies on it: nix 0.31 reads control messages, with
/// their 8-byte lengths, in a vector of bytes.
const LEAST_ALIGNMENT: usize = align_of::<usize>();

/// Memory by moving a pointer forward. For programs of one thread, as `#[global_allocator]`.
#[derive(Debug)]
pub struct Bump {
    first: UnsafeCell<MaybeUninit<[u8; CHUNK]>>,
    /// Null before the first piece.
    next: Cell<*mut u8>,
    /// Bytes left behind `next`.
    left: Cell<usize>,
}

// SAFETY: the shim and the hook have one thread (`clippy.toml` denies them the second), so that no
// two calls overlap.
unsafe impl Sync for Bump {}

impl Bump {
    /// Owns nothing yet.
    ///
    /// # Safety
    /// Only for a program that never starts a thread.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self {
            first: UnsafeCell::new(MaybeUninit::uninit()),
            next: Cell::new(ptr::null_mut()),
            left: Cell::new(0),
        }
    }

    /// Whether a piece was the last one handed out, so that it can grow or go back.
    fn is_last(&self, piece: *mut u8, size: usize) -> bool {
        ptr::eq(piece.wrapping_add(size), self.next.get())
    }

    fn take(&self, layout: Layout) -> Option<*mut u8> {
        let start = self.next.get();
        let padding = start.align_offset(layout.align().max(LEAST_ALIGNMENT));
        let taken = padding.checked_add(layout.size()).filter(|taken| *taken <= self.left.get())?;
        self.next.set(start.wrapping_add(taken));
        self.left.set(self.left.get() - taken);
        Some(start.wrapping_add(padding))
    }

    #[cold]
    fn refill(&self) -> bool {
        if self.next.get().is_null() {
            self.next.set(self.first.get().cast());
            self.left.set(CHUNK);
            return true;
        }
        let Ok(layout) = Layout::from_size_align(CHUNK, 16) else { return false };
        // SAFETY: the layout is not empty.
        let chunk = unsafe { System.alloc(layout) };
        if chunk.is_null() {
            return false;
        }
        self.next.set(chunk);
        self.left.set(CHUNK);
        true
    }
}

// SAFETY: pieces are disjoint parts of chunks that live as long as the allocator, aligned as asked;
// or the C library's. Which of the two follows from the size alone, which the caller names again
// when it gives one back.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            // SAFETY: the caller's promises are those that `System` asks for.
            return unsafe { System.alloc(layout) };
        }
        match self.take(layout) {
            Some(piece) => piece,
            None if self.refill() => self.take(layout).unwrap_or(ptr::null_mut()),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            // SAFETY: pieces of this size came from `System`.
            unsafe { System.dealloc(piece, layout) };
        } else if self.is_last(piece, layout.size()) {
            self.next.set(piece);
            self.left.set(self.left.get() + layout.size());
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() >= LARGE && size >= LARGE {
            // SAFETY: pieces of this size came from `System`, and stay there.
            return unsafe { System.realloc(piece, layout, size) };
        }
        if size < LARGE && self.is_last(piece, layout.size()) {
            let room = self.left.get() + layout.size();
            if size <= room {
                self.next.set(piece.wrapping_add(size));
                self.left.set(room - size);
                return piece;
            }
        }
        // SAFETY: the caller vouches for size and alignment together.
        let moved_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the new layout is not empty, by the caller's word.
        let moved = unsafe { self.alloc(moved_layout) };
        if !moved.is_null() {
            // SAFETY: both pieces are at least as long, and a new one overlaps no other.
            unsafe { ptr::copy_nonoverlapping(piece, moved, layout.size().min(size)) };
            // SAFETY: the caller gave this piece up.
            unsafe { self.dealloc(piece, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    // SAFETY (of all blocks below): layouts are not empty, pieces are used within their size and
    // not after they were given back, and each test uses an allocator of its own in its one thread.

    fn new() -> Box<Bump> {
        // SAFETY: see above.
        Box::new(unsafe { Bump::new() })
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// A piece filled with `byte`.
    fn piece(bump: &Bump, size: usize, align: usize, byte: u8) -> *mut u8 {
        // SAFETY: see above.
        unsafe {
            let piece = bump.alloc(layout(size, align));
            assert!(!piece.is_null());
            assert_eq!(piece.align_offset(align.max(LEAST_ALIGNMENT)), 0);
            piece.write_bytes(byte, size);
            piece
        }
    }

    fn holds(piece: *const u8, size: usize, byte: u8) -> bool {
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts(piece, size) }.iter().all(|b| *b == byte)
    }

    #[test]
    fn pieces_are_aligned_and_apart() {
        let bump = new();
        // Enough for several chunks.
        let pieces: Vec<_> = (0..400_usize)
            .map(|i| {
                let (size, byte) = (1 + i * 7 % 3000, u8::try_from(i % 251).unwrap());
                (piece(&bump, size, 1 << (i % 7), byte), size, byte)
            })
            .collect();
        assert!(pieces.iter().map(|(_, size, _)| size).sum::<usize>() > 3 * CHUNK);
        assert!(pieces.iter().all(|(piece, size, byte)| holds(*piece, *size, *byte)));
    }

    #[test]
    fn the_last_piece_grows_in_place_and_comes_back() {
        let bump = new();
        let first = piece(&bump, 100, 8, 1);
        // SAFETY: see above.
        unsafe {
            assert_eq!(bump.realloc(first, layout(100, 8), 5000), first);
            bump.dealloc(first, layout(5000, 8));
        }
        assert_eq!(piece(&bump, 16, 8, 2), first);
    }

    #[test]
    fn an_earlier_piece_moves_with_its_content() {
        let bump = new();
        let first = piece(&bump, 100, 8, 1);
        let second = piece(&bump, 100, 8, 2);
        // SAFETY: see above.
        let moved = unsafe { bump.realloc(first, layout(100, 8), 300) };
        assert_ne!(moved, first);
        assert!(holds(moved, 100, 1) && holds(second, 100, 2));
    }

    #[test]
    fn large_pieces_come_and_go_by_the_c_library() {
        let bump = new();
        let small = piece(&bump, LARGE / 2, 16, 3);
        // SAFETY: see above.
        unsafe {
            let large = bump.realloc(small, layout(LARGE / 2, 16), LARGE);
            assert!(holds(large, LARGE / 2, 3));
            let larger = bump.realloc(large, layout(LARGE, 16), 4 * LARGE);
            assert!(holds(larger, LARGE / 2, 3));
            let small = bump.realloc(larger, layout(4 * LARGE, 16), LARGE / 2);
            assert!(holds(small, LARGE / 2, 3));
            bump.dealloc(small, layout(LARGE / 2, 16));
        }
        // Nothing of the above is left in the chunk but the first piece, which moved away.
        assert!(bump.left.get() >= CHUNK - 2 * LARGE);
    }
}
