//! The C interface of a plan's kernel: its roles, extents, signature and constraints.

use fourfold_ir::{Dim, Op, Program, SymbolValues, Value};

use super::rounding::rounding_suffix;
use super::{
    BlockQuantizePlan, ColumnPlan, Constraint, EpilogueOperand, EpilogueRef, Groups, KernelOutput,
    OutputKind, Plan, Roles, RowPlan, ScaledMmaPlan, Tier, ViewPlan,
};

impl Plan {
    /// The plan of a `scaled_mma`; `None` for other kinds.
    pub fn scaled_mma(&self) -> Option<&ScaledMmaPlan> {
        match self {
            Plan::ScaledMma(plan) => Some(plan),
            _ => None,
        }
    }

    /// The tier of the plan's segment.
    pub fn tier(&self) -> Tier {
        match self {
            Plan::ScaledMma(_) => Tier::Kernel,
            _ => Tier::Device,
        }
    }

    /// Returns whether a generated kernel computes the plan. Others are a library call, a view, a
    /// choice or a constant.
    pub fn is_generated(&self) -> bool {
        !matches!(self, Plan::Mma(_) | Plan::View(_) | Plan::Choose(_) | Plan::Constant(_))
    }

    /// The name of the kind in reports: `scaled_mma`, `block_quantize`, `row`, `move`, `column`, `mma`,
    /// `view`, `choose` or `constant`.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Plan::ScaledMma(_) => "scaled_mma",
            Plan::BlockQuantize(_) => "block_quantize",
            Plan::Row(_) => "row",
            Plan::Move(_) => "move",
            Plan::Column(_) => "column",
            Plan::Mma(_) => "mma",
            Plan::View(_) => "view",
            Plan::Choose(_) => "choose",
            Plan::Constant(_) => "constant",
        }
    }

    /// The op that names the plan in reports: the root, the last op of a row kernel, or the only op.
    pub fn root(&self) -> Op {
        match self {
            Plan::ScaledMma(plan) => plan.root,
            Plan::BlockQuantize(plan) => plan.op,
            Plan::Row(plan) => plan.ops[plan.ops.len() - 1],
            Plan::Move(plan) => plan.op,
            Plan::Column(plan) => plan.op,
            Plan::Mma(plan) => plan.op,
            Plan::View(plan) => plan.op,
            Plan::Choose(plan) => plan.op,
            Plan::Constant(plan) => plan.op,
        }
    }

    /// The ops that the kernel computes, in no particular order.
    pub fn ops(&self) -> Vec<Op> {
        match self {
            Plan::ScaledMma(plan) => plan.ops().collect(),
            Plan::Row(plan) => plan.ops.clone(),
            Plan::BlockQuantize(_)
            | Plan::Move(_)
            | Plan::Column(_)
            | Plan::Mma(_)
            | Plan::View(_)
            | Plan::Choose(_)
            | Plan::Constant(_) => vec![self.root()],
        }
    }

    /// The values that the kernel writes, in the order of [`Roles::outputs`].
    pub fn written(&self) -> Vec<Value> {
        match self {
            Plan::ScaledMma(plan) => plan.written().collect(),
            Plan::BlockQuantize(plan) => vec![plan.codes, plan.scales],
            Plan::Row(plan) => plan.written.clone(),
            Plan::Move(plan) => plan.results.clone(),
            Plan::Column(plan) => vec![plan.result],
            Plan::Mma(plan) => vec![plan.d],
            Plan::View(plan) => vec![plan.result],
            Plan::Choose(plan) => vec![plan.result],
            Plan::Constant(plan) => vec![plan.result],
        }
    }

    /// The values of a call by role.
    pub fn roles(&self) -> Roles {
        let numbered = |prefix: &str, values: Vec<Value>| {
            values.into_iter().enumerate().map(|(index, value)| (format!("{prefix}{index}"), value)).collect()
        };
        let outputs = numbered("y", self.written());
        let named = |role: &str, value: Value| (role.to_owned(), value);
        match self {
            Plan::ScaledMma(plan) => {
                let mut operands = vec![named("a", plan.a)];
                operands.extend(plan.sfa.map(|sfa| named("sfa", sfa)));
                operands.extend([named("b", plan.b), named("sfb", plan.sfb)]);
                operands.extend(plan.groups.as_ref().map(|groups| named("offsets", groups.offsets)));
                operands.extend(plan.padded().map(|(ends, _)| named("sfa_ends", ends)));
                let alphas = plan.alphas();
                operands.extend(alphas.map(|alphas| named("alphas", alphas)));
                operands.extend(plan.c.map(|c| named("c", c)));
                let read: Vec<(String, Value)> =
                    numbered("x", plan.operands.iter().map(|operand| operand.value).collect());
                operands.extend(read);
                let alpha = if alphas.is_some() { None } else { plan.alpha };
                let scalars = [("alpha", alpha), ("beta", plan.beta)];
                let scalars = scalars.into_iter().filter_map(|(role, value)| Some(named(role, value?)));
                Roles { operands, scalars: scalars.collect(), outputs }
            }
            Plan::BlockQuantize(plan) => Roles {
                operands: vec![named("values", plan.values)],
                scalars: plan.global.map(|global| named("global", global)).into_iter().collect(),
                outputs,
            },
            Plan::Row(plan) => {
                let operands = numbered("x", plan.operands.iter().map(|operand| operand.value).collect());
                Roles { operands, scalars: Vec::new(), outputs }
            }
            Plan::Move(plan) => {
                Roles { operands: numbered("x", plan.operands.clone()), scalars: Vec::new(), outputs }
            }
            Plan::Mma(plan) => {
                Roles { operands: vec![named("a", plan.a), named("b", plan.b)], scalars: Vec::new(), outputs }
            }
            Plan::Column(ColumnPlan { operand, .. }) | Plan::View(ViewPlan { operand, .. }) => {
                Roles { operands: vec![named("x0", *operand)], scalars: Vec::new(), outputs }
            }
            Plan::Choose(plan) => {
                Roles { operands: numbered("x", plan.operands.clone()), scalars: Vec::new(), outputs }
            }
            Plan::Constant(_) => Roles { operands: Vec::new(), scalars: Vec::new(), outputs },
        }
    }

    /// The extents of the plan, with their names in the C interface.
    pub fn dims(&self) -> Vec<(&'static str, &Dim)> {
        match self {
            Plan::ScaledMma(plan) => {
                let mut dims = vec![("L", &plan.batch), ("M", &plan.m), ("N", &plan.n), ("K", &plan.k)];
                // The columns of D, where they are not N.
                dims.extend(plan.pair.as_ref().map(|pair| ("F", &pair.columns)));
                dims.extend(plan.groups.as_ref().map(|groups| ("E", &groups.count)));
                dims.extend(plan.padded().map(|(_, rows)| ("P", rows)));
                dims
            }
            Plan::Mma(plan) => vec![("L", &plan.batch), ("M", &plan.m), ("N", &plan.n), ("K", &plan.k)],
            Plan::BlockQuantize(plan) => vec![("L", &plan.batch), ("M", &plan.m), ("K", &plan.k)],
            Plan::Row(plan) => {
                let mut dims = vec![("L", &plan.batch), ("M", &plan.m), ("K", &plan.k)];
                let repeats = plan.operands.iter().filter_map(|operand| operand.repeat.as_ref());
                for (repeat, [each, rows]) in repeats.zip(RowPlan::REPEAT_EXTENTS) {
                    dims.extend([(each, &repeat.each), (rows, &repeat.rows)]);
                }
                dims
            }
            Plan::Move(plan) => plan.program.extent_names().into_iter().zip(&plan.extents).collect(),
            Plan::Column(plan) => ColumnPlan::EXTENTS.into_iter().zip(&plan.extents).collect(),
            Plan::View(_) | Plan::Choose(_) | Plan::Constant(_) => Vec::new(),
        }
    }

    /// The extents of one launch, with their names in the C interface. `None` if a symbol has no value or an
    /// extent exceeds 63 bits. [`ScaledMmaPlan`] and [`MmaPlan`](super::MmaPlan) describe flattening.
    pub fn extents(&self, symbols: &SymbolValues) -> Option<Vec<(&'static str, i64)>> {
        let extent =
            |(name, dim): (&'static str, &Dim)| Some((name, i64::try_from(dim.evaluate(symbols)?).ok()?));
        let mut extents = self.dims().into_iter().map(extent).collect::<Option<Vec<_>>>()?;
        let b_batched = match self {
            Plan::ScaledMma(plan) => plan.b_batched,
            Plan::Mma(plan) => plan.b_batched,
            _ => true,
        };
        if let ([(_, l), (_, m), ..], false) = (&mut extents[..], b_batched) {
            (*l, *m) = (1, l.checked_mul(*m)?);
        }
        Some(extents)
    }

    /// The conditions that a call must meet before the kernel is launched.
    pub fn constraints(&self) -> &[Constraint] {
        match self {
            Plan::ScaledMma(plan) => &plan.constraints,
            Plan::BlockQuantize(plan) => &plan.constraints,
            Plan::Row(plan) => &plan.constraints,
            Plan::Move(plan) => &plan.constraints,
            Plan::Column(plan) => &plan.constraints,
            Plan::Mma(plan) => &plan.constraints,
            Plan::View(_) | Plan::Choose(_) | Plan::Constant(_) => &[],
        }
    }

    /// Returns the kernel's signature: a description of its operands and outputs, which the generated library
    /// also reports. A library with another signature is not launched for this plan.
    ///
    /// The signature of a `scaled_mma` starts with the format, and `grouped`, `grouped_alpha`, `masked` or `masked_alpha` if
    /// its rows are in groups. Next is the layout of the scales of A: `blocked` if they are blocked for each group, `linear`
    /// if they are linear without groups. Then follow, where present, `pair` for an epilogue that pairs columns, `alpha`, the
    /// type of C, `beta`, and the shape and type of each epilogue operand. The outputs come last, in order:
    /// - `d=bf16` is a value.
    /// - `q=f4E2M1FN:f8E4M3FN/16*x2` is codes with one scale per 16 elements, under the per-tensor scale at operand
    ///   position 2.
    /// - `q=f8E4M3FN:f8E8M0FNU/32:floor` names the rounding of an MX scale.
    /// - `q=f4E2M1FN:f8E4M3FN/16:unguarded_min3c800000` names a formula other than the default.
    /// - `amax=row` and `max=scalar` are reductions.
    /// - `@acc` or `@s3` marks an output of the accumulator or of step 3, unless that is the last step.
    ///
    /// The signature of a `block_quantize` looks like `block_quantize values=bf16 global
    /// q=f4E2M1FN:f8E4M3FN/16 blocked`.
    pub fn signature(&self, program: &Program) -> String {
        match self {
            Plan::ScaledMma(plan) => scaled_mma_signature(program, plan),
            Plan::BlockQuantize(plan) => block_quantize_signature(plan),
            Plan::Row(plan) => plan.program.signature(),
            Plan::Move(plan) => plan.program.signature(),
            Plan::Column(plan) => plan.program.signature(),
            Plan::Mma(plan) => plan.signature(),
            Plan::View(_) | Plan::Choose(_) | Plan::Constant(_) => self.kind_name().to_owned(),
        }
    }
}

