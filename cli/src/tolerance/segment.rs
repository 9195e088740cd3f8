//! The ops of a segment with the operands of one run, and the reference that their evaluation gives.

use std::collections::HashMap;

use fourfold_executor::fallback::{self, FallbackError};
use fourfold_executor::{Run, RunError};
use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::sample::Rule;
use fourfold_ir::{Bound, Op, Program, SymbolValues, Tensor, Value, interpret_op};
use fourfold_scheduler::{Partition, Plan};

use super::blocks::{BlockRule, Blocks, compare_blocks};
use super::interval::Interval;
use super::within::{Bounds, free_text};
use super::{BIT_EQUAL, Compared, Got, Values, missing};
use crate::compare::{Comparison, MOVED_ONE_IN, Rounding, Tolerance, compare};
use crate::error::Error;

/// The ops of a segment on the GPU, with their operands in one run.
#[derive(Clone)]
pub(crate) struct SegmentOps<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// The position of the segment.
    pub(crate) segment: usize,
    /// The ops, in program order.
    pub(crate) ops: &'a [Op],
    /// The extents of this run.
    pub(crate) symbols: &'a SymbolValues,
    /// The rule of seeded inputs.
    pub(crate) rule: Option<Rule>,
    /// The operands, by value.
    pub(crate) operands: HashMap<Value, &'a Tensor>,
    /// True if the segment is small enough for the interpreter.
    pub(crate) interpret: bool,
}

