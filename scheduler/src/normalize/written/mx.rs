//! Matches an MX quantization written out op by op, from its conversion to codes backwards.
//!
//! Programs compute scales in many ways: logarithms, bit masks, shifts, comparisons. All of them are functions of one
//! number, the largest magnitude of a block. So no form is matched: the function is evaluated on ranges, which proves
//! that it equals that of a `block_quantize` for every number. Where it does not, the proof finds such a number.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet, VecDeque};

use fourfold_ir::numeric::{
    self, InfinityScale, LeastScale, LeastStep, MxEdges, MxElement, NanScale, ScaleRounding, e8m0_to_f32,
};
use fourfold_ir::{BinaryKind, ElementType, Module, Op, OpKind, ScaleLayout, Value};

use super::chain::{Chain, NotAFunction, Source};
use super::quantization::{Difference, bounded, magnitudes};
use super::range::Range;
use super::values::Graph;

/// Elements per scale.
const BLOCK: u64 = 32;

/// A quantization that equals a `block_quantize`.
pub(crate) struct MxQuantization {
    /// The values, as a tensor that has whole blocks along its last axis.
    pub(crate) values: Value,
    pub(crate) rounding: ScaleRounding,
    pub(crate) edges: MxEdges,
    /// The op that makes the scales.
    pub(crate) scales: Op,
    /// All matched ops.
    pub(crate) ops: Vec<Op>,
    /// True if the rounding of a logarithm, product or quotient is dropped.
    pub(crate) contract: bool,
}

/// The live ops that use a value.
pub(crate) type Users<'a> = dyn Fn(Value) -> Vec<Op> + 'a;

/// The number that scales values to codes.
#[derive(Clone, Copy, PartialEq)]
enum Scaling {
    Divides,
    Multiplies,
}

/// Matches the quantization that ends in this conversion to codes. With `contract`, roundings of logarithms, products
/// and quotients may be dropped.
pub(crate) fn mx_quantization(
    module: &Module,
    users: &Users<'_>,
    anchor: Op,
    contract: bool,
) -> Result<MxQuantization, Difference> {
    let mut graph = Graph::new(module);
    graph.matched.push(anchor);
    let element = mx_element(module.ty(module.ops[anchor].results[0]).element);
    let Scaled { op, values, factor, scaling } = scaled(&mut graph, anchor, element, &[BLOCK])?;
    let differs = |op: Op, expected: &'static str| Difference { op, expected: Cow::Borrowed(expected) };
    let mut chain = Chain::new(module, Source::Reduction);
    const FUNCTION: &str = "a number that follows from the largest magnitude of a block only";
    let step = chain.add(factor).map_err(|NotAFunction(at)| differs(at.unwrap_or(op), FUNCTION))?;
    let Some(amax) = chain.argument() else { return Err(differs(op, FUNCTION)) };
    let reduction = module.defining_op(amax).unwrap_or(op);
    graph.matched.push(reduction);
    let source = magnitudes(&mut graph, reduction, BLOCK)?;
    let behind = graph.moved(values);
    if behind.last() != Some(&source) {
        return Err(differs(op, "the values whose largest magnitudes give the scales"));
    }
    let has_blocks = |value: &&Value| {
        let ty = module.ty(**value);
        let whole =
            ty.shape.last().is_some_and(|last| last.is_multiple_of(BLOCK) && last.as_fixed() != Some(0));
        ty.element.is_arithmetic() && ty.rank() >= 2 && whole
    };
    let Some(values) = behind.iter().rev().find(has_blocks).copied() else {
        return Err(differs(op, "values with at least two axes"));
    };
    let mut closest = None;
    for scales in scale_ops(module, users, amax) {
        let Ok(byte) = chain.add(module.ops[scales].results[0]) else { continue };
        let function = Function { chain: &chain, byte, step, scaling, element };
        for exactly in [false, true].into_iter().take(1 + usize::from(contract)) {
            match function.fit(module.ty(amax).element, exactly) {
                Ok((rounding, edges)) => {
                    let mut ops = graph.matched;
                    ops.extend(chain.ops.iter().copied().chain([scales]));
                    ops.sort_unstable();
                    ops.dedup();
                    return Ok(MxQuantization { values, rounding, edges, scales, ops, contract: exactly });
                }
                Err(Unequal { of_scale, expected }) => {
                    let at = if of_scale { scales } else { op };
                    closest.get_or_insert(Difference { op: at, expected: Cow::Owned(expected) });
                }
            }
        }
    }
    Err(closest.unwrap_or_else(|| {
        let expected = match (chain.rounds_to(ElementType::F8E4M3FN), element) {
            (true, MxElement::E4M3 | MxElement::E5M2) => {
                "scales in f8E8M0FNU: block_quantize makes f8E4M3FN scales for f4E2M1FN codes only"
            }
            _ => {
                "scales in f8E8M0FNU, which a convert or a bitcast makes of the same largest magnitudes: \
                  block_quantize makes no f32 scales"
            }
        };
        differs(op, expected)
    }))
}

