//! The text form of a program.
