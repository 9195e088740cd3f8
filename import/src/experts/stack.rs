//! One projection of every expert, as the operands of one product of groups.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{BlockFormat, ElementType};

use crate::linear::{Activation, Linear, Scalar, Scales};

/// A projection of every expert, in the order of experts. All have one form, but scales and values of their own.
#[derive(Clone, Debug)]
pub(crate) struct Stack<'a> {
    experts: Vec<&'a Linear>,
}

impl<'a> Stack<'a> {
    /// Checks that the linears have one form, and one that a product of groups takes. `input` is the type of x.
    pub(crate) fn new(experts: Vec<&'a Linear>, input: ElementType) -> Result<Stack<'a>, String> {
        let Some(first) = experts.first().copied() else { return Err("it has no experts".to_owned()) };
        let stack = Stack { experts };
        stack.check_format(input)?;
        for expert in &stack.experts {
            if let Some(part) = difference(first, expert) {
                let [other, first] = [&expert.name, &first.name].map(|name| own(name));
                return Err(format!("`{other}` has another {part} than `{first}`"));
            }
        }
        if !stack.shares_activation()
            && let Activation::Nvfp4(_, formula) = &first.activation
            && *formula != Nvfp4Formula::DEFAULT
        {
            let first = own(&first.name);
            return Err(format!(
                "the experts of `{first}` have different scales of x in a formula of their own"
            ));
        }
        Ok(stack)
    }

    fn check_format(&self, input: ElementType) -> Result<(), String> {
        let Linear { name, weight, activation, input_factor, .. } = self.first();
        let name = own(name);
        if input_factor.is_some() {
            return Err(format!("`{name}` multiplies x by a factor for each input"));
        }
        let Scales::Block { element: scale, block, .. } = &weight.scales else {
            return Err(format!("`{name}` has FP8 weights with one scale, which no product of groups takes"));
        };
        let a = match activation {
            Activation::Plain => input,
            Activation::Nvfp4(..) => ElementType::F4E2M1FN,
            Activation::Mx(element, _) => *element,
            Activation::Nvfp4OfCall(_) => {
                return Err(format!("`{name}` takes the scale of x from the rows of each expert"));
            }
            Activation::Fp8(_) => {
                return Err(format!("`{name}` has FP8 activations, which no product of groups takes"));
            }
        };
        let format = BlockFormat { a, b: weight.element, scale: *scale, block: *block };
        if format.is_standard() {
            return Ok(());
        }
        let help = match activation {
            Activation::Plain if input == ElementType::F32 => "; import with `--input-type bf16`",
            _ => "",
        };
        Err(format!(
            "no product of groups takes x of {a} and the weight of `{name}`, {} with {scale} scales per {block}{help}",
            weight.element
        ))
    }

    /// The linear of expert 0.
    pub(crate) fn first(&self) -> &'a Linear {
        self.experts[0]
    }

    pub(crate) fn experts(&self) -> &[&'a Linear] {
        &self.experts
    }

    /// Returns true if all experts quantize x in the same way.
    pub(crate) fn shares_activation(&self) -> bool {
        self.experts.iter().all(|expert| expert.activation.equals(&self.first().activation))
    }

    /// Returns true if each expert quantizes x as the same expert of another projection does.
    pub(crate) fn has_activations_of(&self, other: &Stack<'_>) -> bool {
        let mut pairs = self.experts.iter().zip(&other.experts);
        self.experts.len() == other.experts.len()
            && pairs.all(|(one, other)| one.activation.equals(&other.activation))
    }

    /// Returns true if the weight of each expert has the global scale of the same expert of another projection.
    pub(crate) fn has_weight_scales_of(&self, other: &Stack<'_>) -> bool {
        let (own, others) = (self.weight_scales(), other.weight_scales());
        own.len() == others.len() && own.iter().zip(others).all(|(one, other)| one.equals(other))
    }

    /// The global scales of x.
    pub(crate) fn activation_scales(&self) -> Vec<&'a Scalar> {
        let scale = |expert: &&'a Linear| match &expert.activation {
            Activation::Nvfp4(scale, _) => Some(scale),
            _ => None,
        };
        self.experts.iter().filter_map(scale).collect()
    }

    /// The global scales of the weights; empty if they have none.
    pub(crate) fn weight_scales(&self) -> Vec<&'a Scalar> {
        let scale = |expert: &&'a Linear| match &expert.weight.scales {
            Scales::Block { global, .. } => global.as_ref(),
            Scales::Tensor(_) => None,
        };
        self.experts.iter().filter_map(scale).collect()
    }
}

/// The name of an expert's linear from `experts` on.
fn own(name: &str) -> &str {
    name.rfind("experts.").map_or(name, |at| &name[at..])
}

/// Returns the first property that two experts must share and do not.
fn difference(first: &Linear, other: &Linear) -> Option<&'static str> {
    let form = |scalar: &Scalar| (scalar.convention, scalar.stored.element);
    let scales = |linear: &Linear| match &linear.weight.scales {
        Scales::Block { element, block, layout, global, .. } => {
            (Some((*element, *block, *layout)), global.as_ref().map(form))
        }
        Scales::Tensor(scale) => (None, Some(form(scale))),
    };
    let activation = |linear: &Linear| match &linear.activation {
        Activation::Plain => (0, None, None, None),
        Activation::Nvfp4(scale, formula) => (1, Some(form(scale)), Some(*formula), None),
        Activation::Nvfp4OfCall(formula) => (2, None, Some(*formula), None),
        Activation::Mx(element, rounding) => (3, None, None, Some((*element, *rounding))),
        Activation::Fp8(scale) => (4, Some(form(scale)), None, None),
    };
    let bias = |linear: &Linear| linear.bias.as_ref().map(|bias| bias.element);
    if (first.n, first.k) != (other.n, other.k) {
        Some("shape")
    } else if first.weight.element != other.weight.element || scales(first) != scales(other) {
        Some("format of its weight")
    } else if activation(first) != activation(other) {
        Some("quantization of x")
    } else if bias(first) != bias(other) {
        Some("bias")
    } else if first.input_factor.is_some() != other.input_factor.is_some() {
        Some("factor of its inputs")
    } else {
        None
    }
}