/// Returns whether a conversion to codes scales values by one number per block, which follows from a reduction.
pub(crate) fn scales_blocks(module: &Module, anchor: Op) -> bool {
    /// The blocks of known formats, so that a dynamic quantization of rows is none.
    const BLOCKS: [u64; 4] = [16, 32, 64, 128];
    /// The maximum number of ops to visit, so that the time is linear.
    const MOST_VISITED: usize = 96;
    let mut graph = Graph::new(module);
    let element = mx_element(module.ty(module.ops[anchor].results[0]).element);
    let Ok(scaled) = scaled(&mut graph, anchor, element, &BLOCKS) else { return false };
    let mut open = VecDeque::from_iter(module.defining_op(scaled.factor));
    let mut seen: HashSet<Op> = open.iter().copied().collect();
    while let Some(op) = open.pop_front() {
        if let OpKind::Reduce { .. } = module.ops[op].kind {
            return true;
        }
        for producer in module.ops[op].operands.iter().filter_map(|operand| module.defining_op(*operand)) {
            if seen.len() < MOST_VISITED && seen.insert(producer) {
                open.push_back(producer);
            }
        }
    }
    false
}

/// The product or quotient behind a conversion to codes.
struct Scaled {
    op: Op,
    values: Value,
    /// The divisor or factor of each block.
    factor: Value,
    scaling: Scaling,
}

fn scaled(
    graph: &mut Graph<'_>,
    anchor: Op,
    element: MxElement,
    blocks: &[u64],
) -> Result<Scaled, Difference> {
    const SCALED: Cow<'static, str> =
        Cow::Borrowed("a quotient of the values and their step, or a product with its reciprocal, in f32");
    let most = f64::from(element.max_value());
    let (result, _) = bounded(graph, graph.module.ops[anchor].operands[0], [-most, most])?;
    let found = graph.definition(result).filter(|_| graph.ty(result).element == ElementType::F32);
    let Some((op, operation)) = found else { return Err(Difference { op: anchor, expected: SCALED }) };
    graph.matched.push(op);
    let full = &graph.ty(result).shape;
    let mut per_block = |value: Value| blocks.iter().find_map(|block| graph.per_block(value, full, *block));
    let (values, factor, scaling) = match (&operation.kind, &operation.operands[..]) {
        (OpKind::Binary(BinaryKind::Div), &[left, right]) => (left, per_block(right), Scaling::Divides),
        (OpKind::Binary(BinaryKind::Mul), &[left, right]) => match per_block(right) {
            Some(factor) => (left, Some(factor), Scaling::Multiplies),
            None => (right, per_block(left), Scaling::Multiplies),
        },
        _ => return Err(Difference { op, expected: SCALED }),
    };
    let Some(factor) = factor else {
        let expected = Cow::Borrowed("one step per block of 32 along the last axis");
        return Err(Difference { op, expected });
    };
    Ok(Scaled { op, values, factor, scaling })
}

