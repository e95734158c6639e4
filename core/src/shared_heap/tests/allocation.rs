use super::metadata::checked;
use super::*;
use crate::shared_heap::HeapError;
use crate::shared_heap::unfinished_allocs::MAX_UNFINISHED;
use std::collections::BTreeMap;

const ME: u64 = 1 << 32 | 1;
const MIB: u64 = 1 << 20;

/// Writes the offset into the first and the last word of a block.
fn fill(shared: &Shared, offset: u64, len: u64) {
    shared.store(offset, offset ^ len);
    let last = offset + (len.max(8) - 8) / 8 * 8;
    shared.store(last, offset ^ len);
}

fn is_filled(shared: &Shared, offset: u64, len: u64) -> bool {
    let last = offset + (len.max(8) - 8) / 8 * 8;
    [offset, last].map(|at| shared.load(at)) == [offset ^ len; 2]
}

#[test]
fn blocks_of_all_sizes_lie_beside_each_other() {
    let shared = Shared::new(2048 * MIB);
    let blocks = shared.blocks(ME);
    let mut sizes: Vec<u64> = (0..300).map(|i| i * 7).collect();
    sizes.extend((0..29).map(|power| 1 << power));
    sizes.extend((0..29).map(|power| (1 << power) + 1));
    let made: Vec<_> = sizes
        .iter()
        .map(|&len| (blocks.allocate(len, soon()).unwrap(), len))
        .collect();
    for &(offset, len) in &made {
        assert_eq!(offset % if len > 16 << 10 { PAGE } else { 16 }, 0);
        fill(&shared, offset, len);
    }
    let metadata = checked(&blocks);
    for &(offset, len) in &made {
        assert!(metadata.blocks[&offset] >= len && is_filled(&shared, offset, len));
    }
    let mut end = 0;
    for (offset, size) in &metadata.blocks {
        assert!(*offset >= end);
        end = offset + size;
    }
    for (offset, _) in made {
        blocks.free(offset, soon()).unwrap();
    }
    let metadata = checked(&blocks);
    assert!(metadata.blocks.is_empty());
    assert!(metadata.backed <= 4 * MIB, "the rest was returned");
}

#[test]
fn freeing_an_invalid_offset_fails() {
    let shared = Shared::new(64 * MIB);
    let blocks = shared.blocks(ME);
    let [small, large] = [100, 100_000].map(|len| blocks.allocate(len, soon()).unwrap());
    let filled = [100, 100_000].map(|len| blocks.reserve(len, soon()).unwrap());
    let mut wrong = vec![0, 8, START, START + 4096, u64::MAX, 1 << 63, 1 << 36];
    wrong.extend([
        small + 8,
        small - 16,
        small + 1,
        large + 16,
        large + PAGE,
        large - PAGE,
    ]);
    wrong.extend(
        filled
            .iter()
            .map(super::super::allocator::Reservation::offset),
    );
    let free = |offset| blocks.free(offset, soon());
    for offset in wrong {
        let freed = free(offset);
        assert!(
            matches!(freed, Err(HeapError::NoBlock { .. })),
            "{offset}: {freed:?}"
        );
    }
    for offset in [small, large] {
        free(offset).unwrap();
        assert!(
            matches!(free(offset), Err(HeapError::NoBlock { .. })),
            "twice"
        );
    }
    for block in &filled {
        blocks.release(block, soon()).unwrap();
        let again = blocks.release(block, soon());
        assert!(matches!(again, Err(HeapError::NotUnfinished { .. })));
        let late = blocks
            .undo_log()
            .transact(soon(), |t| blocks.commit(t, block));
        assert!(matches!(late, Err(HeapError::NotUnfinished { .. })));
    }
    assert!(checked(&blocks).blocks.is_empty());
}

#[test]
fn max_memory_is_a_limit_and_can_be_used_up() {
    let shared = Shared::new(16 * MIB);
    let blocks = shared.blocks(ME);
    let all = blocks.allocate(16 * MIB, soon()).unwrap();
    let more = blocks.allocate(1, soon());
    let Err(HeapError::Limit { asked, used, limit }) = more else {
        panic!("{more:?}");
    };
    assert_eq!((asked, used, limit), (1, 16 * MIB, 16 * MIB));
    blocks.free(all, soon()).unwrap();
    // In small blocks, of which every second one is freed: their pages then serve large blocks.
    let pieces: Vec<_> =
        std::iter::from_fn(|| blocks.allocate(4 * PAGE + 3000, soon()).ok()).collect();
    assert!((pieces.len() as u64 + 1) * 5 * PAGE > 16 * MIB);
    for piece in pieces.iter().step_by(2) {
        blocks.free(*piece, soon()).unwrap();
    }
    let half = blocks.allocate(7 * MIB, soon()).unwrap();
    checked(&blocks);
    for piece in pieces.into_iter().skip(1).step_by(2).chain([half]) {
        blocks.free(piece, soon()).unwrap();
    }
    blocks.allocate(16 * MIB, soon()).unwrap();
}

