//! Seeded input data.
/// Stub.
pub enum Rule {
    /// Stub.
    Exact,
    /// Stub.
    Contest,
}