/// The ops that make `f8E8M0FNU` scales of a value, one per element, in order.
fn scale_ops(module: &Module, users: &Users<'_>, amax: Value) -> Vec<Op> {
    /// The maximum number of ops to visit, so that the time is linear.
    const MOST_VISITED: usize = 128;
    let mut found = BTreeSet::new();
    let mut open = VecDeque::from([amax]);
    let mut seen = HashSet::new();
    while let Some(value) = open.pop_front() {
        for op in users(value) {
            let operation = &module.ops[op];
            let follows = matches!(
                operation.kind,
                OpKind::Convert
                    | OpKind::Bitcast
                    | OpKind::Unary(_)
                    | OpKind::Binary(_)
                    | OpKind::Bitwise(_)
                    | OpKind::Clamp { .. }
                    | OpKind::Compare(_)
                    | OpKind::Select
                    | OpKind::Reshape
            );
            if !follows || seen.len() >= MOST_VISITED || !seen.insert(op) {
                continue;
            }
            let Some(result) = operation.results.first().copied() else { continue };
            let ty = module.ty(result);
            if ty.element != ElementType::F8E8M0FNU {
                open.push_back(result);
            } else if operation.kind != OpKind::Reshape && ty.layout == Some(ScaleLayout::Linear) {
                found.insert(op);
                open.push_back(result);
            }
        }
    }
    found.into_iter().collect()
}

fn mx_element(element: ElementType) -> MxElement {
    MxElement::of(element).unwrap_or(MxElement::E2M1)
}

/// Scales and steps as functions of the largest magnitude.
struct Function<'a, 'm> {
    chain: &'a Chain<'m>,
    /// The node of the scales.
    byte: usize,
    /// The node of the divisors or factors.
    step: usize,
    scaling: Scaling,
    element: MxElement,
}

/// A largest magnitude at which a function differs from that of every `block_quantize`.
struct Unequal {
    /// True if the scale differs, false if the step does.
    of_scale: bool,
    expected: String,
}

