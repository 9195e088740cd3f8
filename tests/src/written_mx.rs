//! Programs that write MX quantization out op by op, in many forms that equal a `block_quantize`, and near misses.

use std::fmt::Write;

use crate::random::Random;

/// A change that makes a program differ from every `block_quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum MxMiss {
    ExponentLess,
    OtherAxis,
    BlockOf16,
    BlockOf64,
    NoAbs,
    Min,
    Sum,
    CodesWithinLess,
    CodesPositive,
    OtherThreshold,
    CeilOfExponent,
    MaskOfLess,
    ShiftOfLess,
    StepDoubled,
    StepOfZero,
    StepNotRounded,
    ProductInsteadOfQuotient,
    QuotientReversed,
    OtherValues,
    ValuesDoubled,
    StepOfOther,
    LargestBounded,
    NanIsOne,
    ZerosAreOne,
    NoScales,
    LogarithmRounded,
    EpsilonInAmax,
    CodesNegated,
}

impl MxMiss {
    /// Every kind.
    pub const ALL: [MxMiss; 28] = [
        MxMiss::ExponentLess,
        MxMiss::OtherAxis,
        MxMiss::BlockOf16,
        MxMiss::BlockOf64,
        MxMiss::NoAbs,
        MxMiss::Min,
        MxMiss::Sum,
        MxMiss::CodesWithinLess,
        MxMiss::CodesPositive,
        MxMiss::OtherThreshold,
        MxMiss::CeilOfExponent,
        MxMiss::MaskOfLess,
        MxMiss::ShiftOfLess,
        MxMiss::StepDoubled,
        MxMiss::StepOfZero,
        MxMiss::StepNotRounded,
        MxMiss::ProductInsteadOfQuotient,
        MxMiss::QuotientReversed,
        MxMiss::OtherValues,
        MxMiss::ValuesDoubled,
        MxMiss::StepOfOther,
        MxMiss::LargestBounded,
        MxMiss::NanIsOne,
        MxMiss::ZerosAreOne,
        MxMiss::NoScales,
        MxMiss::LogarithmRounded,
        MxMiss::EpsilonInAmax,
        MxMiss::CodesNegated,
    ];
}

/// The way in which a program computes the exponent of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Style {
    /// The exponent bits, shifted down: floor, or even with a quarter added.
    Shift,
    /// The exponent bits, masked, times a power of two: floor or even.
    Mask,
    /// The logarithm of the masked bits, and a power: floor or even.
    Logarithm,
    /// The exponent of amax / max, and one more where mantissa bits are set: ceil.
    Ceil,
}

/// The free choices of a program. All of them keep it equal to a `block_quantize`.
#[derive(Clone, Debug)]
pub struct MxForm {
    /// The way to the exponent.
    pub style: Style,
    /// True if a quarter is added before the exponent is taken.
    even: bool,
    element: &'static str,
    data: &'static str,
    rows: &'static [&'static str],
    blocks: u64,
    flat_blocks: bool,
    widens: usize,
    amax: usize,
    keep_dims: bool,
    /// True if a NaN is looked for.
    selects_nan: bool,
    /// True if an infinity is looked for.
    selects_infinity: bool,
    /// The step: read back from the scale, from its bits, or 1 where the scale is the least.
    step: usize,
    /// The quotient, the product with a reciprocal, or with a power.
    codes: usize,
    /// A lower bound of amax.
    least: Option<&'static str>,
    swapped: bool,
    spread: usize,
    bounds: bool,
    power: bool,
    escapes: bool,
    scale_use: usize,
}

