//! Short program builders, and partitions as text.

use std::fmt::Write;

use expect_test::Expect;
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Capabilities, ConstantValue, Dim, ElementType, EpilogueCapability,
    FormatCapability, GridCapability, Module, Op, OpKind, OperandCapability, OperandShape, OutputCapability,
    Predicate, Program, QuantizedCapability, QuantizedFormat, ReduceKind, ScaleLayout, ScaledMmaOptions,
    TensorType, UnaryKind, Value, verify,
};
use fourfold_scheduler::{
    Constraint, EpilogueKind, EpilogueRef, OutputKind, Partition, Plan, ReasonCode, ScaledMmaPlan, Segment,
    SegmentKind, check, partition,
};

/// A `scaled_mma` with its own inputs, NVFP4 by default.
#[derive(Clone)]
pub struct Gemm {
    pub batch: Vec<Dim>,
    pub b_batch: Vec<Dim>,
    pub m: Dim,
    pub n: Dim,
    pub k: Dim,
    pub element: ElementType,
    pub block: u32,
    pub scale: ElementType,
    pub layouts: [ScaleLayout; 2],
    pub options: ScaledMmaOptions,
}

impl Gemm {
    /// An f32 result without a batch.
    pub fn new(m: Dim, n: u64, k: u64) -> Gemm {
        Gemm {
            batch: Vec::new(),
            b_batch: Vec::new(),
            m,
            n: Dim::fixed(n),
            k: Dim::fixed(k),
            element: ElementType::F32,
            block: 16,
            scale: ElementType::F8E4M3FN,
            layouts: [ScaleLayout::Blocked; 2],
            options: ScaledMmaOptions::default(),
        }
    }

    pub fn of(element: ElementType, m: u64, n: u64, k: u64) -> Gemm {
        Gemm { element, ..Gemm::new(Dim::fixed(m), n, k) }
    }

    pub fn build(&self, builder: &mut Builder, name: &str) -> Value {
        let [a, sfa, b, sfb] = self.inputs(builder, name);
        builder.scaled_mma(name, a, sfa, b, sfb, self.block, self.element, self.options)
    }

    pub fn inputs(&self, builder: &mut Builder, name: &str) -> [Value; 4] {
        let blocks = self.k.divided_by(u64::from(self.block)).expect("whole blocks");
        let shape =
            |batch: &[Dim], rows: &Dim, columns: &Dim| [batch, &[rows.clone(), columns.clone()]].concat();
        let codes = |batch, rows| TensorType::new(shape(batch, rows, &self.k), ElementType::F4E2M1FN);
        let scales =
            |batch, rows, layout| TensorType::scales(shape(batch, rows, &blocks), self.scale, layout);
        [
            builder.input(&format!("{name}.a"), codes(&self.batch, &self.m)),
            builder.input(&format!("{name}.sfa"), scales(&self.batch, &self.m, self.layouts[0])),
            builder.param(&format!("{name}.b"), codes(&self.b_batch, &self.n)),
            builder.param(&format!("{name}.sfb"), scales(&self.b_batch, &self.n, self.layouts[1])),
        ]
    }
}

pub fn tensor(dims: &[u64], element: ElementType) -> TensorType {
    TensorType::new(dims.iter().map(|dim| Dim::fixed(*dim)).collect(), element)
}

/// An op that no epilogue computes.
pub fn softmax(builder: &mut Builder, name: &str, value: Value) -> Value {
    let ty = builder.ty(value).clone();
    let axis = ty.rank() as u32 - 1;
    builder.op(OpKind::Softmax { axis }, &[value], &[(name, ty)])[0]
}

/// The sum over rows: a vector of N elements.
pub fn column_sums(builder: &mut Builder, name: &str, value: Value) -> Value {
    let ty = builder.ty(value);
    let ty = TensorType::new(ty.shape[1..].to_vec(), ty.element);
    builder.op(
        OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep_dims: false },
        &[value],
        &[(name, ty)],
    )[0]
}

/// A constant f32 scalar.
pub fn constant(builder: &mut Builder, name: &str, number: f64) -> Value {
    let kind = OpKind::Constant(ConstantValue::Splat(number));
    builder.op(kind, &[], &[(name, tensor(&[], ElementType::F32))])[0]
}

