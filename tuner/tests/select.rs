//! Selections with the large instances of the second tier.

#[path = "suite"]
mod suite {
    mod select;
}
