//! Properties of every valid program: its partition passes the checker, every kernel has a source, and the
//! fallback equals the interpreter, run as planned.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::executor;
use fourfold::executor::fallback::scales_of_rows;
use fourfold::ir::{
    ElementType, Entity, GroupedScaledMma, Matmul, Module, Op, OpKind, Program, ScaledMma, SymbolValues,
    Tensor, Value, bind, interpret, interpret_op, sample, text, verify,
};
use fourfold::kernels::planned_kernels;
use fourfold::scheduler::{EpilogueRef, NormalizeOptions, OutputKind, ScaledMmaPlan, normalize_for};

use crate::generate::{Case, case};

/// The features covered by the programs so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// The number of programs.
    pub programs: usize,
    /// Programs that normalization changed.
    pub normalized: usize,
    /// Programs with a kernel segment.
    pub with_kernel: usize,
    /// Programs with two or more kernel segments.
    pub with_two: usize,
    /// Programs with an epilogue that is not a chain.
    pub with_dag: usize,
    /// Programs with a kernel of several outputs.
    pub with_several: usize,
    /// Programs with a kernel that quantizes.
    pub with_blocks: usize,
    /// Programs with a kernel that reduces.
    pub with_reduction: usize,
    /// Programs with a kernel that reads the output of another.
    pub with_chain: usize,
    /// The number of kernel segments.
    pub kernels: usize,
    /// The number of their steps.
    pub steps: usize,
    /// Kernel segments whose results are compared bit for bit.
    pub exact_kernels: usize,
    /// The number of ops outside kernels, by reason code.
    pub rejections: BTreeMap<&'static str, usize>,
}

static COUNTS: Mutex<Option<Counts>> = Mutex::new(None);

/// Returns the features covered so far and resets them.
pub fn take_counts() -> Counts {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
}

fn count(add: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    add(counts.get_or_insert_default());
}

/// Returns the program of a case.
///
/// # Panics
/// Panics if the generator made an invalid one.
pub fn program(case: &Case) -> Program {
    match verify(case.module.clone()) {
        Ok(program) => program,
        Err(invalid) => {
            let errors: Vec<String> =
                invalid.errors.iter().map(|e| format!("{} in {:?}", e.kind, e.op_text)).collect();
            panic!(
                "the generator made an invalid program: {}\n{}",
                errors.join("\n"),
                text::print(&case.module)
            )
        }
    }
}

