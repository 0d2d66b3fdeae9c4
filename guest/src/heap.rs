//! Makes the heap of the snapshot dense before it is taken.
//!
//! Why: the allocator serves a request from the first hole that fits, and
//! start-up leaves holes all over the heap. An instance that allocated from
//! them would write to a page of its own for almost every object; with the
//! holes closed it writes to the few pages at the end. Invariant: nothing that
//! is in use changes; what is closed stays closed for ever.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// The largest and smallest block that is asked for.
const LARGEST: usize = 1 << 20;
const SMALLEST: usize = 16;
const ALIGNMENT: usize = 8;

/// Allocates every hole below the end of the heap and lets go of none. The
/// blocks are zero, so what start-up left in them is gone, too.
pub(crate) fn close_holes() {
    let mut end = 0_usize;
    let mut size = LARGEST;
    while size >= SMALLEST {
        while let Ok(layout) = Layout::from_size_align(size, ALIGNMENT) {
            // SAFETY: the size is not zero.
            let block = unsafe { alloc_zeroed(layout) };
            let address = block as usize;
            if block.is_null() || address > end {
                end = end.max(address);
                if !block.is_null() {
                    // SAFETY: made just now with this layout.
                    unsafe { dealloc(block, layout) };
                }
                break;
            }
        }
        // In steps small enough that what is left of a hole is closed as well.
        size -= if size > 4096 { size / 4 / ALIGNMENT * ALIGNMENT } else { ALIGNMENT };
    }
}
