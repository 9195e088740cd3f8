//! The names of variants in text.

/// Gives an enum without fields the list of its variants, and the name of each in text.
macro_rules! named {
    ($name:ident { $($variant:ident => $text:literal,)* }) => {
        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name in text.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The variant with this name in text.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }
    };
}

pub(crate) use named;
