//! The classes of small blocks by their sizes.

use crate::shared_heap::backing_file::PAGE;

/// The size of the largest of these blocks, in bytes.
pub(in crate::shared_heap) const LARGEST: u64 = 16 << 10;
/// The number of classes.
pub(in crate::shared_heap) const CLASSES: usize = 64;
/// The most pages of a slab.
const MAX_PAGES: u64 = 32;

/// A class of blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(in crate::shared_heap) struct Class {
    /// Bytes of a block.
    pub(in crate::shared_heap) size: u64,
    /// Pages of a slab.
    pub(in crate::shared_heap) pages: u64,
    /// Blocks of a slab.
    pub(in crate::shared_heap) count: u64,
}

impl Class {
    /// Returns the number of words of one bitmap.
    pub(super) const fn bitmap_words(&self) -> u64 {
        self.count.div_ceil(64)
    }

    /// Returns the bytes of the bitmaps, which the first block follows.
    pub(super) const fn header_size(&self) -> u64 {
        2 * 8 * self.bitmap_words()
    }

    /// Returns the class for blocks of this size. Its slabs have the fewest pages, at most [`MAX_PAGES`], that hold at
    /// least four blocks and waste at most a sixteenth; [`MAX_PAGES`] if no number does.
    const fn of(size: u64) -> Self {
        let mut pages = 1;
        loop {
            let bytes = pages * PAGE;
            let mut class = Class {
                size,
                pages,
                count: bytes / size,
            };
            while class.header_size() + class.count * size > bytes {
                class.count -= 1;
            }
            let waste = bytes - class.count * size;
            if (class.count >= 4 && waste * 16 <= bytes) || pages == MAX_PAGES {
                return class;
            }
            pages += 1;
        }
    }
}

pub(super) const TABLE: [Class; CLASSES] = {
    let mut table = [Class::of(16); CLASSES];
    let mut index = 0;
    while index < CLASSES {
        let size = if index < 16 {
            16 * (index as u64 + 1)
        } else {
            let base = 256u64 << ((index - 16) / 8);
            base + base / 8 * ((index as u64 - 16) % 8 + 1)
        };
        table[index] = Class::of(size);
        index += 1;
    }
    table
};

/// Returns the number of the smallest class for this many bytes, at most [`LARGEST`].
pub(super) fn index_of(len: u64) -> u8 {
    let last = len.max(1) - 1;
    if last < 256 {
        return (last / 16) as u8;
    }
    let power = last.ilog2();
    (16 + (power - 8) * 8) as u8 + (last >> (power - 3) & 7) as u8
}

/// Returns the smallest class for this many bytes, at most [`LARGEST`].
pub(in crate::shared_heap) fn class_of(len: u64) -> &'static Class {
    &TABLE[usize::from(index_of(len))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_large_enough_and_little_larger() {
        for len in 0..=LARGEST {
            let class = class_of(len);
            assert!(class.size >= len && class.size % 16 == 0);
            assert!(class.size <= 16 || class.size - len < 16.max(class.size / 8));
        }
    }

    #[test]
    fn a_slab_is_mostly_blocks() {
        for class in TABLE {
            let bytes = class.pages * PAGE;
            assert!(class.header_size() + class.count * class.size <= bytes);
            assert!(class.count * class.size * 8 >= bytes * 7, "{class:?}");
            assert!(class.count >= 4 && class.count <= u64::from(u16::MAX));
        }
    }
}
