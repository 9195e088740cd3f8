//! Cells without an efficiency.

use crate::record::State;

use super::scale::Rgb;

/// Why a cell has no efficiency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blank {
    /// Nothing is known.
    Unknown,
    /// It was built, or said to be right, but there is no time.
    Untimed,
    /// It takes other problems only.
    Refused,
    /// It is right, and too slow to have been measured further.
    Slow,
    /// A rule says that it cannot be right.
    Invalid,
    /// It was not built or not run, and is to be tried again.
    Deferred,
    /// It did not compile.
    CompileError,
    /// It compiled to something without its instruction.
    NoMma,
    /// It could not be launched.
    LaunchError,
    /// It computes something else.
    Wrong,
}

impl Blank {
    /// All of them, in the order of legends.
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

    /// What a state without a usable time is.
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

    /// What is written into the cell.
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

    /// What a legend says.
    pub const fn words(self) -> &'static str {
        match self {
            Blank::Unknown => "nothing known",
            Blank::Untimed => "built, not timed",
            Blank::Refused => "refuses the problem",
            Blank::Slow => "right, far too slow",
            Blank::Invalid => "breaks a rule",
            Blank::Deferred => "to be tried again",
            Blank::CompileError => "does not compile",
            Blank::NoMma => "lacks its instruction",
            Blank::LaunchError => "does not launch",
            Blank::Wrong => "wrong result",
        }
    }

    /// What a cell is filled with: grays where nothing is wrong with the kernel, else colours that the scale lacks.
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