pub fn compare(
    builder: &mut Builder,
    name: &str,
    predicate: Predicate,
    matrix: Value,
    other: Value,
) -> Value {
    let ty = TensorType::new(builder.ty(matrix).shape.clone(), ElementType::I1);
    builder.op(OpKind::Compare(predicate), &[matrix, other], &[(name, ty)])[0]
}

pub fn select(builder: &mut Builder, name: &str, operands: [Value; 3]) -> Value {
    let ty = TensorType::new(builder.ty(operands[0]).shape.clone(), builder.ty(operands[1]).element);
    builder.op(OpKind::Select, &operands, &[(name, ty)])[0]
}

/// The NVFP4 codes and blocked scales of a matrix.
pub fn quantize(builder: &mut Builder, name: &str, value: Value, global: Value) -> [Value; 2] {
    let shape = builder.ty(value).shape.clone();
    let mut blocks = shape.clone();
    let last = blocks.last_mut().expect("a matrix");
    *last = last.divided_by(16).expect("whole blocks");
    let codes = TensorType::new(shape, ElementType::F4E2M1FN);
    let scales = TensorType::scales(blocks, ElementType::F8E4M3FN, ScaleLayout::Blocked);
    let kind = OpKind::block_quantize(16, None);
    let results =
        builder.op(kind, &[value, global], &[(&format!("{name}.q"), codes), (&format!("{name}.s"), scales)]);
    [results[0], results[1]]
}

/// The capabilities of sm_100a.
pub fn with_device() -> Capabilities {
    fourfold_codegen::capabilities("sm_100a").expect("a target")
}

/// The capabilities of sm_100a with all kinds of outputs and without device kernels.
pub fn blackwell() -> Capabilities {
    use ElementType::{F4E2M1FN, F8E4M3FN, F8E5M2, F8E8M0FNU};
    let mut capabilities = with_device();
    capabilities.block_quantize = None;
    capabilities.device = Default::default();
    for format in &mut capabilities.formats {
        format.outputs.retain(|output| output.element.is_arithmetic());
        format.epilogue.elements.retain(|element| element.is_arithmetic());
        for element in [F8E4M3FN, F8E5M2] {
            format.outputs.push(OutputCapability { element, n_multiple: 16 });
            format.epilogue.elements.push(element);
        }
        let blocks = |element, scale, block| QuantizedCapability { element, scale, block, n_multiple: 32 };
        let mx = [F4E2M1FN, F8E4M3FN, F8E5M2].map(|element| blocks(element, F8E8M0FNU, 32));
        format.epilogue.quantized = [vec![blocks(F4E2M1FN, F8E4M3FN, 16)], mx.to_vec()].concat();
        format.epilogue.reductions = vec![ReduceKind::Amax, ReduceKind::Max];
        format.epilogue.max_outputs = 4;
    }
    capabilities
}

/// The same, with a single value as the only output.
pub fn one_output() -> Capabilities {
    let mut capabilities = blackwell();
    for format in &mut capabilities.formats {
        format.epilogue.quantized.clear();
        format.epilogue.reductions.clear();
        format.epilogue.max_outputs = 1;
    }
    capabilities
}

/// Reduces the elements along these axes.
pub fn reduce(builder: &mut Builder, name: &str, kind: ReduceKind, axes: &[u32], value: Value) -> Value {
    let ty = builder.ty(value);
    let kept = ty.shape.iter().enumerate().filter(|(axis, _)| !axes.contains(&(*axis as u32)));
    let ty = TensorType::new(kept.map(|(_, dim)| dim.clone()).collect(), ty.element);
    builder.op(OpKind::Reduce { kind, axes: axes.to_vec(), keep_dims: false }, &[value], &[(name, ty)])[0]
}