/// Makes a program of at least this many steps and checks every property.
///
/// # Panics
/// Panics if a property does not hold.
pub fn check_run(seed: u64, steps: usize) {
    let case = case(seed, steps);
    // A normalized program is planned unchanged, so its values are those of the run.
    let original = program(&case);
    // Prefers targets that have kernels.
    let blackwell = ["sm_100a", "sm_103a", "sm_120a", "sm_121a"];
    let target = match seed % 16 {
        0 => "cpu",
        1 => "sm_90a",
        other => blackwell[other as usize % blackwell.len()],
    };
    let backend = crate::backend(target).expect("a known target");
    let normalized = normalize_for(&original, &NormalizeOptions::default(), backend.capabilities());
    let program = normalized.program().clone();
    let planned = backend.plan(program.clone());
    let again = planned.normalized().program();
    assert!(
        !planned.normalized().is_changed(),
        "a normalized program changed:\n{}\nnow:\n{}",
        fourfold::ir::text::print(program.module()),
        fourfold::ir::text::print(again.module())
    );
    backend.check(&planned).expect("the checker accepts the partition");
    assert_eq!(planned.partition().decisions.len(), program.module().ops.len());
    let kernels = planned.partition().kernels().count();
    let sources = planned_kernels(&planned, CutlassVersion::PINNED, false);
    let generated = planned.partition().plans().filter(|(_, plan)| plan.is_generated()).count();
    assert_eq!(sources.len(), generated, "every accepted kernel has a source");
    let plans = || planned.partition().kernels().map(|(_, plan)| plan);
    let ends =
        |is: fn(&OutputKind) -> bool| plans().any(|plan| plan.outputs.iter().any(|output| is(&output.kind)));
    let module = program.module();
    let in_kernel = |op: Op| planned.partition().decisions[op.index()].rejection.is_none();
    let reads = |plan: &ScaledMmaPlan| {
        let read = plan.operands.iter().map(|operand| operand.value);
        let read = read.chain([plan.a]).chain(plan.sfa).chain(plan.c);
        read.filter_map(|value| module.defining_op(value)).any(in_kernel)
    };
    count(|counts| {
        counts.programs += 1;
        counts.with_kernel += usize::from(kernels >= 1);
        counts.with_two += usize::from(kernels >= 2);
        counts.with_dag += usize::from(plans().any(shares_a_value));
        counts.with_several += usize::from(plans().any(|plan| plan.outputs.len() > 1));
        counts.with_blocks += usize::from(ends(|kind| matches!(kind, OutputKind::Quantized { .. })));
        counts.with_reduction += usize::from(ends(|kind| matches!(kind, OutputKind::Reduced { .. })));
        counts.with_chain += usize::from(plans().any(reads));
        counts.kernels += kernels;
        counts.steps += plans().map(|plan| plan.epilogue.len()).sum::<usize>();
        for rejection in planned.partition().decisions.iter().filter_map(|found| found.rejection.as_ref()) {
            *counts.rejections.entry(rejection.code.as_str()).or_default() += 1;
        }
    });

    let tensors = sample::inputs(&program, &case.recipe).expect("the recipe names every symbol");
    let bound = bind::bind(&program, &tensors).expect("the tensors fit the inputs");
    let want = interpret(&program, &bound).expect("small programs can be interpreted");
    if normalized.is_changed() {
        count(|counts| counts.normalized += 1);
        let bound = bind::bind(&original, &tensors).expect("the inputs are the same");
        let meant = interpret(&original, &bound).expect("small programs can be interpreted");
        for &output in &original.module().outputs {
            let became = normalized.value(output).expect("normalization keeps outputs");
            let same = meant[output.index()] == want[became.index()]
                || is_same(&meant[output.index()], &want[became.index()]);
            assert!(same, "normalization changed the value of %{}", original.module().name_of(output));
        }
    }

    // Each op runs on the interpreter's operands, so the rounding of one op does not affect the next.
    for (op, operation) in program.module().ops.iter() {
        let operands: Vec<&Tensor> =
            operation.operands.iter().map(|operand| &want[operand.index()]).collect();
        let got = executor::fallback::run_op(&program, op, &operands, &bound.symbols)
            .expect("the fallback supports every op");
        for (result, got) in operation.results.iter().zip(&got) {
            let want = &want[result.index()];
            match multiplication_bound(&program, op, &operands) {
                None => assert_same(got, want, &program, op),
                Some(bound) => assert_within(got, want, &bound, &program, op),
            }
        }
    }

    // The whole program, segment by segment. While every sum is exact in f32, bits must be equal; afterwards each
    // op must lie within its bound of the interpreter on the run's own operands.
    let run =
        planned.run(&tensors, &executor::RunOptions::default().keep_all(true)).expect("the program runs");
    let module = program.module();
    let inputs: HashMap<Value, &Tensor> =
        module.inputs.iter().copied().zip(bound.inputs.iter().copied()).collect();
    let kept = |value: &Value| inputs.get(value).copied().or_else(|| run.value(*value));
    let ran = |value: &Value| kept(value).expect("the run keeps every value");
    let needed = needed(&program, &bound.symbols);
    let mut exact: Vec<bool> = vec![true; module.values.len()];
    for (op, operation) in module.ops.iter() {
        if operation.results.iter().any(|result| kept(result).is_none()) {
            for result in &operation.results {
                assert!(!needed[result.index()], "%{} was not computed", module.name_of(*result));
                exact[result.index()] = false;
            }
            continue;
        }
        // Other operands of a choice than the chosen one may be missing. It stands in for them.
        let chosen = chosen(module, op, &bound.symbols);
        let read = |value: &Value| chosen.map_or_else(|| ran(value), |chosen| ran(&chosen));
        let operands: Vec<&Tensor> = operation.operands.iter().map(read).collect();
        let inexact = is_inexact(&program, case.recipe.rule, op)
            || operation.operands.iter().any(|operand| !exact[chosen.unwrap_or(*operand).index()]);
        let local =
            interpret_op(&program, op, &operands, &bound.symbols).expect("small programs can be interpreted");
        for (result, local) in operation.results.iter().zip(&local) {
            exact[result.index()] = !inexact;
            match multiplication_bound(&program, op, &operands) {
                Some(bound) if inexact => assert_within(ran(result), local, &bound, &program, op),
                _ => assert_same(ran(result), local, &program, op),
            }
            if !inexact {
                assert_same(ran(result), &want[result.index()], &program, op);
            }
        }
    }
    let exact_kernels = plans().filter(|plan| plan.written().all(|value| exact[value.index()])).count();
    count(|counts| counts.exact_kernels += exact_kernels);
}