impl Function<'_, '_> {
    /// The rounding and the edges of the `block_quantize` that this function equals for every number of a type.
    fn fit(&self, amax: ElementType, exactly: bool) -> Result<(ScaleRounding, MxEdges), Unequal> {
        let edges = self.edges(amax, exactly)?;
        let mut first = None;
        for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even] {
            match self.prove(amax, rounding, edges, exactly) {
                Ok(()) => return Ok((rounding, edges)),
                // Of the three roundings, the one that agrees up to the largest number is meant.
                Err((at, unequal)) => match &first {
                    Some((least, _)) if *least >= at => {}
                    _ => first = Some((at, unequal)),
                },
            }
        }
        Err(first.map(|(_, unequal)| unequal).expect("a rounding was tried"))
    }

    /// The scale and the step for one number. The scale is a power of two or NaN.
    fn at(&self, amax: f32, exactly: bool) -> [f64; 2] {
        let mut ranges = Vec::new();
        let argument = Range::of(ElementType::F32, f64::from(amax));
        self.chain.evaluate(argument, exactly, &mut ranges);
        // On a single number, every function has a single value.
        [self.byte, self.step].map(|node| ranges[node].single().unwrap_or(f64::NAN))
    }

    /// The edges, as blocks of NaN, infinities, zeros and the smallest number show them.
    fn edges(&self, amax: ElementType, exactly: bool) -> Result<MxEdges, Unequal> {
        let [nan, infinite, zero, tiny] =
            [f32::NAN, f32::INFINITY, 0.0, of_bits(amax, 1)].map(|amax| self.at(amax, exactly));
        let unequal = |of_scale: bool, expected: &str| Unequal { of_scale, expected: expected.to_owned() };
        let literal = f64::from(e8m0_to_f32(0xFF - self.element.max_exponent()));
        let infinity = match infinite[0] {
            scale if scale == f64::from(e8m0_to_f32(0xFE)) => InfinityScale::Largest,
            scale if scale == literal => InfinityScale::Exponent,
            _ => {
                let expected = "the scale 2^127 for a block with an infinity, or the scale of 2^128";
                return Err(unequal(true, expected));
            }
        };
        let nan_scale = match (nan[0].is_nan(), self.divisor(nan[1])) {
            (true, step) if step.is_nan() => NanScale::Propagate,
            (true, f64::INFINITY) => NanScale::InfiniteStep,
            (true, _) => return Err(unequal(false, "a NaN or infinite step for a block with a NaN")),
            (false, _) if same(nan, infinite) => NanScale::Infinity,
            (false, _) => {
                return Err(unequal(true, "the scale NaN for a block with a NaN, or that of an infinity"));
            }
        };
        let least = (0..=0xFE).find(|byte| f64::from(e8m0_to_f32(*byte)) == zero[0]);
        let Some(least_scale) = least.and_then(LeastScale::of_byte) else {
            return Err(unequal(true, "a power of two as the scale of a block of zeros"));
        };
        let is_least = tiny[0] == f64::from(e8m0_to_f32(0));
        let least_step = LeastStep::ALL.iter().copied().find(|least_step| {
            let edges = MxEdges { least_step: *least_step, ..MxEdges::DEFAULT };
            self.divisor(tiny[1]) == f64::from(edges.step(0))
        });
        let least_step = match least_step {
            Some(least_step) if is_least => least_step,
            None if is_least => {
                return Err(unequal(false, "a step of 2^-127, 2^-126 or 1 where the scale is 2^-127"));
            }
            _ => LeastStep::Scale,
        };
        Ok(MxEdges { infinity, nan: nan_scale, least_scale, least_step })
    }

    /// The divisor that a number is, or whose reciprocal it is. All of them are powers of two, so the reciprocal of any
    /// other number is never taken for one.
    fn divisor(&self, number: f64) -> f64 {
        match self.scaling {
            Scaling::Divides => number,
            Scaling::Multiplies => 1.0 / number,
        }
    }

    /// Proves that scale and step are those of a `block_quantize` for every largest magnitude of a type. Otherwise
    /// returns a magnitude at which they are not.
    fn prove(
        &self,
        amax: ElementType,
        rounding: ScaleRounding,
        edges: MxEdges,
        exactly: bool,
    ) -> Result<(), (f32, Unequal)> {
        /// The maximum number of ranges, several times that of any known function.
        const MOST_RANGES: usize = 40_000;
        let scale = |amax: f32| edges.scale(amax, self.element, rounding);
        let mut ranges = Vec::new();
        let mut count = 0;
        for special in [f32::NAN, f32::INFINITY, 0.0] {
            let [byte, step] = self.at(special, exactly);
            // Zeros keep their signs under any positive step.
            let is_any = special == 0.0
                && match self.scaling {
                    Scaling::Divides => step > 0.0,
                    Scaling::Multiplies => step >= 0.0 && step.is_finite() && step.is_sign_positive(),
                };
            self.compare(special, [byte, step], (scale(special), edges, rounding), is_any)?;
        }
        let mut open = pieces(amax);
        while let Some([low, high]) = open.pop() {
            count += 1;
            let ends = [low, high].map(|bits| of_bits(amax, bits));
            let bytes = ends.map(scale);
            let argument = Range::Numbers(f64::from(ends[0]), f64::from(ends[1]));
            self.chain.evaluate(argument, exactly, &mut ranges);
            let singles = [self.byte, self.step].map(|node| ranges[node].single());
            match singles {
                [Some(byte), Some(step)] if bytes[0] == bytes[1] => {
                    self.compare(ends[0], [byte, step], (bytes[0], edges, rounding), false)?;
                    continue;
                }
                _ if count > MOST_RANGES => {
                    let expected = "a simpler function of the largest magnitude".to_owned();
                    return Err((ends[0], Unequal { of_scale: true, expected }));
                }
                _ => {}
            }
            // A range may be too wide to decide. Its ends refute at once what is false.
            for (end, byte) in ends.into_iter().zip(bytes) {
                self.compare(end, self.at(end, exactly), (byte, edges, rounding), false)?;
            }
            if high > low + 1 {
                let middle = low + (high - low) / 2;
                open.extend([[middle + 1, high], [low, middle]]);
            }
        }
        Ok(())
    }

    /// Compares a scale and a step with those of a `block_quantize`. With `any_step`, only the scale.
    fn compare(
        &self,
        amax: f32,
        [byte, step]: [f64; 2],
        (scale, edges, rounding): (u8, MxEdges, ScaleRounding),
        any_step: bool,
    ) -> Result<(), (f32, Unequal)> {
        let rounding = rounding.name();
        let expected_scale = f64::from(e8m0_to_f32(scale));
        if !equal(byte, expected_scale) {
            let expected = format!(
                "the scale {} and not {} where the largest magnitude is {amax:?} (scale_rounding = {rounding})",
                power(expected_scale),
                power(byte)
            );
            return Err((amax, Unequal { of_scale: true, expected }));
        }
        let expected_step = f64::from(edges.step(scale));
        if any_step || equal(self.divisor(step), expected_step) {
            return Ok(());
        }
        let expected = format!(
            "the step {} and not {} where the largest magnitude is {amax:?} (scale_rounding = {rounding})",
            power(expected_step),
            power(self.divisor(step))
        );
        Err((amax, Unequal { of_scale: false, expected }))
    }
}

