//! The node that replaces the nodes of a segment.

use std::sync::{Mutex, PoisonError};

use fourfold::Session;
use fourfold::ir::Tensor as FourfoldTensor;
use tract_core::internal::*;

use crate::error::Error;
use crate::format::Form;

/// A segment of Fourfold's plan as one op of tract.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The compiled program with its resident params, one call at a time. Clones share it.
    pub(crate) session: Arc<Mutex<Session>>,
    /// The kernel's name in Fourfold's plan.
    pub(crate) kernel: String,
    /// The name and form of each input.
    pub(crate) inputs: Vec<(String, Form)>,
    pub(crate) outputs: Vec<(Form, TypedFact)>,
    /// The extents behind the symbols of the program.
    pub(crate) symbols: Vec<(String, TDim)>,
}

impl PartialEq for Segment {
    fn eq(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.session, &other.session) && self.symbols == other.symbols
    }
}

impl Eq for Segment {}

impl Op for Segment {
    fn name(&self) -> StaticName {
        "FourfoldSegment".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![self.kernel.clone()])
    }

    fn validation(&self) -> Validation {
        Validation::Rounding
    }

    fn required_bound_symbols(&self, _inputs: &[&TypedFact]) -> TVec<Symbol> {
        self.symbols.iter().flat_map(|(_, extent)| extent.symbols()).collect()
    }

    op_as_typed_op!();
}

impl EvalOp for Segment {
    // Constant folding must not launch kernels.
    not_out_of_plan!();

    fn eval(&self, context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        if inputs.len() != self.inputs.len() {
            let message = format!("it has {} inputs, not {}", inputs.len(), self.inputs.len());
            return Err(Error::op("FourfoldSegment", message).into());
        }
        let given: Result<Vec<_>, Error> = self
            .inputs
            .iter()
            .zip(&inputs)
            .map(|((name, form), tensor)| Ok((name.clone(), form.import_rows(tensor)?)))
            .collect();
        let extent = |(name, extent): &(String, TDim)| {
            let value = extent.eval(context.symbols).to_i64().ok()?;
            Some((name.clone(), u64::try_from(value).ok()?))
        };
        // The shapes of the inputs determine most symbols that tract leaves open.
        let symbols = self.symbols.iter().filter_map(extent).collect();
        let given = given?;
        let call = given.iter().map(|(name, tensor)| (name.as_str(), tensor.into())).collect();
        let results: Vec<FourfoldTensor> = {
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            session.set_symbols(symbols);
            session.run(&call).map_err(Error::from)?.outputs.into_iter().flatten().collect()
        };
        let export = |((form, fact), tensor): (&(Form, TypedFact), &FourfoldTensor)| {
            let extents = fact.shape.iter().map(|extent| extent.eval(context.symbols).to_usize());
            // Without leading extents, the result has its shape already.
            let shape = match fact.rank() {
                0..=2 => form.shape(tensor),
                _ => extents.collect::<Result<Vec<usize>, _>>()?,
            };
            Ok(form.export(tensor, &shape)?.into_tvalue())
        };
        self.outputs.iter().zip(&results).map(export).collect()
    }
}

impl TypedOp for Segment {
    fn output_facts(&self, _inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(self.outputs.iter().map(|(_, fact)| fact.clone()).collect())
    }

    fn set_symbols(
        &self,
        _source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let mut op = self.clone();
        for (_, extent) in &mut op.symbols {
            *extent = extent.substitute_all(subs)?;
        }
        for (_, fact) in &mut op.outputs {
            let shape = fact.shape.iter().map(|extent| extent.substitute_all(subs));
            *fact = fact.datum_type.fact(shape.collect::<TractResult<TVec<TDim>>>()?);
        }
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}