impl<'a> SegmentOps<'a> {
    /// Takes the operands of a segment from a run that kept every value.
    ///
    /// # Errors
    /// Fails if an operand was not kept.
    pub(crate) fn of(
        program: &'a Program,
        partition: &'a Partition,
        segment: usize,
        bound: &'a Bound<'a>,
        run: &'a Run,
        rule: Option<Rule>,
    ) -> Result<SegmentOps<'a>, Error> {
        let planned = &partition.segments[segment];
        let module = program.module();
        let mut operands = HashMap::new();
        let chosen = match planned.plan() {
            Some(Plan::Choose(plan)) => plan.chosen(&bound.symbols),
            _ => None,
        };
        for &value in planned.inputs.iter().filter(|value| chosen.is_none_or(|chosen| chosen == **value)) {
            let tensor = match module.inputs.iter().position(|input| *input == value) {
                Some(position) => bound.inputs[position],
                None => run.value(value).ok_or_else(|| missing(module.name_of(value)))?,
            };
            operands.insert(value, tensor);
        }
        let symbols = &bound.symbols;
        Ok(SegmentOps { program, segment, ops: &planned.ops, symbols, rule, operands, interpret: true })
    }

    /// Fails if memory does not suffice for the operands in f64 and for `results` bytes.
    pub(super) fn check_room(&self, results: usize) -> Result<(), Error> {
        const EACH_OPERAND: usize = 16;
        let operands = self.operands.values().map(|tensor| tensor.count().saturating_mul(EACH_OPERAND));
        check_memory(operands.fold(results, usize::saturating_add)).map_err(|NoMemory { bytes }| {
            Error::Memory { what: format!("the comparison of segment {}", self.segment), bytes }
        })
    }

    /// The number of elements of a value in this run; 0 if it is unknown.
    pub(super) fn count(&self, value: Value) -> usize {
        let dims = fourfold_ir::bind::concrete_dims(self.program.module().ty(value), self.symbols);
        dims.map_or(0, |dims| dims.iter().fold(1, |count, dim| count.saturating_mul(*dim)))
    }

    /// Evaluates the ops, on top of the given values.
    pub(super) fn evaluate(&self, mut values: Values) -> Result<Values, Error> {
        let module = self.program.module();
        for &op in self.ops {
            let operation = &module.ops[op];
            if operation.results.iter().all(|result| values.contains_key(result)) {
                continue;
            }
            let operands: Option<Vec<&Tensor>> = operation
                .operands
                .iter()
                .map(|value| values.get(value).or_else(|| self.operands.get(value).copied()))
                .collect();
            let operands = operands.ok_or_else(|| missing(&module.op_label(op)))?;
            let results = if self.interpret {
                interpret_op(self.program, op, &operands, self.symbols)?
            } else {
                fallback::run_op(self.program, op, &operands, self.symbols)
                    .map_err(|source| self.failed(op, source))?
            };
            values.extend(operation.results.iter().copied().zip(results));
        }
        Ok(values)
    }

    pub(super) fn take(&self, values: &Values, value: Value) -> Result<Tensor, Error> {
        values.get(&value).cloned().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    pub(super) fn got<'g>(&self, got: &Got<'g>, value: Value) -> Result<&'g Tensor, Error> {
        got(value).ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    pub(super) fn operand(&self, value: Value) -> Result<&Tensor, Error> {
        self.operands.get(&value).copied().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    pub(super) fn failed(&self, op: Op, source: FallbackError) -> Error {
        let op = self.program.module().op_label(op);
        Error::Run(RunError::Op { op, segment: self.segment, source })
    }

    pub(super) fn compared(
        &self,
        value: Value,
        want: Tensor,
        tolerance: Tolerance,
        rule: String,
        comparison: Comparison,
    ) -> Compared {
        let by = if self.interpret { "interpreter" } else { "fallback" };
        Compared { value, want, tolerance, rule, by, comparison }
    }

    /// Compares a value with the interpreter's bits; zeros may differ in sign.
    pub(super) fn equal_value<'g>(
        &self,
        value: Value,
        values: &Values,
        got: &Got<'g>,
    ) -> Result<Compared, Error> {
        self.equal(value, values, got, Tolerance::Relative(0.0), BIT_EQUAL)
    }

    /// Compares codes and their scales with the interpreter's bits.
    pub(super) fn equal_blocks<'g>(
        &self,
        codes: Value,
        scales: Value,
        values: &Values,
        got: &Got<'g>,
    ) -> Result<Vec<Compared>, Error> {
        let none = || Tolerance::Count(0);
        let of_codes = self.equal(codes, values, got, none(), BIT_EQUAL)?;
        let of_scales = self.equal(scales, values, got, none(), "bit-equal, zero padding")?;
        let comparison = of_scales.comparison.with_padding_of(self.got(got, scales)?);
        Ok(vec![of_codes, Compared { comparison, ..of_scales }])
    }

    fn equal<'g>(
        &self,
        value: Value,
        values: &Values,
        got: &Got<'g>,
        tolerance: Tolerance,
        rule: &str,
    ) -> Result<Compared, Error> {
        let (got, want) = (self.got(got, value)?, self.take(values, value)?);
        let comparison = compare(got, &want, &tolerance, Rounding::Same);
        Ok(self.compared(value, want, tolerance, rule.to_owned(), comparison))
    }

    /// Compares a value with bounds for each element. Near a pole an interval is unbounded. Only a few elements may be,
    /// and the rule in the report states their number.
    pub(super) fn within<'g>(
        &self,
        value: Value,
        want: Tensor,
        bounds: Bounds,
        bound: &str,
        got: &Got<'g>,
    ) -> Result<Compared, Error> {
        let (comparison, free) = bounds.compare(self.got(got, value)?, &want);
        let rule = format!("{bound}{}", free_text(free, want.count()));
        Ok(self.compared(value, want, Tolerance::Each(bounds.distances), rule, comparison))
    }

    /// Compares codes and scales of values that lie within intervals, which `interval` returns by position.
    pub(super) fn blocks_within<'g>(
        &self,
        [codes, scales]: [Value; 2],
        values: &Values,
        rule: BlockRule,
        bound: &str,
        got: &Got<'g>,
        interval: impl FnMut(usize) -> Interval,
    ) -> Result<[Compared; 2], Error> {
        let want = (self.take(values, codes)?, self.take(values, scales)?);
        let of_blocks = compare_blocks(
            rule,
            Blocks { codes: self.got(got, codes)?, scales: self.got(got, scales)? },
            Blocks { codes: &want.0, scales: &want.1 },
            interval,
        );
        let name = |what: &str, free: usize, want: &Tensor| {
            let free = free_text(free, want.count());
            format!("{what} of {bound}{free}, 1 in {MOVED_ONE_IN} moved")
        };
        let none = || Tolerance::Count(0);
        let of_codes = name("codes", of_blocks.free_codes, &want.0);
        let of_scales = format!("{}, zero padding", name("scales", of_blocks.free_scales, &want.1));
        Ok([
            self.compared(codes, want.0, none(), of_codes, of_blocks.codes),
            self.compared(scales, want.1, none(), of_scales, of_blocks.scales),
        ])
    }
}