/// The operand that a `choose` takes with these extents; `None` for other ops.
fn chosen(module: &Module, op: Op, symbols: &SymbolValues) -> Option<Value> {
    let operation = &module.ops[op];
    let OpKind::Choose { axis, ends } = &operation.kind else { return None };
    let extent = module.ty(operation.results[0]).shape[*axis as usize].evaluate(symbols)?;
    let position = ends.iter().position(|end| extent <= u64::from(*end)).unwrap_or(ends.len());
    Some(operation.operands[position])
}

/// By value: true if a call must compute it. Only programs with a choice leave anything out.
fn needed(program: &Program, symbols: &SymbolValues) -> Vec<bool> {
    let module = program.module();
    let chooses = module.ops.values().any(|operation| matches!(operation.kind, OpKind::Choose { .. }));
    let mut needed = vec![!chooses; module.values.len()];
    module.outputs.iter().for_each(|output| needed[output.index()] = true);
    let ops: Vec<Op> = module.ops.keys().collect();
    for op in ops.into_iter().rev() {
        let operation = &module.ops[op];
        if operation.results.iter().any(|result| needed[result.index()]) {
            match chosen(module, op, symbols) {
                Some(value) => needed[value.index()] = true,
                None => operation.operands.iter().for_each(|operand| needed[operand.index()] = true),
            }
        }
    }
    needed
}

/// Returns true if a value of an epilogue has more than one use.
fn shares_a_value(plan: &ScaledMmaPlan) -> bool {
    let uses = |value: EpilogueRef| {
        let operands = plan.epilogue.iter().flat_map(|step| &step.operands);
        operands.filter(|operand| **operand == value).count()
    };
    let steps = (0..plan.epilogue.len()).map(EpilogueRef::Step);
    steps.chain([EpilogueRef::Accumulator]).any(|value| uses(value) > 1)
}

/// Returns true if the sums of an op depend on the order of accumulation. That holds for every multiplication
/// except a `scaled_mma` of sampled block-scaled operands with a K that the rule keeps exact.
fn is_inexact(program: &Program, rule: sample::Rule, op: Op) -> bool {
    let module = program.module();
    if matches!(module.ops[op].kind, OpKind::Mma | OpKind::GroupedScaledMma(_)) {
        return true;
    }
    let (Some(operands), Some(matmul)) = (module.scaled_mma_operands(op), program.facts().matmul(op)) else {
        return false;
    };
    let is_sampled = |value: Value| match module.defining_op(value) {
        Some(op) => module.ops[op].kind == OpKind::SwizzleScales,
        None => true,
    };
    let Some(sfa) = operands.sfa else { return true };
    let limit = rule.exact_k(matmul.format.scale).unwrap_or(0);
    matmul.k.as_fixed().is_none_or(|k| limit < k)
        || ![operands.a, sfa, operands.b, operands.sfb].into_iter().all(is_sampled)
}

