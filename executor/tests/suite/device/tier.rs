//! Programs of the device tier: row and column kernels, plain products, views and constants, each op a segment.

use std::collections::HashMap;

use fourfold_executor::blas::Blas;
use fourfold_executor::device::{Buffer, Device};
use fourfold_executor::{Kernel, Machine, Preparation, PreparedProgram, Refused, RunReason, SegmentKernel};
use fourfold_ir::sample::{Recipe, Rule, inputs};
use fourfold_ir::{
    BinaryKind, Dim, ElementType, Op, OpKind, Program, ReduceKind, Tensor, UnaryKind, Value, dim_product,
};
use fourfold_scheduler::{
    ChoosePlan, ColumnPlan, ColumnProgram, ConstantPlan, Decision, MmaPlan, MovePlan, MoveProgram, Partition,
    Plan, RowInput, RowOperand, RowOutput, RowOutputKind, RowPlan, RowProgram, RowRef, RowShape, RowStep,
    RowStepKind, Segment, SegmentKind, ViewPlan,
};

use super::fixture::Fixture;
use super::interface::{Interface, role};
use super::stand_in::kernel_of;

/// A program of f32 with one segment per op. `neg`, `add` and `reduce` along the last axis are row kernels, `gather` of
/// rows is a move, `reshape` a view, `mma` a product and `constant` a constant. A sum along the first axis is a column
/// kernel. Other ops run on the fallback. `extents` are those of symbols.
pub fn tier(text: &str, extents: &[(&str, u64)]) -> Fixture {
    let (program, _) = fourfold_ir::load(text).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let ops: Vec<Op> = program.module().ops.keys().collect();
    let segments: Vec<Segment> = ops.iter().map(|op| segment(&program, *op)).collect();
    let decisions = (0..ops.len()).map(|segment| Decision { segment, rejection: None }).collect();
    let partition = Partition { target: "sm_100a".to_owned(), segments, decisions };
    let symbols = extents.iter().map(|(name, extent)| ((*name).to_owned(), *extent)).collect();
    let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 5, symbols }).unwrap();
    let tensors = tensors.into_iter().map(|(name, tensor)| (name, whole_numbers(&tensor))).collect();
    let mut fixture = Fixture { program, partition, tensors, kernels: HashMap::new() };
    for position in 0..ops.len() {
        let kernel = match fixture.partition.segments[position].plan() {
            Some(Plan::Row(_)) => row_kernel(&fixture, position, &[]),
            Some(plan @ Plan::Column(_)) => column_kernel(&fixture.program, plan),
            Some(Plan::Move(_)) => gather_kernel(&fixture, position),
            _ => continue,
        };
        fixture.kernels.insert(position, SegmentKernel::Ready(kernel));
    }
    fixture
}

/// Small whole numbers, whose sums of products are exact in any order.
fn whole_numbers(tensor: &Tensor) -> Tensor {
    let values: Vec<f64> =
        tensor.to_f64().iter().map(|value| (value * 4.0).round().clamp(-9.0, 9.0)).collect();
    Tensor::from_f64(tensor.element(), tensor.dims().to_vec(), None, &values).unwrap()
}

impl Fixture {
    /// Gives every plain product this library, or the reason that there is none.
    pub fn with_library(mut self, library: Result<Blas, RunReason>) -> Fixture {
        for (position, segment) in self.partition.segments.iter().enumerate() {
            if let Some(Plan::Mma(_)) = segment.plan() {
                let kernel = match &library {
                    Ok(blas) => SegmentKernel::Library(blas.clone()),
                    Err(reason) => SegmentKernel::Unavailable(reason.clone()),
                };
                self.kernels.insert(position, kernel);
            }
        }
        self
    }

    /// Gives a row segment a kernel with this workspace.
    pub fn with_row_workspace(mut self, position: usize, bytes: u64) -> Fixture {
        let kernel = row_kernel(&self, position, &[&format!("WORKSPACE={bytes}")]);
        self.kernels.insert(position, SegmentKernel::Ready(kernel));
        self
    }
}