impl MxForm {
    /// Draws a form.
    pub fn new(random: &mut Random) -> MxForm {
        const ROWS: [&[&str]; 4] = [&["M"], &["2", "M"], &["5"], &["M"]];
        let rows = random.pick(&ROWS);
        let style = random.pick(&[Style::Shift, Style::Mask, Style::Logarithm, Style::Ceil]);
        let selects_infinity = random.percent(40);
        MxForm {
            style,
            // With a quarter added, the mask of the largest numbers is infinite.
            even: style == Style::Shift && random.percent(50),
            element: random.pick(&["f32", "f32", "bf16", "f16"]),
            data: random.pick(&["f4E2M1FN", "f4E2M1FN", "f8E4M3FN", "f8E5M2"]),
            rows,
            blocks: random.pick(&[1, 2, 3]),
            flat_blocks: random.percent(30),
            widens: random.below(3),
            amax: random.below(2),
            keep_dims: random.percent(50),
            // The exponents of NaN and infinity are equal, unless one of them is replaced.
            selects_nan: random.percent(50) || style == Style::Shift && selects_infinity,
            selects_infinity,
            step: random.below(3),
            codes: random.below(3),
            least: random.pick(&[None, None, Some("1e-4"), Some("1e-12")]),
            swapped: random.percent(50),
            spread: random.below(3),
            bounds: random.percent(50),
            power: random.percent(50),
            escapes: random.percent(15),
            scale_use: random.below(3),
        }
    }

    /// Changes choices for which a near miss would have no effect.
    #[must_use]
    pub fn with_effect(self, miss: MxMiss) -> MxForm {
        let mut form = self;
        match miss {
            MxMiss::OtherAxis | MxMiss::BlockOf16 | MxMiss::BlockOf64 => {
                (form.rows, form.blocks, form.flat_blocks) = (&["5"], 2, false);
                form.data = "f4E2M1FN";
            }
            MxMiss::NoAbs | MxMiss::Min | MxMiss::Sum => form.amax = 0,
            MxMiss::CodesWithinLess | MxMiss::CodesPositive => {
                (form.bounds, form.data) = (true, "f4E2M1FN");
            }
            MxMiss::CodesNegated => form.data = "f4E2M1FN",
            MxMiss::NoScales => form.step = 1,
            MxMiss::OtherThreshold => (form.style, form.even) = (Style::Shift, true),
            MxMiss::CeilOfExponent => form.style = Style::Ceil,
            MxMiss::MaskOfLess => form.style = Style::Mask,
            MxMiss::ShiftOfLess => form.style = Style::Shift,
            MxMiss::StepOfZero => (form.style, form.step, form.least) = (Style::Shift, 1, None),
            MxMiss::ProductInsteadOfQuotient | MxMiss::QuotientReversed => {
                (form.codes, form.data) = (0, "f4E2M1FN");
            }
            MxMiss::LargestBounded => {
                form.element = "f32";
                form.selects_infinity = false;
            }
            MxMiss::NanIsOne => form.selects_nan = true,
            MxMiss::ZerosAreOne | MxMiss::EpsilonInAmax => form.least = None,
            MxMiss::LogarithmRounded => {
                (form.style, form.element, form.even) = (Style::Logarithm, "f32", false)
            }
            _ => {}
        }
        form
    }

    /// The program, with one near miss or none. The inputs are `x` and `other`.
    pub fn text(&self, miss: Option<MxMiss>) -> String {
        Writer { form: self, miss, lines: String::new(), count: 0, outputs: Vec::new() }.program()
    }

    /// The exponent of the largest code and its value.
    fn largest(&self) -> (i32, &'static str) {
        match self.data {
            "f8E4M3FN" => (8, "448"),
            "f8E5M2" => (15, "57344"),
            _ => (2, "6"),
        }
    }
}

struct Writer<'a> {
    form: &'a MxForm,
    miss: Option<MxMiss>,
    lines: String,
    count: usize,
    outputs: Vec<String>,
}

/// A tensor's name, shape and element type.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<String>,
    element: &'static str,
}