#[test]
fn a_lack_of_memory_is_an_error_and_changes_nothing() {
    let path = format!("/dev/shm/shmrpc-core-shared-{}", std::process::id());
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: all-zero bytes are a valid `statvfs`, a struct of integers, which is writable.
    let room = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::fstatvfs(file.as_raw_fd(), &raw mut found), 0);
        found.f_blocks * found.f_frsize
    };
    if room == 0 || room > 60 << 30 {
        return; // The file system has no limit, or one above the largest file.
    }
    let shared = Shared::over(file, room + MIB);
    let blocks = shared.blocks(ME);
    let kept = blocks.allocate(100, soon()).unwrap();
    let before = checked(&blocks);
    let failed = blocks.allocate(room + PAGE, soon());
    assert!(
        matches!(failed, Err(HeapError::System { .. })),
        "{failed:?}"
    );
    let after = checked(&blocks);
    assert_eq!(after.blocks, before.blocks);
    assert!(after.backed <= before.backed);
    blocks.free(kept, soon()).unwrap();
    blocks.allocate(100_000, soon()).unwrap();
}

#[test]
fn the_table_bounds_the_unfinished_blocks() {
    let shared = Shared::new(64 * MIB);
    let blocks = shared.blocks(ME);
    let all: Vec<_> = std::iter::from_fn(|| blocks.reserve(40, soon()).ok()).collect();
    assert!(all.len() + 1 >= MAX_UNFINISHED);
    let more = blocks.reserve(40, soon());
    assert!(matches!(more, Err(HeapError::TooManyUnfinished { .. })));
    checked(&blocks);
    for block in &all {
        blocks.release(block, soon()).unwrap();
    }
    assert_eq!(checked(&blocks).blocks.len(), 0);
}

/// The distribution of the sizes in a run.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// All powers of two up to this one, with equal probability.
    Powers(u64),
    /// Small sizes, like those of objects.
    Small,
    /// Sizes of a few pages.
    Medium,
    /// Each of these in turn, for some time.
    Rotating,
}

impl Sizes {
    fn pick(self, rng: &mut TestRng, turn: u64) -> u64 {
        match self {
            Sizes::Powers(most) => rng.any_size(most).max(16),
            Sizes::Small => 16 + rng.any_size(9),
            Sizes::Medium => 1000 + rng.below(60_000),
            Sizes::Rotating => match turn % 3 {
                0 => Sizes::Small.pick(rng, 0),
                1 => Sizes::Medium.pick(rng, 0),
                _ => rng.any_size(20).max(16),
            },
        }
    }
}