/// Returns the largest error that f32 accumulation in any order can make in each element, before rounding to the
/// result type: γ_K·|alpha|·Σ|a·b|. `None` if the op is no multiplication.
fn multiplication_bound(program: &Program, op: Op, operands: &[&Tensor]) -> Option<Vec<f64>> {
    let module = program.module();
    let (a, b, batched, alpha) = match &module.ops[op].kind {
        OpKind::Mma => {
            let batched = operands[1].dims().len() > 2;
            (operands[0].to_f64(), operands[1].to_f64(), batched, 1.0)
        }
        OpKind::ScaledMma(attributes) => {
            let block = attributes.block as usize;
            let (positional, named) = operands.split_at(attributes.positional().len());
            let alpha = if attributes.alpha { named[0].to_f64()[0] } else { 1.0 };
            let facts: &Matmul = program.facts().matmul(op).expect("every scaled_mma has facts");
            let (a, b) = match *positional {
                [a, sfa, b, sfb] => (scaled(a, sfa, block), scaled(b, sfb, block)),
                [a, b, sfb] => (a.to_f64(), scaled(b, sfb, block)),
                _ => return None,
            };
            (a, b, facts.b_batched, alpha)
        }
        OpKind::GroupedScaledMma(attributes) => {
            let block = attributes.block as usize;
            match *operands {
                [a, b, sfb, ..] if attributes.weight_only => (a.to_f64(), scaled(b, sfb, block), true, 1.0),
                [a, sfa, b, sfb, offsets, ..] => {
                    let rows = a.dims()[0];
                    let linear = operands.last().filter(|_| attributes.sfa_ends).map(|sfa_ends| {
                        scales_of_rows(sfa, rows, [offsets, sfa_ends]).expect("valid ends of groups")
                    });
                    let sfa = linear.as_ref().unwrap_or(sfa);
                    (scaled(a, sfa, block), scaled(b, sfb, block), true, 1.0)
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    let k = *operands[0].dims().last()?;
    let n = match &module.ops[op].kind {
        OpKind::ScaledMma(ScaledMma { weight_only: false, .. })
        | OpKind::GroupedScaledMma(GroupedScaledMma { weight_only: false, .. }) => operands[2],
        _ => operands[1],
    };
    let n = n.dims()[n.dims().len() - 2];
    let rows = a.len().checked_div(k).unwrap_or(0);
    let m = operands[0].dims()[operands[0].dims().len() - 2];
    let unit = k as f64 * 2f64.powi(-24);
    let gamma = unit / (1.0 - unit);
    let groups = Groups::new(&module.ops[op].kind, operands);
    let mut bound = Vec::with_capacity(rows * n);
    for row in 0..rows {
        let (matrix, alpha) = match &groups {
            None => (if batched { row / m } else { 0 }, alpha),
            Some(groups) => match groups.of_row(row) {
                Some(group) => group,
                None => {
                    // Rows of no group are 0 without any error.
                    bound.extend(std::iter::repeat_n(0.0, n));
                    continue;
                }
            },
        };
        for column in 0..n {
            let b_row = &b[(matrix * n + column) * k..][..k];
            let sum: f64 = a[row * k..][..k].iter().zip(b_row).map(|(a, b)| (a * b).abs()).sum();
            bound.push(gamma * alpha.abs() * sum);
        }
    }
    Some(bound)
}

/// The elements of block-scaled data.
fn scaled(codes: &Tensor, scales: &Tensor, block: usize) -> Vec<f64> {
    let scales = scales.to_f64();
    codes.to_f64().iter().enumerate().map(|(i, v)| v * scales[i / block]).collect()
}

/// The groups of a `grouped_scaled_mma` or `masked_scaled_mma`.
struct Groups {
    /// The end of each group of rows, or the rows of each.
    ends: Vec<f64>,
    /// The rows of a matrix of A, if each group has one.
    rows: Option<usize>,
    alphas: Vec<f64>,
}

impl Groups {
    fn new(kind: &OpKind, operands: &[&Tensor]) -> Option<Groups> {
        let OpKind::GroupedScaledMma(attributes) = kind else { return None };
        let (positional, named) = operands.split_at(attributes.positional().len());
        let alpha = if attributes.alpha { named.first() } else { None };
        let alphas = alpha.map_or(vec![1.0], |alpha| alpha.to_f64());
        let rows = if attributes.masked { positional.first()?.dims().get(1).copied() } else { None };
        Some(Groups { ends: positional.last()?.to_f64(), rows, alphas })
    }

    /// The group of a row, and its alpha.
    fn of_row(&self, row: usize) -> Option<(usize, f64)> {
        let group = match self.rows {
            Some(rows) => Some(row / rows).filter(|group| ((row % rows) as f64) < self.ends[*group])?,
            None => self.ends.iter().position(|end| (row as f64) < *end)?,
        };
        Some((group, self.alphas.get(group).copied().unwrap_or(self.alphas[0])))
    }
}

/// Returns true if the bits are equal; every NaN equals every other.
fn is_same(got: &Tensor, want: &Tensor) -> bool {
    let same = |(got, want): (f64, f64)| got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
    got.dims() == want.dims() && got.to_f64().into_iter().zip(want.to_f64()).all(same)
}

fn assert_same(got: &Tensor, want: &Tensor, program: &Program, op: Op) {
    assert_eq!(got.dims(), want.dims(), "{}", text::print_op(program.module(), op));
    if got.bytes() == want.bytes() {
        return;
    }
    let (got_values, want_values) = (got.to_f64(), want.to_f64());
    for (index, (got, want)) in got_values.iter().zip(&want_values).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{}: element {index} is {got}, not {want}", text::print_op(program.module(), op));
    }
    let padding_is_the_difference = got.layout().is_some() || got_values.iter().any(|value| value.is_nan());
    assert!(padding_is_the_difference, "{}: bytes differ", text::print_op(program.module(), op));
}

/// Returns true if the values agree within the bound plus 4 ulp of f32 and one rounding of the result type.
fn assert_within(got: &Tensor, want: &Tensor, bound: &[f64], program: &Program, op: Op) {
    assert_eq!(got.dims(), want.dims(), "{}", text::print_op(program.module(), op));
    let digits = match want.element() {
        ElementType::F16 => 11,
        ElementType::BF16 => 8,
        _ => 24,
    };
    let (got, want) = (got.to_f64(), want.to_f64());
    for (index, ((got, want), bound)) in got.iter().zip(&want).zip(bound).enumerate() {
        if got == want || (got.is_nan() && want.is_nan()) {
            continue;
        }
        // f16 overflows, and a sum near the edge may fall on either side.
        let at_the_edge =
            digits == 11 && got.abs().min(want.abs()) >= 65_504.0 && got.signum() == want.signum();
        // An f16 infinity stands for every sum beyond the largest f16, so it is at least that far away.
        let nearest = |value: f64| {
            if digits == 11 && value.is_infinite() { 65_504.0 * value.signum() } else { value }
        };
        let (from, to) = (nearest(*want), nearest(*got));
        let rounding = from.abs() * (4.0 * 2f64.powi(-24) + 2f64.powi(1 - digits)) + 2f64.powi(-24);
        let error = (to - from).abs();
        // If c cancels the product, the error is relative to the product, which the bound covers.
        assert!(
            at_the_edge || (error.is_finite() && error <= bound * 1.0001 + rounding),
            "{}: element {index} is {got}, not {want}; bound {bound}",
            text::print_op(program.module(), op)
        );
    }
}