/// The stand-in kernel of a row segment.
fn row_kernel(fixture: &Fixture, position: usize, defines: &[&str]) -> Kernel {
    let plan = fixture.partition.segments[position].plan().unwrap();
    let Plan::Row(row) = plan else { panic!("segment {position} is no row kernel") };
    let result = match row.program.steps[0].kind {
        RowStepKind::Unary(UnaryKind::Neg) => "-x0[i]",
        RowStepKind::Binary(BinaryKind::Add) => "x0[i] + x1[i]",
        // Never launched: tests reduce over nothing.
        _ => "0",
    };
    let matrix = Some(&["L", "M", "K"][..]);
    let names = (0..row.operands.len()).map(|index| format!("x{index}"));
    let interface = Interface {
        signature: plan.signature(&fixture.program),
        extents: ["L", "M", "K"].map(str::to_owned).to_vec(),
        operands: names.map(|name| role(&name, "f32", matrix)).collect(),
        scalars: Vec::new(),
        outputs: vec![role("y0", "f32", None)],
    };
    let result = format!("RESULT={result}");
    let defines: Vec<&str> = defines.iter().copied().chain([result.as_str()]).collect();
    kernel_of("row.c", &interface.signature, &interface.roles(), &defines)
}

/// The stand-in kernel of a column segment.
fn column_kernel(program: &Program, plan: &Plan) -> Kernel {
    let interface = Interface {
        signature: plan.signature(program),
        extents: ColumnPlan::EXTENTS.map(str::to_owned).to_vec(),
        operands: vec![role("x0", "f32", Some(&ColumnPlan::EXTENTS))],
        scalars: Vec::new(),
        outputs: vec![role("y0", "f32", Some(&["O", "B", "I"]))],
    };
    kernel_of("column.c", &interface.signature, &interface.roles(), &[])
}

/// The stand-in kernel of a `gather`.
fn gather_kernel(fixture: &Fixture, position: usize) -> Kernel {
    let plan = fixture.partition.segments[position].plan().unwrap();
    let interface = Interface {
        signature: plan.signature(&fixture.program),
        extents: ["O", "A", "I", "C"].map(str::to_owned).to_vec(),
        operands: vec![role("x0", "u8", None), role("x1", "i32", None)],
        scalars: Vec::new(),
        outputs: vec![role("y0", "u8", None)],
    };
    kernel_of("row.c", &interface.signature, &interface.roles(), &["GATHER"])
}

fn segment(program: &Program, op: Op) -> Segment {
    let operation = &program.module().ops[op];
    let mut inputs = operation.operands.clone();
    inputs.sort_unstable();
    inputs.dedup();
    let result = operation.results[0];
    let kind = match plan(program, op, &operation.operands, result) {
        Some(plan) => SegmentKind::Kernel(Box::new(plan)),
        None => SegmentKind::Fallback,
    };
    Segment { ops: vec![op], inputs, outputs: vec![result], kind }
}

fn plan(program: &Program, op: Op, operands: &[Value], result: Value) -> Option<Plan> {
    let module = program.module();
    let matrix = RowShape::Matrix;
    let row = |kind: RowStepKind, shape: RowShape| Some(row_plan(program, op, operands, result, kind, shape));
    match &module.ops[op].kind {
        OpKind::Unary(kind @ UnaryKind::Neg) => row(RowStepKind::Unary(*kind), matrix),
        OpKind::Binary(kind @ BinaryKind::Add) => row(RowStepKind::Binary(*kind), matrix),
        OpKind::Constant(_) => Some(Plan::Constant(ConstantPlan { op, result })),
        OpKind::Reduce { kind: kind @ ReduceKind::Sum, axes, .. } if axes[..] == [0] => {
            let (rows, columns) = module.ty(operands[0]).shape.split_first().unwrap();
            let one = || Dim::fixed(1);
            Some(Plan::Column(ColumnPlan {
                op,
                program: ColumnProgram { kind: *kind, element: ElementType::F32 },
                operand: operands[0],
                result,
                extents: [one(), one(), one(), rows.clone(), dim_product(columns).unwrap()],
                constraints: Vec::new(),
            }))
        }
        OpKind::Reduce { kind: kind @ (ReduceKind::Sum | ReduceKind::Mean), .. } => {
            row(RowStepKind::Reduce(*kind), RowShape::Column)
        }
        OpKind::Reshape => Some(Plan::View(ViewPlan { op, operand: operands[0], result })),
        OpKind::Choose { .. } => ChoosePlan::of(program, op).map(Plan::Choose),
        OpKind::Gather { axis: 0 } => {
            let [x, indices] = [operands[0], operands[1]].map(|value| &module.ty(value).shape);
            let bytes = dim_product([&x[1..], &[Dim::fixed(4)]].concat().iter()).unwrap();
            Some(Plan::Move(MovePlan {
                op,
                program: MoveProgram::Gather,
                operands: operands.to_vec(),
                results: vec![result],
                extents: vec![Dim::fixed(1), x[0].clone(), bytes, dim_product(indices).unwrap()],
                constraints: Vec::new(),
            }))
        }
        OpKind::Mma => {
            let [a, b] = [operands[0], operands[1]].map(|value| &module.ty(value).shape);
            let rank = a.len();
            Some(Plan::Mma(MmaPlan {
                op,
                a: operands[0],
                b: operands[1],
                d: result,
                elements: [operands[0], operands[1], result].map(|value| module.ty(value).element),
                batch: dim_product(&a[..rank - 2]).unwrap(),
                m: a[rank - 2].clone(),
                n: b[b.len() - 2].clone(),
                k: a[rank - 1].clone(),
                b_batched: b.len() == rank,
                constraints: Vec::new(),
            }))
        }
        _ => None,
    }
}