/// Runs operations of a member beside members that die, and checks them against a map. Returns the greatest memory use
/// divided by the greatest sum of the sizes.
fn operations(sizes: Sizes, most_live: u64, count: u64, seed: u64) -> f64 {
    let shared = Shared::new(4 * most_live + 64 * MIB);
    let blocks = shared.blocks(ME);
    let mut rng = TestRng(seed);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut order: Vec<u64> = Vec::new();
    let (mut live, mut peak_live, mut peak_memory) = (0, 0, 0);
    let mut target = most_live;
    let mut mortal = 2;
    let memory = || {
        let (pages, _, _) = blocks.layout();
        blocks.usage(soon()).unwrap().backed + (pages.map - START)
    };
    for step in 0..count {
        let turn = step * 12 / count;
        if step % (count / 24) == 0 {
            target = most_live / 4 + rng.below(3 * most_live / 4);
        }
        let grow = if live < target { 60 } else { 40 };
        if rng.below(100) < grow || order.is_empty() {
            let len = sizes.pick(&mut rng, turn);
            let offset = match rng.below(3) {
                0 => blocks.allocate(len, soon()).unwrap(),
                _ => {
                    let block = blocks.reserve(len, soon()).unwrap();
                    let committed = blocks
                        .undo_log()
                        .transact(soon(), |t| blocks.commit(t, &block));
                    committed.unwrap();
                    block.offset()
                }
            };
            fill(&shared, offset, len);
            assert_eq!(model.insert(offset, len), None);
            order.push(offset);
            live += len;
        } else {
            let index = rng.below(order.len() as u64) as usize;
            let offset = order.swap_remove(index);
            let len = model.remove(&offset).unwrap();
            assert!(
                is_filled(&shared, offset, len),
                "another block is over {offset}"
            );
            blocks.free(offset, soon()).unwrap();
            live -= len;
        }
        if rng.below(count / 20) == 0 {
            // A member that reserves and dies; without a process, which would take most of the time.
            mortal += 1;
            let dying = shared.blocks(1 << 32 | mortal);
            let sizes: Vec<_> = (0..20).map(|_| sizes.pick(&mut rng, turn)).collect();
            let reserved = sizes.iter().map(|&len| dying.reserve(len, soon()).unwrap());
            let reserved: Vec<_> = reserved.collect();
            peak_live = peak_live.max(live + sizes.iter().sum::<u64>());
            peak_memory = peak_memory.max(memory());
            assert_eq!(
                blocks
                    .recover(|owner| owner == 1 << 32 | mortal, soon())
                    .unwrap(),
                reserved.len()
            );
            let metadata = checked(&blocks);
            assert!(metadata.blocks.keys().eq(model.keys()));
        }
        peak_live = peak_live.max(live);
        peak_memory = peak_memory.max(memory());
    }
    let metadata = checked(&blocks);
    assert!(metadata.blocks.keys().eq(model.keys()));
    assert!(metadata.unfinished.is_empty());
    for offset in order {
        blocks.free(offset, soon()).unwrap();
    }
    assert!(checked(&blocks).blocks.is_empty());
    peak_memory as f64 / peak_live as f64
}

#[test]
fn operations_agree_with_a_map_and_waste_little_memory() {
    let count = scaled(50_000, 1_000_000);
    for (sizes, most_live, count) in [
        (Sizes::Powers(19), 32 * MIB, count),
        (
            Sizes::Powers(scaled(25, 27)),
            scaled(256, 1024) * MIB,
            scaled(200, 2_000),
        ),
        (Sizes::Small, scaled(2, 24) * MIB, count),
        (Sizes::Medium, scaled(32, 128) * MIB, count),
        (Sizes::Rotating, scaled(16, 64) * MIB, count),
    ] {
        let ratio = operations(sizes, most_live, count, 0x9e37_79b9_7f4a_7c15);
        println!("{sizes:?}: {ratio:.3} of the requested bytes");
        assert!(ratio < 1.4, "{sizes:?}: {ratio:.3}");
    }
}

#[test]
fn threads_share_an_allocator() {
    let shared = Shared::new(256 * MIB);
    let blocks = shared.blocks(ME);
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let (blocks, shared) = (&blocks, &shared);
            scope.spawn(move || {
                let mut rng = TestRng(seed);
                let mut mine = Vec::new();
                for _ in 0..5_000 {
                    if rng.below(2) == 0 || mine.is_empty() {
                        let len = rng.any_size(18).max(16);
                        let offset = blocks.allocate(len, soon()).unwrap();
                        fill(shared, offset, len);
                        mine.push((offset, len));
                    } else {
                        let index = rng.below(mine.len() as u64) as usize;
                        let (offset, len) = mine.swap_remove(index);
                        assert!(is_filled(shared, offset, len));
                        blocks.free(offset, soon()).unwrap();
                    }
                }
                for (offset, _) in mine {
                    blocks.free(offset, soon()).unwrap();
                }
            });
        }
    });
    assert!(checked(&blocks).blocks.is_empty());
}

#[test]
fn a_leaving_member_frees_an_unreported_run_once() {
    let shared = Shared::new(64 * MIB);
    let blocks = shared.blocks(ME);
    let large = blocks.allocate(32 * MIB, soon()).unwrap();
    blocks.leave_unreported_move(soon());
    // Freed and still backed: pages are left for `shrink_excess`.
    let freed = blocks
        .undo_log()
        .transact(soon(), |t| blocks.free_within(t, large));
    freed.unwrap();
    assert_eq!(blocks.abandon(soon()).unwrap(), 1);
    assert!(checked(&blocks).unfinished.is_empty());
}
