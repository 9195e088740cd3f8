//! The functions of elementwise ops and reductions, and their names.

use std::fmt;

use crate::named::named;

macro_rules! named_enum {
    ($(#[$attr:meta])* $name:ident { $($(#[$vattr:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vattr])* $variant,)* }

        named!($name { $($variant => $text,)* });

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named_enum!(
    /// Elementwise functions of one operand.
    UnaryKind {
        /// -x
        Neg => "neg",
        /// |x|
        Abs => "abs",
        /// e^x
        Exp => "exp",
        /// Square root.
        Sqrt => "sqrt",
        /// 1 / sqrt(x)
        Rsqrt => "rsqrt",
        /// 1 / x
        Reciprocal => "reciprocal",
        /// Hyperbolic tangent.
        Tanh => "tanh",
        /// The error function, 2/√π times the integral of e^-t² from 0 to x.
        Erf => "erf",
        /// 1 / (1 + e^-x)
        Sigmoid => "sigmoid",
        /// max(x, 0). NaN propagates.
        Relu => "relu",
        /// x · Φ(x) with the error function.
        Gelu => "gelu",
        /// x/2 · (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
        GeluTanh => "gelu_tanh",
        /// x · sigmoid(x)
        Silu => "silu",
        /// Natural logarithm. NaN below 0, -inf at 0.
        Log => "log",
        /// Sine of radians.
        Sin => "sin",
        /// Cosine of radians.
        Cos => "cos",
        /// The largest integer that is not above x.
        Floor => "floor",
        /// The least integer that is not below x.
        Ceil => "ceil",
        /// The nearest integer; the even one of two.
        Round => "round",
        /// 2^x
        Exp2 => "exp2",
        /// Logarithm to base 2. NaN below 0, -inf at 0.
        Log2 => "log2",
    }
);

named_enum!(
    /// Elementwise functions of two operands.
    BinaryKind {
        /// Sum.
        Add => "add",
        /// Difference.
        Sub => "sub",
        /// Product.
        Mul => "mul",
        /// Quotient.
        Div => "div",
        /// The larger operand. NaN propagates.
        Max => "max",
        /// The smaller operand. NaN propagates.
        Min => "min",
        /// The left operand to the power of the right one, as IEEE 754's `pow`.
        Pow => "pow",
    }
);

named_enum!(
    /// Functions of the bits of two integers. The amount of a shift is unsigned, so a negative one is large.
    BitwiseKind {
        /// The bits that both operands have.
        And => "and",
        /// The bits that an operand has.
        Or => "or",
        /// Moves bits up and adds zeros; 0 for an amount of 32 or more.
        ShiftLeft => "shift_left",
        /// Moves bits down and repeats the sign; the sign alone for an amount of 32 or more.
        ShiftRight => "shift_right",
    }
);

named_enum!(
    /// Comparisons.
    Predicate {
        /// Equal.
        Eq => "eq",
        /// Not equal; true for NaN.
        Ne => "ne",
        /// Less.
        Lt => "lt",
        /// Less or equal.
        Le => "le",
        /// Greater.
        Gt => "gt",
        /// Greater or equal.
        Ge => "ge",
    }
);

named_enum!(
    /// Reductions.
    ReduceKind {
        /// Sum; 0 without elements.
        Sum => "sum",
        /// Maximum; NaN propagates; -inf without elements.
        Max => "max",
        /// Minimum; NaN propagates; +inf without elements.
        Min => "min",
        /// Sum divided by the number of elements; NaN without elements.
        Mean => "mean",
        /// Largest magnitude; NaN propagates; 0 without elements.
        Amax => "amax",
    }
);