fn row_plan(
    program: &Program,
    op: Op,
    operands: &[Value],
    result: Value,
    kind: RowStepKind,
    shape: RowShape,
) -> Plan {
    let (k, rows) = program.module().ty(operands[0]).shape.split_last().unwrap();
    let operand = RowOperand { shape: RowShape::Matrix, element: ElementType::F32, repeats: false };
    let step = RowStep {
        kind,
        operands: (0..operands.len()).map(RowRef::Operand).collect(),
        element: ElementType::F32,
        shape,
    };
    Plan::Row(RowPlan {
        ops: vec![op],
        batch: Dim::fixed(1),
        m: dim_product(rows).unwrap(),
        k: k.clone(),
        program: RowProgram {
            operands: vec![operand; operands.len()],
            steps: vec![step],
            outputs: vec![RowOutput { of: RowRef::Step(0), kind: RowOutputKind::Value }],
        },
        operands: operands.iter().map(|value| RowInput { value: *value, repeat: None }).collect(),
        written: vec![result],
        constraints: Vec::new(),
    })
}

/// The inputs and outputs of a program on a device.
pub struct OnDevice<'a> {
    pub fixture: &'a Fixture,
    pub device: &'a Device,
    pub buffers: HashMap<Value, Buffer>,
}

impl<'a> OnDevice<'a> {
    pub fn new(fixture: &'a Fixture, device: &'a Device) -> OnDevice<'a> {
        let module = fixture.program.module();
        let mut buffers = HashMap::new();
        for &input in &module.inputs {
            let bytes = fixture.tensors[module.name_of(input)].bytes();
            let buffer = device.alloc(bytes.len()).unwrap();
            device.stream().upload(&buffer, 0, bytes).unwrap();
            buffers.insert(input, buffer);
        }
        for &output in &module.outputs {
            let buffer = device.alloc(fixture.expected(module.name_of(output)).bytes().len()).unwrap();
            buffers.insert(output, buffer);
        }
        let placed = OnDevice { fixture, device, buffers };
        placed.poison();
        placed
    }

    pub fn poison(&self) {
        for output in &self.fixture.program.module().outputs {
            let buffer = &self.buffers[output];
            self.device.stream().fill(buffer, 0, buffer.len(), 0xFF).unwrap();
        }
        self.device.stream().synchronize().unwrap();
    }

    pub fn addresses(&self) -> HashMap<Value, u64> {
        self.buffers.iter().map(|(value, buffer)| (*value, buffer.address())).collect()
    }

    pub fn preparation(&self) -> Result<Preparation<'_>, Refused> {
        let Fixture { program, partition, .. } = self.fixture;
        let machine = Machine::new(self.device, &self.fixture.kernels);
        Ok(Preparation::of_program(program, partition, &self.fixture.symbols(), &machine)?
            .bind_all(self.addresses()))
    }

    pub fn prepare(&self) -> Result<PreparedProgram, Refused> {
        // SAFETY: the addresses are those of buffers that outlive the result.
        unsafe { self.preparation()?.build() }
    }

    /// Checks every output.
    #[track_caller]
    pub fn check(&self, when: &str) {
        let module = self.fixture.program.module();
        for output in &module.outputs {
            let name = module.name_of(*output);
            let mut found = vec![0; self.buffers[output].len()];
            self.device.stream().download(&self.buffers[output], 0, &mut found).unwrap();
            assert!(found == self.fixture.expected(name).bytes(), "%{name} {when}");
        }
    }

    /// Launches, captures and replays, checks every output each time, and changes the addresses.
    pub fn check_launches(&self, prepared: &mut PreparedProgram) {
        let stream = self.device.new_stream().unwrap();
        self.poison();
        // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        self.check("launched");
        self.poison();
        // SAFETY: as above.
        let graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        self.check("as a graph");
        let other = OnDevice::new(self.fixture, self.device);
        // SAFETY: as above.
        unsafe { prepared.update_addresses(&other.addresses()) }.unwrap();
        // SAFETY: as above.
        unsafe { prepared.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        other.check("at other addresses");
        // SAFETY: as above.
        unsafe { prepared.update_addresses(&self.addresses()) }.unwrap();
    }
}
