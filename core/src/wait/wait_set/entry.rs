//! The word of a slot: its state, its owner and a generation.

use super::backing::WakeMethod;

/// The state in the low byte of a slot's word. Any other value is corrupt, and neither free nor asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SlotState {
    Free = 0,
    Awake = 1,
    OnFutex = 2,
    OnDoorbell = 3,
    /// The sleeper was woken and has not noticed.
    Woken = 4,
}

/// The word of a slot: the state in 8 bits, the member in 24, the generation in 32. Zeros are a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotWord(pub(super) u64);

impl SlotWord {
    /// Create the word of a slot from its parts.
    pub(super) fn new(generation: u32, member: u32, state: SlotState) -> Self {
        SlotWord(u64::from(generation) << 32 | u64::from(member) << 8 | state as u64)
    }

    /// Return the generation, which changes with the owner.
    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Return the number of the owner.
    pub(super) fn member(self) -> u32 {
        self.0 as u32 >> 8
    }

    /// Return true if the slot is in this state.
    pub(super) fn is(self, state: SlotState) -> bool {
        self.0 as u8 == state as u8
    }

    /// Return the way to wake the owner of the slot; None if the owner does not sleep or was woken already.
    pub(super) fn wake_method(self) -> Option<WakeMethod> {
        if self.is(SlotState::OnFutex) {
            Some(WakeMethod::Futex)
        } else if self.is(SlotState::OnDoorbell) {
            Some(WakeMethod::Doorbell)
        } else {
            None
        }
    }

    /// Return the word of the same owner in another state.
    pub(super) fn with_state(self, state: SlotState) -> Self {
        SlotWord(self.0 & !0xff | state as u64)
    }

    /// Return the word of the next owner, `member`, awake.
    pub(super) fn next_owner(self, member: u32) -> Self {
        SlotWord::new(self.generation().wrapping_add(1), member, SlotState::Awake)
    }
}