/// Returns whether two results are the same numbers. NaN equals NaN.
fn same(one: [f64; 2], other: [f64; 2]) -> bool {
    equal(one[0], other[0]) && equal(one[1], other[1])
}

fn equal(one: f64, other: f64) -> bool {
    one == other || one.is_nan() && other.is_nan()
}

/// A number as a power of two, if it is one.
fn power(number: f64) -> String {
    let exponent = (number.to_bits() >> 52) as i32 - 1023;
    if number == 2f64.powi(exponent) { format!("2^{exponent}") } else { format!("{number:e}") }
}

/// The bits of all finite positive numbers of a type, as ranges that end where a rounding changes.
fn pieces(element: ElementType) -> Vec<[u32; 2]> {
    // The mantissas of 1.5, 1.75 and their successors begin another scale.
    let (exponents, mantissa) = match element {
        ElementType::F16 => (31u32, 10u32),
        ElementType::BF16 => (255, 7),
        _ => (255, 23),
    };
    let [half, three_quarters] = [1 << (mantissa - 1), 3 << (mantissa - 2)];
    let cuts = [0, half, half + 1, three_quarters, three_quarters + 1, 1 << mantissa];
    let mut pieces = Vec::new();
    for exponent in 0..exponents {
        for cut in cuts.windows(2) {
            let low = (exponent << mantissa | cut[0]).max(1);
            let high = (exponent << mantissa) + cut[1] - 1;
            if low <= high {
                pieces.push([low, high]);
            }
        }
    }
    // The last is taken first.
    pieces.reverse();
    pieces
}

/// The number with these bits.
fn of_bits(element: ElementType, bits: u32) -> f32 {
    match element {
        ElementType::F16 => numeric::f16_bits_to_f32(bits as u16),
        ElementType::BF16 => numeric::bf16_bits_to_f32(bits as u16),
        _ => f32::from_bits(bits),
    }
}

/// The scales of which a value is a function that gives their numbers, NaN included, and its ops.
pub(crate) fn powers_of_scales(module: &Module, value: Value) -> Option<(Value, Vec<Op>)> {
    let mut chain = Chain::new(module, Source::Powers);
    let node = chain.add(value).ok()?;
    let scales = chain.argument()?;
    let mut ranges = Vec::new();
    for byte in 0..=0xFF {
        let scale = f64::from(e8m0_to_f32(byte));
        chain.evaluate(Range::of(ElementType::F32, scale), false, &mut ranges);
        if !equal(ranges[node].single()?, scale) {
            return None;
        }
    }
    Some((scales, chain.ops))
}
