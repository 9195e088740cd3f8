//! Typed indices and the arenas they index.
//!
//! Values, ops and symbols refer to each other in cycles: an op to its operands, a value to its definition. Rust
//! references cannot express cycles, and pointers would take twice the space. An entity is therefore a `u32` newtype
//! that indexes an arena. Diagnostics print its `Display` form if an entity has no name.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An index into an [`Arena`].
pub trait Entity: Copy + Eq {
    /// The entity at this position of its arena.
    ///
    /// # Panics
    /// If `index` exceeds 32 bits.
    fn from_index(index: usize) -> Self;
    /// The position in the arena.
    fn index(self) -> usize;
}

macro_rules! define_entity {
    ($(#[$attr:meta])* $name:ident, $prefix:literal) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Entity for $name {
            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).expect("an arena holds at most 2^32 entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

define_entity!(
    /// A tensor: an input of the program or a result of an op. Written `%name` in text.
    Value, "value"
);
define_entity!(
    /// An operation. Indices follow program order, and an op uses only values defined before it.
    Op, "op"
);
define_entity!(
    /// A named extent that is known only at run time, such as `M`.
    Symbol, "symbol"
);

/// A growable table indexed by one kind of entity.
#[derive(Clone, PartialEq)]
pub struct Arena<E, T> {
    items: Vec<T>,
    entity: PhantomData<E>,
}

impl<E: Entity, T> Arena<E, T> {
    /// An empty arena.
    pub fn new() -> Self {
        Arena { items: Vec::new(), entity: PhantomData }
    }

    /// Adds an item and returns its entity.
    pub fn push(&mut self, item: T) -> E {
        let entity = E::from_index(self.items.len());
        self.items.push(item);
        entity
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if the arena has no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The item of an entity; `None` if the index is out of range.
    pub fn get(&self, entity: E) -> Option<&T> {
        self.items.get(entity.index())
    }

    /// All entities in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = E> + DoubleEndedIterator + use<E, T> {
        (0..self.items.len()).map(E::from_index)
    }

    /// All items in order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator {
        self.items.iter()
    }

    /// All entities with their items, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (E, &T)> + DoubleEndedIterator {
        self.items.iter().enumerate().map(|(index, item)| (E::from_index(index), item))
    }
}

impl<E: Entity, T> Default for Arena<E, T> {
    fn default() -> Self {
        Arena::new()
    }
}

impl<E: Entity, T> FromIterator<T> for Arena<E, T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Arena { items: items.into_iter().collect(), entity: PhantomData }
    }
}

impl<E: Entity, T> Index<E> for Arena<E, T> {
    type Output = T;
    fn index(&self, entity: E) -> &T {
        &self.items[entity.index()]
    }
}

impl<E: Entity, T> IndexMut<E> for Arena<E, T> {
    fn index_mut(&mut self, entity: E) -> &mut T {
        &mut self.items[entity.index()]
    }
}

impl<E: Entity + fmt::Debug, T: fmt::Debug> fmt::Debug for Arena<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