impl Groups {
    /// The word of a signature: `grouped`, or `grouped_alpha` with an alpha for each group. `masked` and `masked_alpha` if
    /// each group has a matrix of A.
    pub fn signature(&self) -> &'static str {
        match (self.masked, self.has_alphas) {
            (false, false) => "grouped",
            (false, true) => "grouped_alpha",
            (true, false) => "masked",
            (true, true) => "masked_alpha",
        }
    }
}

impl From<ScaledMmaPlan> for Plan {
    fn from(plan: ScaledMmaPlan) -> Plan {
        Plan::ScaledMma(plan)
    }
}

fn block_quantize_signature(plan: &BlockQuantizePlan) -> String {
    let BlockQuantizePlan { input, format, scale_rounding, formula, layout, .. } = plan;
    let global = if plan.global.is_some() { " global" } else { "" };
    let rounding = rounding_suffix(*scale_rounding, *formula);
    format!(
        "block_quantize values={input}{global} q={}:{}/{}{rounding} {layout}",
        format.element, format.scale, format.block
    )
}

fn scaled_mma_signature(program: &Program, plan: &ScaledMmaPlan) -> String {
    let element = |value| program.module().ty(value).element;
    let mut parts = vec![plan.format.to_string()];
    parts.extend(plan.groups.as_ref().map(|groups| groups.signature().to_owned()));
    parts.extend(plan.groups.as_ref().filter(|groups| groups.scales.is_some()).map(|_| "blocked".to_owned()));
    parts.extend((plan.groups.is_none() && plan.linear_sfa).then(|| "linear".to_owned()));
    parts.extend(plan.pair.as_ref().map(|_| "pair".to_owned()));
    parts.extend(plan.alpha.map(|_| "alpha".to_owned()));
    parts.extend(plan.c.map(|c| format!("c={}", element(c))));
    parts.extend(plan.beta.map(|_| "beta".to_owned()));
    let operand = |operand: &EpilogueOperand| format!("{}={}", operand.shape, element(operand.value));
    parts.extend(plan.operands.iter().map(operand));
    parts.extend(plan.outputs.iter().map(|output| output_of(program, plan, output)));
    parts.join(" ")
}

fn output_of(program: &Program, plan: &ScaledMmaPlan, output: &KernelOutput) -> String {
    let element = |value| program.module().ty(value).element;
    let mut word = match &output.kind {
        OutputKind::Value { value } => format!("d={}", element(*value)),
        OutputKind::Quantized { codes, scales, global, block, scale_rounding, formula, .. } => {
            let rounding = rounding_suffix(*scale_rounding, *formula);
            let global = global.map_or(String::new(), |operand| format!("*x{operand}"));
            format!("q={}:{}/{block}{rounding}{global}", element(*codes), element(*scales))
        }
        OutputKind::Reduced { kind, shape, .. } => format!("{}={shape}", kind.name()),
    };
    let last = plan.epilogue.len().checked_sub(1).map_or(EpilogueRef::Accumulator, EpilogueRef::Step);
    if output.of != last {
        word += &match output.of {
            EpilogueRef::Accumulator => "@acc".to_owned(),
            EpilogueRef::Odd => "@odd".to_owned(),
            EpilogueRef::Step(step) => format!("@s{step}"),
            // Unreachable in a valid plan. The word matches no kernel's signature.
            EpilogueRef::Operand(operand) => format!("@x{operand}"),
        };
    }
    word
}
