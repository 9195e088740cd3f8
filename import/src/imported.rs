//! The result of an import.

use std::fmt;

use fourfold_executor::TensorReference;
use fourfold_ir::{Module, Tensor};

/// The programs of a model, and what was left out.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// The programs, in the order of the model's tensors.
    pub programs: Vec<ImportedProgram>,
    /// The modules, tensors and nodes that did not become programs.
    pub left_out: Vec<LeftOut>,
}

/// A part of a model as a program.
#[derive(Clone, Debug)]
pub struct ImportedProgram {
    /// The path of the module in the model, such as `model.layers.0.mlp.up_proj`.
    pub name: String,
    /// The kind of the module.
    pub kind: ProgramKind,
    /// The program. Its verification has no errors.
    pub module: Module,
    /// The tensors of `param` inputs. [`crate::write()`] makes the paths of their files relative to the program.
    pub tensors: Vec<TensorReference>,
    /// The `param` inputs that no file holds in the form of the program, with their values. [`crate::write()`] writes
    /// them to NAME.safetensors.
    pub data: Vec<(String, Tensor)>,
    /// Facts about the format that the program does not state, one sentence each.
    pub notes: Vec<String>,
}

/// The kind of an imported program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgramKind {
    /// One linear layer.
    Linear,
    /// Linears that share an input, such as q, k and v.
    Group,
    /// A feed-forward block.
    Mlp,
    /// A mixture of experts.
    Moe,
    /// A whole block of a known architecture.
    Block,
    /// A whole graph.
    Graph,
}

impl ProgramKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ProgramKind::Linear => "linear",
            ProgramKind::Group => "group",
            ProgramKind::Mlp => "mlp",
            ProgramKind::Moe => "moe",
            ProgramKind::Block => "block",
            ProgramKind::Graph => "graph",
        }
    }
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A module, tensor or node that did not become a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The name of the module, tensor or node.
    pub name: String,
    /// The reason, as a stable code.
    pub code: LeftOutCode,
    /// The reason in words. It names the tensor at fault.
    pub message: String,
}

macro_rules! codes {
    ($($(#[$attr:meta])* $variant:ident => $name:literal,)*) => {
        /// The reason that a module did not become a program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LeftOutCode { $($(#[$attr])* $variant,)* }

        impl LeftOutCode {
            /// Every code.
            pub const ALL: &'static [LeftOutCode] = &[$(LeftOutCode::$variant,)*];

            /// The code in reports.
            pub fn name(self) -> &'static str {
                match self { $(LeftOutCode::$variant => $name,)* }
            }
        }
    };
}

codes! {
    /// The weights of the module have no block-scaled or FP8 format.
    NotQuantized => "not_quantized",
    /// The module is a norm, an embedding or another module without a matrix multiplication.
    NotALinear => "not_a_linear",
    /// The tensor scales the key-value cache, which is not part of a linear.
    KvCacheScale => "kv_cache_scale",
    /// The tensors of the module fit no known format.
    UnknownFormat => "unknown_format",
    /// The tensors fit several formats, and no configuration decides between them.
    AmbiguousFormat => "ambiguous_format",
    /// The format is known, but not imported.
    UnsupportedFormat => "unsupported_format",
    /// The configuration contradicts the tensors.
    Contradiction => "contradiction",
    /// A tensor of the format is missing.
    MissingTensor => "missing_tensor",
    /// The dtype of a tensor does not fit the format.
    WrongDtype => "wrong_dtype",
    /// The shape of a tensor does not fit the format.
    WrongShape => "wrong_shape",
    /// A scale of a whole tensor is not a positive finite number, or the factor of an expert is negative or not finite.
    InvalidScale => "invalid_scale",
    /// The block or group has a tensor or a setting that its program would not have.
    UnsupportedBlock => "unsupported_block",
    /// The file is not read, because another one takes its place.
    UnusedFile => "unused_file",
    /// Two modules would have the same file.
    NameCollision => "name_collision",
    /// A node or graph uses an operator that has no equivalent.
    UnsupportedOperator => "unsupported_operator",
    /// The file may hold another model than the imported one.
    OtherModel => "other_model",
    /// The tensor belongs to no imported module.
    UnusedTensor => "unused_tensor",
}

impl fmt::Display for LeftOutCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