/// A fictional target: no batch, small extents, bf16 output only with N % 16, C in f32 only, and an epilogue
/// of add and relu that reads one bf16 row.
pub fn narrow() -> Capabilities {
    Capabilities {
        target: "narrow".to_owned(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
        formats: vec![FormatCapability {
            format: BlockFormat::NVFP4,
            k_multiple: 64,
            max_extent: 4096,
            grid: GridCapability { max_matrices: 3, max_columns: 2048, tile: [32, 16], max_tiles: 600 },
            max_scale_bytes: 1 << 19,
            operand_alignment: [64; 2],
            pointer_alignment: 64,
            batched: false,
            has_linear_scales: false,
            max_groups: None,
            has_masked: false,
            has_group_scales: false,
            outputs: vec![OutputCapability { element: ElementType::BF16, n_multiple: 16 }],
            c: vec![OutputCapability { element: ElementType::F32, n_multiple: 24 }],
            epilogue: EpilogueCapability {
                elements: vec![ElementType::BF16, ElementType::F32],
                unary: vec![UnaryKind::Relu],
                binary: vec![BinaryKind::Add],
                clamp: false,
                select: false,
                operands: vec![OperandCapability {
                    shape: OperandShape::Row,
                    elements: vec![OutputCapability { element: ElementType::BF16, n_multiple: 1 }],
                    most: 1,
                }],
                max_steps: 4,
                quantized: Vec::new(),
                reductions: Vec::new(),
                max_outputs: 1,
            },
            pairs: None,
        }],
    }
}

#[track_caller]
pub fn verified(module: Module) -> Program {
    verify(module).unwrap_or_else(|invalid| panic!("{:?}", invalid.errors))
}

/// Partitions a program twice, and proves the result with the checker.
#[track_caller]
pub fn planned(module: Module, capabilities: &Capabilities) -> (Program, Partition) {
    let again = verified(module.clone());
    let program = verified(module);
    let result = partition(&program, capabilities);
    assert_eq!(result, partition(&again, capabilities), "the same program gives the same partition");
    assert_eq!(check(&program, capabilities, &result), Ok(()));
    (program, result)
}

#[track_caller]
pub fn check_partition(module: Module, expected: Expect) {
    let (program, partition) = planned(module, &blackwell());
    expected.assert_eq(&text(&program, &partition));
}

/// The segments, then the reasons.
pub fn text(program: &Program, partition: &Partition) -> String {
    let module = program.module();
    let mut text = String::new();
    for (index, segment) in partition.segments.iter().enumerate() {
        segment_text(&mut text, program, index, segment).expect("writing to a string succeeds");
    }
    for (op, decision) in module.ops.keys().zip(&partition.decisions) {
        if let Some(rejection) = &decision.rejection {
            writeln!(text, "{op} in {}: {rejection}", decision.segment)
                .expect("writing to a string succeeds");
        }
    }
    text
}

fn segment_text(text: &mut String, program: &Program, index: usize, segment: &Segment) -> std::fmt::Result {
    let module = program.module();
    let names = |values: &[Value]| {
        let names: Vec<_> = values.iter().map(|value| format!("%{}", module.name_of(*value))).collect();
        if names.is_empty() { "(none)".to_owned() } else { names.join(" ") }
    };
    match &segment.kind {
        SegmentKind::Fallback => {
            let labels: Vec<_> = segment.ops.iter().map(|op| module.op_label(*op)).collect();
            writeln!(text, "{index} fallback {}", labels.join("; "))?;
        }
        SegmentKind::Kernel(plan) => match &**plan {
            Plan::Row(_)
            | Plan::Move(_)
            | Plan::Column(_)
            | Plan::Mma(_)
            | Plan::View(_)
            | Plan::Choose(_)
            | Plan::Constant(_) => {
                let dim = |(name, dim): (&str, &Dim)| format!("{name}={}", module.display_dim(dim));
                let dims: Vec<_> = plan.dims().into_iter().map(dim).collect();
                let kind = plan.kind_name();
                writeln!(text, "{index} device {kind} {} {}", dims.join(" "), plan.signature(program))?;
            }
            Plan::BlockQuantize(plan) => {
                let [l, m, k] = [&plan.batch, &plan.m, &plan.k].map(|dim| module.display_dim(dim));
                let QuantizedFormat { element, block, .. } = plan.format;
                let (input, layout) = (plan.input, plan.layout);
                writeln!(
                    text,
                    "{index} device block_quantize {l}x{m}x{k} {input} to {element} per {block} {layout}"
                )?;
            }
            Plan::ScaledMma(plan) => {
                let [l, m, n, k] =
                    [&plan.batch, &plan.m, &plan.n, &plan.k].map(|dim| module.display_dim(dim));
                writeln!(
                    text,
                    "{index} kernel {} {l}x{m}x{n}x{k} {} -> {}",
                    plan.format,
                    plan.accumulator,
                    names(&plan.written().collect::<Vec<_>>())
                )?;
                for step in &plan.epilogue {
                    let operands: Vec<_> =
                        step.operands.iter().map(|operand| reference(module, plan, *operand)).collect();
                    let result = module.name_of(module.ops[step.op].results[0]);
                    let kind = kind_text(&step.kind);
                    writeln!(text, "    %{result} = {kind}({}) {}", operands.join(", "), step.element)?;
                }
                for output in &plan.outputs {
                    let of = reference(module, plan, output.of);
                    match &output.kind {
                        OutputKind::Value { .. } => {}
                        OutputKind::Quantized { global, element, block, scale_rounding, .. } => {
                            let global = global.map_or(String::new(), |global| {
                                format!(" by {}", reference(module, plan, EpilogueRef::Operand(global)))
                            });
                            let rounding =
                                scale_rounding.map_or(String::new(), |rounding| format!(" {rounding:?}"));
                            writeln!(text, "    quantize {of} to {element} per {block}{rounding}{global}")?;
                        }
                        OutputKind::Reduced { kind, shape, .. } => {
                            writeln!(text, "    {kind} of {of} as {shape}")?;
                        }
                    }
                }
            }
        },
    }
    writeln!(text, "  {} -> {}", names(&segment.inputs), names(&segment.outputs))
}

fn kind_text(kind: &EpilogueKind) -> String {
    match kind {
        EpilogueKind::Constant { bits } => format!("constant {}", f32::from_bits(*bits)),
        EpilogueKind::Unary(kind) => kind.to_string(),
        EpilogueKind::Binary(kind) => kind.to_string(),
        EpilogueKind::Clamp { min, max } => format!("clamp {min}..{max}"),
        EpilogueKind::Compare(predicate) => predicate.to_string(),
        EpilogueKind::Select => "select".to_owned(),
        EpilogueKind::Convert => "convert".to_owned(),
    }
}

fn reference(module: &Module, plan: &ScaledMmaPlan, reference: EpilogueRef) -> String {
    match reference {
        EpilogueRef::Accumulator => "acc".to_owned(),
        EpilogueRef::Odd => "odd".to_owned(),
        EpilogueRef::Step(step) => {
            format!("%{}", module.name_of(module.ops[plan.epilogue[step].op].results[0]))
        }
        EpilogueRef::Operand(operand) => {
            let operand = &plan.operands[operand];
            format!("{} %{} {}", operand.shape, module.name_of(operand.value), operand.element)
        }
    }
}

/// The constraints of the only kernel.
pub fn constraints(program: &Program, partition: &Partition) -> String {
    let module = program.module();
    let (_, plan) = partition.kernels().next().expect("a kernel");
    let mut text = String::new();
    for constraint in &plan.constraints {
        match constraint {
            Constraint::Multiple { name, dim, of, code } => {
                writeln!(text, "{name} = {} % {of} == 0 or {code}", module.display_dim(dim))
            }
            Constraint::AtMost { name, dim, limit } => {
                writeln!(text, "{name} = {} <= {limit}", module.display_dim(dim))
            }
            Constraint::ScaleBytes { name, matrices, rows, k, block, limit } => {
                let [matrices, rows, k] = [matrices, rows, k].map(|dim| module.display_dim(dim).to_string());
                writeln!(text, "scales of {name}, {matrices} x {rows} x {k}/{block} <= {limit}")
            }
            Constraint::Tiles { matrices, rows, columns, tile: [tile_rows, tile_columns], limit } => {
                let [matrices, rows, columns] =
                    [matrices, rows, columns].map(|dim| module.display_dim(dim).to_string());
                writeln!(text, "{matrices} x {rows} x {columns} in {tile_rows}x{tile_columns} <= {limit}")
            }
            Constraint::NotEmpty { name, dim } => writeln!(text, "{name} = {} > 0", module.display_dim(dim)),
            Constraint::PointerAlignment { value, bytes } => {
                writeln!(text, "%{} by {bytes}", module.name_of(*value))
            }
        }
        .expect("writing to a string succeeds");
    }
    text
}

/// The op that defines the value with this name.
#[track_caller]
pub fn op_named(program: &Program, name: &str) -> Op {
    let value = program.facts().value_named(name).expect(name);
    program.module().defining_op(value).expect(name)
}

/// The reason why an op is not in a kernel; `None` if it is in one.
#[track_caller]
pub fn reason(module: Module, capabilities: &Capabilities, name: &str) -> Option<(ReasonCode, String)> {
    let (program, partition) = planned(module, capabilities);
    let op = op_named(&program, name);
    let decision = partition.decisions.into_iter().nth(fourfold_ir::Entity::index(op)).expect("a decision");
    decision.rejection.map(|rejection| (rejection.code, rejection.message))
}