impl Writer<'_> {
    fn is(&self, miss: MxMiss) -> bool {
        self.miss == Some(miss)
    }

    fn op(
        &mut self,
        op: &str,
        operands: &[&Tensor],
        attributes: &str,
        like: (&[String], &'static str),
    ) -> Tensor {
        self.count += 1;
        let name = format!("t{}", self.count);
        let operands: Vec<String> = operands.iter().map(|operand| format!(" %{}", operand.name)).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{attributes}}}") };
        let (shape, element) = like;
        let _ = writeln!(
            self.lines,
            "  %{name} = {op}{}{attributes} : tensor<[{}], {element}>",
            operands.join(","),
            shape.join(", ")
        );
        Tensor { name, shape: shape.to_vec(), element }
    }

    /// An elementwise op, whose result has the shape of the first operand.
    fn apply(&mut self, op: &str, operands: &[&Tensor]) -> Tensor {
        let first = operands[0].clone();
        self.op(op, operands, "", (&first.shape, first.element))
    }

    fn to(&mut self, op: &str, x: &Tensor, element: &'static str) -> Tensor {
        if x.element == element { x.clone() } else { self.op(op, &[x], "", (&x.shape, element)) }
    }

    fn reshape(&mut self, x: &Tensor, shape: &[String]) -> Tensor {
        if x.shape == shape { x.clone() } else { self.op("reshape", &[x], "", (shape, x.element)) }
    }

    /// A scalar constant.
    fn number(&mut self, value: &str, element: &'static str) -> Tensor {
        self.op("constant", &[], &format!("value = {value}"), (&[], element))
    }

    /// An elementwise op with a scalar.
    fn with(&mut self, op: &str, x: &Tensor, value: &str) -> Tensor {
        let value = self.number(value, x.element);
        let is_commutative = matches!(op, "add" | "mul" | "max" | "min" | "and");
        if is_commutative && self.form.swapped {
            return self.op(op, &[&value, x], "", (&x.shape, x.element));
        }
        self.apply(op, &[x, &value])
    }

    /// `then` where a comparison holds, else `otherwise`.
    fn choose(&mut self, x: &Tensor, predicate: &str, y: &Tensor, then: &str, otherwise: &Tensor) -> Tensor {
        let holds = self.op("compare", &[x, y], &format!("predicate = {predicate}"), (&x.shape, "i1"));
        let then = self.number(then, otherwise.element);
        self.op("select", &[&holds, &then, otherwise], "", (&otherwise.shape, otherwise.element))
    }

    fn shape(&self, last: &[String]) -> Vec<String> {
        self.form.rows.iter().map(|extent| (*extent).to_owned()).chain(last.iter().cloned()).collect()
    }

    /// The shape of blocks.
    fn full(&self) -> Vec<String> {
        let blocks = self.form.blocks;
        let [blocks, block] = match self.miss {
            Some(MxMiss::BlockOf16) => [2 * blocks, 16],
            Some(MxMiss::BlockOf64) => [blocks / 2, 64],
            Some(MxMiss::OtherAxis) => [32, blocks],
            _ => [blocks, 32],
        };
        if !self.form.flat_blocks {
            return self.shape(&[blocks.to_string(), block.to_string()]);
        }
        let fixed: u64 =
            self.form.rows.iter().filter_map(|extent| extent.parse::<u64>().ok()).product::<u64>() * blocks;
        let has_m = self.form.rows.contains(&"M");
        vec![if has_m { format!("{fixed}*M") } else { fixed.to_string() }, block.to_string()]
    }

    fn program(mut self) -> String {
        let of_x = self.shape(&[(self.form.blocks * 32).to_string()]);
        let element = self.form.element;
        let input = |name: &str| Tensor { name: name.to_owned(), shape: of_x.clone(), element };
        let (x, other, full) = (input("x"), input("other"), self.full());
        let x = if self.form.widens == 0 { self.to("convert", &x, "f32") } else { x };
        let values = self.reshape(&x, &full);
        let values = if self.form.widens == 1 { self.to("convert", &values, "f32") } else { values };
        let amax = self.amax(&values);
        let (scales, step) = self.scale(&amax);
        let source = match self.miss {
            Some(MxMiss::OtherValues) => {
                let other = self.reshape(&other, &full);
                self.to("convert", &other, values.element)
            }
            Some(MxMiss::ValuesDoubled) => self.apply("add", &[&values, &values]),
            _ => values.clone(),
        };
        let step = if self.is(MxMiss::StepOfOther) {
            let other = self.reshape(&other, &full);
            let other = self.to("convert", &other, values.element);
            let amax = self.amax(&other);
            self.scale(&amax).1
        } else {
            step
        };
        let step = if self.is(MxMiss::StepNotRounded) { self.with("div", &amax, "6") } else { step };
        let step = if self.is(MxMiss::StepDoubled) { self.with("mul", &step, "2") } else { step };
        let scaled = self.scaled(&source, &step, &full, &of_x);
        if self.form.escapes {
            self.outputs.push(scaled.name.clone());
        }
        let codes = self.codes(&scaled, &of_x);
        self.outputs.push(codes.name);
        self.scales(&scales, &step);
        let outputs: Vec<String> = self.outputs.iter().map(|name| format!("%{name}")).collect();
        let shape = of_x.join(", ");
        format!(
            "fir 1\nfunc @written(%x: tensor<[{shape}], {element}>, %other: tensor<[{shape}], {element}>) \
             {{\n{}  return {}\n}}\n",
            self.lines,
            outputs.join(", ")
        )
    }

    /// The largest magnitude of each block, in f32.
    fn amax(&mut self, values: &Tensor) -> Tensor {
        let has_abs = self.form.amax == 0 && !self.is(MxMiss::NoAbs);
        let magnitudes = if has_abs { self.apply("abs", &[values]) } else { values.clone() };
        let kind = match self.miss {
            Some(MxMiss::Min) => "min",
            Some(MxMiss::Sum) => "sum",
            _ if self.form.amax == 0 => "max",
            _ => "amax",
        };
        let last = magnitudes.shape.len() - 1;
        let axis = if self.is(MxMiss::OtherAxis) { last - 1 } else { last };
        let mut shape = magnitudes.shape.clone();
        shape[axis] = "1".to_owned();
        // Scales have at least two axes.
        let keeps = self.form.keep_dims || axis != last || self.form.flat_blocks;
        let mut attributes = format!("axes = [{axis}], kind = {kind}");
        if keeps {
            attributes += ", keep_dims = true";
        } else {
            shape.pop();
        }
        let amax = self.op("reduce", &[&magnitudes], &attributes, (&shape, magnitudes.element));
        let amax = self.to("convert", &amax, "f32");
        let amax = if self.is(MxMiss::EpsilonInAmax) { self.with("add", &amax, "0.001") } else { amax };
        match self.form.least {
            Some(least) => self.with("max", &amax, least),
            None => amax,
        }
    }

    /// The scales in f8E8M0FNU, and the step in f32.
    fn scale(&mut self, amax: &Tensor) -> (Tensor, Tensor) {
        let (emax, max) = self.form.largest();
        let emax = if self.is(MxMiss::ExponentLess) { emax + 1 } else { emax };
        let byte = match self.form.style {
            Style::Shift => {
                let bits = self.bits(amax, self.form.even);
                let amount = if self.is(MxMiss::ShiftOfLess) { "22" } else { "23" };
                let shifted = self.with("shift_right", &bits, amount);
                let exponent = self.with("and", &shifted, "255");
                let unbiased = self.with("sub", &exponent, "127");
                let scaled = self.with("sub", &unbiased, &emax.to_string());
                let least = self.with("max", &scaled, "-127");
                let most = self.with("min", &least, "128");
                self.with("add", &most, "127")
            }
            Style::Mask | Style::Logarithm => return self.of_mask(amax, emax),
            Style::Ceil => {
                let quotient = if self.is(MxMiss::CeilOfExponent) {
                    self.with("mul", amax, &format!("{:?}", 2f32.powi(-emax)))
                } else if self.is(MxMiss::ExponentLess) {
                    self.with("div", amax, "7")
                } else {
                    self.with("div", amax, max)
                };
                let bits = self.to("bitcast", &quotient, "i32");
                let shifted = self.with("shift_right", &bits, "23");
                let mantissa = self.with("and", &bits, "8388607");
                let zero = self.number("0", "i32");
                let more = self.with("add", &shifted, "1");
                let holds = self.op("compare", &[&mantissa, &zero], "predicate = gt", (&bits.shape, "i1"));
                let exponent = self.op("select", &[&holds, &more, &shifted], "", (&bits.shape, "i32"));
                let least = self.with("max", &exponent, "1");
                self.with("min", &least, "254")
            }
        };
        let byte = self.edges_of(amax, byte, ["254", "255", "127", "200"]);
        let scales = if self.is(MxMiss::NoScales) {
            byte.clone()
        } else {
            self.to("bitcast", &byte, "f8E8M0FNU, linear")
        };
        let step = match self.form.step {
            1 => {
                let up = self.with("shift_left", &byte, "23");
                let power = self.to("bitcast", &up, "f32");
                if self.is(MxMiss::StepOfZero) {
                    power
                } else {
                    self.with("max", &power, "1.1754943508222875e-38")
                }
            }
            2 => {
                let step = self.to("convert", &scales, "f32");
                let zero = self.number("0", "i32");
                self.choose(&byte, "eq", &zero, "1", &step)
            }
            _ => self.to("convert", &scales, "f32"),
        };
        (scales, step)
    }

    /// The bits of the largest magnitude, with a quarter added for even.
    fn bits(&mut self, amax: &Tensor, even: bool) -> Tensor {
        let bits = self.to("bitcast", amax, "i32");
        match even {
            true if self.is(MxMiss::OtherThreshold) => self.with("add", &bits, "1048576"),
            true => self.with("add", &bits, "2097152"),
            false => bits,
        }
    }

    /// Scales and step from the masked bits, or from their logarithm.
    fn of_mask(&mut self, amax: &Tensor, emax: i32) -> (Tensor, Tensor) {
        let power = if self.is(MxMiss::LogarithmRounded) {
            amax.clone()
        } else {
            let bits = self.bits(amax, self.form.even);
            let mask = if self.is(MxMiss::MaskOfLess) { "2130706432" } else { "2139095040" };
            let masked = self.with("and", &bits, mask);
            self.to("bitcast", &masked, "f32")
        };
        let (least, most) = ("5.877471754111438e-39", "1.7014118346046923e38");
        let mut scale = if self.form.style == Style::Mask {
            let scaled = self.with("mul", &power, &format!("{:?}", 2f32.powi(-emax)));
            let scaled = self.with("max", &scaled, least);
            self.with("min", &scaled, most)
        } else {
            let logarithm = self.apply("log2", &[&power]);
            let floor = self.apply("floor", &[&logarithm]);
            let exponent = self.with("sub", &floor, &emax.to_string());
            let shape = exponent.shape.clone();
            let exponent = self.op("clamp", &[&exponent], "max = 127, min = -127", (&shape, "f32"));
            if self.form.power {
                let two = self.number("2", "f32");
                self.op("pow", &[&two, &exponent], "", (&shape, "f32"))
            } else {
                self.apply("exp2", &[&exponent])
            }
        };
        scale = self.edges_of(amax, scale, [most, "nan", "1", "9.44473296573929e21"]);
        if self.is(MxMiss::NoScales) {
            return (scale.clone(), scale);
        }
        let scales = self.to("convert", &scale, "f8E8M0FNU, linear");
        let step = if self.form.step == 0 { self.to("convert", &scales, "f32") } else { scale };
        (scales, step)
    }

    /// The scale of blocks with infinities or NaN, and near misses there: the scales of an infinity, of NaN, of one, and
    /// a bound.
    fn edges_of(&mut self, amax: &Tensor, scale: Tensor, [infinite, nan, one, bound]: [&str; 4]) -> Tensor {
        let mut scale = scale;
        if self.form.selects_infinity {
            let infinity = self.number("inf", "f32");
            scale = self.choose(amax, "eq", &infinity, infinite, &scale);
        }
        if self.form.selects_nan {
            let nan = if self.is(MxMiss::NanIsOne) { one } else { nan };
            scale = self.choose(amax, "ne", amax, nan, &scale);
        }
        if self.is(MxMiss::ZerosAreOne) {
            let zero = self.number("0", "f32");
            scale = self.choose(amax, "eq", &zero, one, &scale);
        }
        if self.is(MxMiss::LargestBounded) { self.with("min", &scale, bound) } else { scale }
    }

    /// The values scaled to codes, not rounded.
    fn scaled(&mut self, values: &Tensor, step: &Tensor, full: &[String], flat: &[String]) -> Tensor {
        let number = match self.form.codes {
            0 => step.clone(),
            1 => self.apply("reciprocal", &[step]),
            _ => {
                let one = self.number("1", "f32");
                self.op("div", &[&one, step], "", (&step.shape, "f32"))
            }
        };
        let mut shape = full.to_vec();
        let reduced = shape.len() - if self.is(MxMiss::OtherAxis) { 2 } else { 1 };
        shape[reduced] = "1".to_owned();
        let number = self.reshape(&number, &shape);
        let (values, number) = match self.form.spread {
            0 => (values.clone(), number),
            spread => {
                let number = self.op("broadcast", &[&number], "", (full, "f32"));
                match spread {
                    1 => (values.clone(), number),
                    _ => (self.reshape(values, flat), self.reshape(&number, flat)),
                }
            }
        };
        let is_product = self.form.codes != 0 || self.is(MxMiss::ProductInsteadOfQuotient);
        let reversed = is_product && self.form.swapped || self.is(MxMiss::QuotientReversed);
        let operands = if reversed { [&number, &values] } else { [&values, &number] };
        self.op(if is_product { "mul" } else { "div" }, &operands, "", (&values.shape.clone(), "f32"))
    }

    fn codes(&mut self, scaled: &Tensor, flat: &[String]) -> Tensor {
        let (_, max) = self.form.largest();
        let mut x = scaled.clone();
        if self.form.bounds {
            let (low, high) = match self.miss {
                Some(MxMiss::CodesWithinLess) => ("-4".to_owned(), "4"),
                Some(MxMiss::CodesPositive) => ("0".to_owned(), max),
                _ => (format!("-{max}"), max),
            };
            x = self.op("clamp", &[&x], &format!("max = {high}, min = {low}"), (&x.shape.clone(), "f32"));
        }
        if self.is(MxMiss::CodesNegated) {
            x = self.apply("neg", &[&x]);
        }
        if self.form.spread == 1 {
            let x = self.reshape(&x, flat);
            return self.to("convert", &x, self.form.data);
        }
        let codes = self.to("convert", &x, self.form.data);
        self.reshape(&codes, flat)
    }

    /// Returns the scales: as they are, blocked, or both. Without scales, the step.
    fn scales(&mut self, scales: &Tensor, step: &Tensor) {
        if self.is(MxMiss::NoScales) {
            self.outputs.push(step.name.clone());
            return;
        }
        if self.form.scale_use != 1 {
            self.outputs.push(scales.name.clone());
        }
        if self.form.scale_use > 0 && self.miss.is_none() {
            let shape = self.shape(&[self.form.blocks.to_string()]);
            let scales = self.reshape(scales, &shape);
            let blocked = self.op("swizzle_scales", &[&scales], "", (&shape, "f8E8M0FNU, blocked"));
            self.outputs.push(blocked.name);
        } else if self.form.scale_use == 1 {
            self.outputs.push(scales.name.clone());
        }
    }
}
