//! The choices of a plan by an extent, and what the table recommends for products of one weight.

use fourfold_codegen::select::{ActivationChoice, ActivationTables, Activations, Quantized};
use fourfold_ir::{BlockFormat, Dim, Entity, Matmul, Op, OpKind, Value};
use fourfold_scheduler::ChoosePlan;

use crate::backend::Planned;

/// A `choose` of a program, in terms of its original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The result.
    pub value: Value,
    /// The extent that chooses, as text.
    pub extent: String,
    /// The operands, by ascending extent.
    pub arms: Vec<Arm>,
    /// The choices that the table recommends for these products on the target, if the arms multiply one weight in NVFP4 with
    /// 16-bit and with quantized activations.
    pub recommended: Vec<ActivationChoice>,
}

/// An operand of a `choose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// The operand.
    pub value: Value,
    /// The largest extent that chooses it; `None` for the last.
    pub up_to: Option<u64>,
    /// The numbers that its product multiplies a weight in NVFP4 with.
    pub activations: Option<Activations>,
}

/// A product of a weight in NVFP4.
struct Product<'a> {
    op: Op,
    matmul: &'a Matmul,
    activations: Activations,
}

impl Planned {
    /// The choices of the program, in order, with what is recommended for them.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// let text = std::fs::read_to_string("fixtures/choice/one_weight.fir")?;
    /// let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let backend = Backend::new(&Options::default().target("sm_90a").device(DeviceChoice::None))?;
    /// let planned = backend.plan(program);
    /// let choice = &planned.choices()[0];
    /// assert_eq!((choice.extent.as_str(), choice.arms[0].up_to), ("M", Some(64)));
    /// assert_eq!(choice.recommended[0].activations.name(), "W4A16");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn choices(&self) -> Vec<Choice> {
        let program = self.original();
        let plans = program.module().ops.keys().filter_map(|op| ChoosePlan::of(program, op));
        plans.map(|plan| self.choice(&plan)).collect()
    }

    fn choice(&self, plan: &ChoosePlan) -> Choice {
        let module = self.original().module();
        let products: Vec<Option<Product<'_>>> =
            plan.operands.iter().map(|operand| self.product(*operand)).collect();
        let ends = plan.ends.iter().map(|end| Some(u64::from(*end))).chain([None]);
        let arms = plan.operands.iter().zip(ends).zip(&products).map(|((value, up_to), product)| Arm {
            value: *value,
            up_to,
            activations: product.as_ref().map(|product| product.activations),
        });
        Choice {
            value: plan.result,
            extent: module.display_dim(&plan.extent).to_string(),
            arms: arms.collect(),
            recommended: self.recommended(&products, &plan.extent).unwrap_or_default(),
        }
    }

    /// The table's choices for products of one weight in both forms, if their M is the extent that chooses.
    fn recommended(&self, products: &[Option<Product<'_>>], extent: &Dim) -> Option<Vec<ActivationChoice>> {
        let find = |of: Activations| products.iter().flatten().find(|product| product.activations == of);
        let (dense, quantized) = (find(Activations::W4A16)?, find(Activations::W4A4)?);
        let module = self.original().module();
        let [w, also] = [dense, quantized].map(|product| module.scaled_mma_operands(product.op));
        if w?.b != also?.b {
            return None;
        }
        let is_by_m =
            |product: &Product<'_>| product.matmul.m == *extent && product.matmul.batch.as_fixed() == Some(1);
        if extent.as_fixed().is_some() || !is_by_m(dense) || !is_by_m(quantized) {
            return None;
        }
        let a = also?.a;
        // The op that quantizes it may be another one after normalization.
        let a = self.normalized().value(a)?;
        let how = match self.program().module().defining_op(a) {
            Some(op) => {
                let segment = self.partition().decisions.get(op.index())?.segment;
                let is_alone = self.partition().segments.get(segment)?.ops.len() == 1;
                if is_alone { Quantized::Apart } else { Quantized::Anyway }
            }
            // The host has quantized it.
            None => Quantized::Anyway,
        };
        let (n, k) = (dense.matmul.n.as_fixed()?, dense.matmul.k.as_fixed()?);
        Some(ActivationTables::measured().choices(&self.partition().target, n, k, how))
    }

    /// The only product of a weight in NVFP4 that a value depends on without another product between.
    fn product(&self, value: Value) -> Option<Product<'_>> {
        let (module, facts) = (self.original().module(), self.original().facts());
        let mut pending = vec![value];
        let mut seen = vec![false; module.ops.len()];
        let mut found = None;
        while let Some(value) = pending.pop() {
            let op = module.defining_op(value);
            let Some(op) = op.filter(|op| !std::mem::replace(&mut seen[op.index()], true)) else { continue };
            if !matches!(module.ops[op].kind, OpKind::ScaledMma(_)) {
                pending.extend(&module.ops[op].operands);
                continue;
            }
            let matmul = facts.matmul(op)?;
            let weight = BlockFormat { a: BlockFormat::NVFP4.a, ..matmul.format };
            let activations = match matmul.format {
                _ if weight != BlockFormat::NVFP4 => return None,
                BlockFormat::NVFP4 => Activations::W4A4,
                format if format.is_weight_only() => Activations::W4A16,
                _ => return None,
            };
            if found.replace(Product { op, matmul, activations }).is_some() {
                return None;
            }
        }
        found
    }
}
