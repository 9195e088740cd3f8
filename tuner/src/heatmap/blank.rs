//! Cells without an efficiency.

use crate::record::State;

use super::scale::Rgb;

/// The reason why a cell has no efficiency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blank {
    /// There is no record.
    Unknown,
    /// The kernel was built or verified, but not timed.
    Untimed,
    /// The kernel does not support the problem.
    Refused,
    /// The kernel is correct, but too slow to be timed.
    Slow,
    /// The combination breaks a validity rule.
    Invalid,
    /// The kernel was not built or not run, and will be tried again.
    Deferred,
    /// The kernel did not compile.
    CompileError,
    /// The compiled kernel lacks its MMA instruction.
    NoMma,
    /// The launch failed.
    LaunchError,
    /// A result is wrong.
    Wrong,
}

impl Blank {
    /// Every variant, in legend order.
    pub const ALL: [Blank; 10] = [
        Blank::Unknown,
        Blank::Untimed,
        Blank::Refused,
        Blank::Slow,
        Blank::Invalid,
        Blank::Deferred,
        Blank::CompileError,
        Blank::NoMma,
        Blank::LaunchError,
        Blank::Wrong,
    ];

    /// The variant of a state without a usable time.
    pub(super) fn of(state: State) -> Blank {
        match state {
            State::Good | State::Built => Blank::Untimed,
            State::Refused => Blank::Refused,
            State::Slow => Blank::Slow,
            State::Invalid => Blank::Invalid,
            State::Deferred => Blank::Deferred,
            State::CompileError => Blank::CompileError,
            State::NoMma => Blank::NoMma,
            State::LaunchError => Blank::LaunchError,
            State::Wrong => Blank::Wrong,
        }
    }

    /// The letter in the cell.
    pub const fn letter(self) -> char {
        match self {
            Blank::Unknown => '.',
            Blank::Untimed => 'U',
            Blank::Refused => 'R',
            Blank::Slow => 'S',
            Blank::Invalid => 'I',
            Blank::Deferred => 'D',
            Blank::CompileError => 'C',
            Blank::NoMma => 'N',
            Blank::LaunchError => 'L',
            Blank::Wrong => 'W',
        }
    }

    /// The text in the legend.
    pub const fn words(self) -> &'static str {
        match self {
            Blank::Unknown => "no record",
            Blank::Untimed => "built, not timed",
            Blank::Refused => "problem not supported",
            Blank::Slow => "correct, too slow to time",
            Blank::Invalid => "invalid configuration",
            Blank::Deferred => "will be tried again",
            Blank::CompileError => "does not compile",
            Blank::NoMma => "MMA instruction missing",
            Blank::LaunchError => "does not launch",
            Blank::Wrong => "wrong result",
        }
    }

    /// The fill colour: gray if nothing is wrong with the kernel, else a colour outside the scale.
    pub(super) const fn colour(self) -> Rgb {
        match self {
            Blank::Unknown => Rgb(0xff, 0xff, 0xff),
            Blank::Untimed => Rgb(0xe2, 0xe2, 0xe2),
            Blank::Refused => Rgb(0xb9, 0xb9, 0xb9),
            Blank::Slow => Rgb(0xc9, 0xa2, 0x7c),
            Blank::Invalid => Rgb(0xf6, 0xcf, 0xda),
            Blank::Deferred => Rgb(0x96, 0x96, 0x96),
            Blank::CompileError => Rgb(0xf0, 0xa3, 0xb8),
            Blank::NoMma => Rgb(0xf2, 0x9a, 0x4a),
            Blank::LaunchError => Rgb(0xe4, 0x66, 0x9c),
            Blank::Wrong => Rgb(0xd6, 0x27, 0x28),
        }
    }
}
