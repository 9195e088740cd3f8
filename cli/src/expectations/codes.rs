//! Compares a value on the codes of the data instead of the run's.
//!
//! An input near a tie of a quantization can have either of two codes. A framework that chooses the other one gets
//! other results, although both are right. If the data have the codes, the ops behind them are evaluated on these.

use std::collections::HashMap;

use fourfold_executor::{DataFile, RawTensor};
use fourfold_ir::{Entity, Op, OpKind, ScaleLayout, Tensor, Value, interpret_op};

use super::one::check_room_to_compare;
use super::want::Want;
use super::{Comparer, Expectation};
use crate::compare::{Rounding, Tolerance, Wanted, compare};
use crate::error::Error;
use crate::report::OutputReport;

/// The tensors that the data have for results of quantizations.
struct GivenCodes {
    tensors: HashMap<Value, Tensor>,
    /// The number of codes and scales that differ from the run's.
    moved: usize,
}

impl Comparer<'_> {
    /// Returns the codes and scales of the data that differ from the run's; `None` if there are none.
    fn given_codes(&self, data: &DataFile) -> Result<Option<GivenCodes>, Error> {
        let named = data.expected.iter().map(|(name, stored)| (name.as_str(), stored, None));
        let listed = self.header.expected.iter().filter_map(|expected| {
            Some((expected.value.as_str(), data.other.get(&expected.tensor)?, expected.layout))
        });
        let mut given = GivenCodes { tensors: HashMap::new(), moved: 0 };
        for (name, stored, layout) in named.chain(listed) {
            let value = self.original.facts().value_named(name).filter(|value| self.is_quantized(*value));
            let Some(value) = value else { continue };
            let Some(tensor) = self.in_own_type(value, stored, layout, name) else { continue };
            let (got, _) = self.computed(value)?;
            let all = Tolerance::Count(tensor.count());
            given.moved += compare(got, &tensor, &all, Rounding::Same).mismatches;
            given.tensors.insert(value, tensor);
        }
        Ok((given.moved > 0).then_some(given))
    }

    /// Returns true for a result of a `block_quantize`.
    fn is_quantized(&self, value: Value) -> bool {
        let module = self.original.module();
        let op = module.defining_op(value);
        op.is_some_and(|op| matches!(module.ops[op].kind, OpKind::BlockQuantize { .. }))
    }

    /// Converts a stored tensor to the type and the layout of a value, in which ops take it.
    fn in_own_type(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
    ) -> Option<Tensor> {
        let ty = self.original.module().ty(value);
        match self.stored_as(value, stored, layout, name) {
            Ok(Want::Tensor(tensor)) => {
                ((tensor.element(), tensor.layout()) == (ty.element, ty.layout)).then_some(tensor)
            }
            _ => None,
        }
    }

    /// Compares a value that misses its expectation once more, computed from the codes of the data. Returns the report
    /// if that meets the expectation, and the run's value equals the interpreter's on the run's own codes.
    pub(super) fn on_given_codes(
        &self,
        expectation: &Expectation<'_>,
        data: &DataFile,
        notes: &mut Vec<String>,
    ) -> Result<Option<OutputReport>, Error> {
        let Expectation { value, against, want, tolerance: (tolerance, rule) } = expectation;
        let name = self.original.module().name_of(*value);
        // Codes themselves and other exact values do not follow from another choice at a tie.
        if *tolerance == Tolerance::Relative(0.0) {
            return Ok(None);
        }
        let Some(given) = self.given_codes(data)? else { return Ok(None) };
        let Ok(interpreted) = self.interpreted() else { return Ok(None) };
        let (got, _) = self.computed(*value)?;
        check_room_to_compare(name, *want)?;
        if !compare(got, &interpreted[value.index()], tolerance, Rounding::Same).ok {
            return Ok(None);
        }
        let Some(recomputed) = self.recomputed(*value, interpreted, &given.tensors)? else { return Ok(None) };
        let want: &dyn Wanted = *want;
        let comparison = compare(&recomputed, want, tolerance, Rounding::Same);
        if !comparison.ok {
            return Ok(None);
        }
        let (moved, differ) = (given.moved, if given.moved == 1 { "differs" } else { "differ" });
        notes.push(format!(
            "%{name} is compared on the codes and scales of the data, of which {moved} {differ} from the run's"
        ));
        let place = (name, self.segment_of_original(*value));
        let rule = (tolerance.clone(), format!("{rule}, on the codes of the data"));
        Ok(Some(self.report(place, against, want, &rule, "interpreter", comparison)))
    }

    /// Evaluates the ops behind the given tensors. Returns the value; `None` if it does not depend on them.
    fn recomputed(
        &self,
        value: Value,
        interpreted: &[Tensor],
        given: &HashMap<Value, Tensor>,
    ) -> Result<Option<Tensor>, Error> {
        let module = self.original.module();
        let mut changed: HashMap<Value, Tensor> = HashMap::new();
        let ops: Vec<Op> = module.ops.keys().collect();
        for op in ops {
            let operation = &module.ops[op];
            let of = |value: &Value| given.get(value).or_else(|| changed.get(value));
            if !operation.operands.iter().any(|operand| of(operand).is_some()) {
                continue;
            }
            let tensor = |value: &Value| of(value).unwrap_or(&interpreted[value.index()]);
            let operands: Vec<&Tensor> = operation.operands.iter().map(tensor).collect();
            let results = interpret_op(self.original, op, &operands, &self.bound.symbols)?;
            changed.extend(operation.results.iter().copied().zip(results));
        }
        Ok(changed.remove(&value))
    }
}
