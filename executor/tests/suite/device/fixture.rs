//! Programs with their partitions, inputs and kernels.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_executor::device::Device;
use fourfold_executor::{Machine, Run, RunError, RunOptions, SegmentKernel, Session, SessionError, run};
use fourfold_ir::bind::bind;
use fourfold_ir::sample::{Recipe, Rule, inputs};
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Dim, ElementType, Op, OperandShape, Program, ScaleLayout,
    ScaledMmaOptions, SymbolValues, Tensor, TensorType, UnaryKind, Value, verify,
};
use fourfold_scheduler::{
    Constraint, Decision, EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, KernelOutput, OutputKind,
    Partition, Plan, ScaledMmaPlan, Segment, SegmentKind,
};

use super::interface::Interface;

pub const N: u64 = 40;

/// Makes the stand-in kernel run on the second device only.
pub const EMULATED: [&str; 2] = ["EMULATED", "TARGET=\"sm_120a\""];

pub struct Fixture {
    pub program: Program,
    pub partition: Partition,
    pub tensors: HashMap<String, Tensor>,
    pub kernels: HashMap<usize, SegmentKernel>,
}

/// The ops between the two kernels of [`layers`].
#[derive(Clone, Copy, PartialEq)]
pub enum Between {
    Nothing,
    AnOpOfTheHost,
}

/// r = relu(alpha · x·w1 + bias); y = x·w2 + beta · c, where c is r or -r. K is the extent of both sums.
pub fn layers(m: usize, k: u64, between: Between) -> Fixture {
    let mut builder = Builder::new("layers");
    let rows = builder.symbol("M");
    let n = Dim::fixed(N);
    let codes = |rows: &Dim| TensorType::new(vec![rows.clone(), Dim::fixed(k)], ElementType::F4E2M1FN);
    let scales = |rows: &Dim| {
        let shape = vec![rows.clone(), Dim::fixed(k / 16)];
        TensorType::scales(shape, ElementType::F8E4M3FN, ScaleLayout::Blocked)
    };
    let scalar = TensorType::new(Vec::new(), ElementType::F32);
    let x = builder.input("x", codes(&rows));
    let sx = builder.input("sx", scales(&rows));
    let [w1, w2] = ["w1", "w2"].map(|name| builder.param(name, codes(&n)));
    let [sw1, sw2] = ["sw1", "sw2"].map(|name| builder.param(name, scales(&n)));
    let bias = builder.param("bias", TensorType::new(vec![n.clone()], ElementType::F32));
    let [alpha, beta] = ["alpha", "beta"].map(|name| builder.param(name, scalar.clone()));

    let first = ScaledMmaOptions { alpha: Some(alpha), ..ScaledMmaOptions::default() };
    let product = builder.scaled_mma("product", x, sx, w1, sw1, 16, ElementType::F32, first);
    let biased = builder.binary("biased", BinaryKind::Add, product, bias);
    let r = builder.unary("r", UnaryKind::Relu, biased);
    let host = between == Between::AnOpOfTheHost;
    let c = if host { builder.unary("c", UnaryKind::Neg, r) } else { r };
    let second = ScaledMmaOptions { c: Some(c), beta: Some(beta), alpha: None };
    let y = builder.scaled_mma("y", x, sx, w2, sw2, 16, ElementType::F32, second);
    let program = verify(builder.finish(&[y])).unwrap();

    let ops: Vec<Op> = program.module().ops.keys().collect();
    let plan = |root: Op, b: Value, sfb: Value, output: Value| ScaledMmaPlan {
        root,
        format: BlockFormat::NVFP4,
        batch: Dim::fixed(1),
        m: rows.clone(),
        n: n.clone(),
        k: Dim::fixed(k),
        b_batched: false,
        groups: None,
        a: x,
        sfa: Some(sx),
        linear_sfa: false,
        b,
        sfb,
        alpha: None,
        c: None,
        beta: None,
        accumulator: ElementType::F32,
        pair: None,
        epilogue: Vec::new(),
        operands: Vec::new(),
        outputs: vec![KernelOutput {
            of: EpilogueRef::Accumulator,
            kind: OutputKind::Value { value: output },
        }],
        proof: Vec::new(),
        constraints: [x, sx, b, sfb, output]
            .into_iter()
            .map(|value| Constraint::PointerAlignment { value, bytes: 16 })
            .chain([Constraint::AtMost { name: "M", dim: rows.clone(), limit: 1000 }])
            .collect(),
    };
    let step = |op: Op, kind: EpilogueKind, operands: &[EpilogueRef]| EpilogueStep {
        op,
        kind,
        operands: operands.to_vec(),
        element: ElementType::F32,
    };
    let row = EpilogueOperand { value: bias, shape: OperandShape::Row, element: ElementType::F32 };
    let epilogue = vec![
        step(
            ops[1],
            EpilogueKind::Binary(BinaryKind::Add),
            &[EpilogueRef::Accumulator, EpilogueRef::Operand(0)],
        ),
        step(ops[2], EpilogueKind::Unary(UnaryKind::Relu), &[EpilogueRef::Step(0)]),
    ];
    let outputs = vec![KernelOutput { of: EpilogueRef::Step(1), kind: OutputKind::Value { value: r } }];
    let first = ScaledMmaPlan {
        alpha: Some(alpha),
        epilogue,
        operands: vec![row],
        outputs,
        ..plan(ops[0], w1, sw1, r)
    };
    let last = ops[ops.len() - 1];
    let second = ScaledMmaPlan { c: Some(c), beta: Some(beta), ..plan(last, w2, sw2, y) };
    let segment = |ops: &[Op], inputs: &[Value], output: Value, kind: SegmentKind| {
        let mut inputs = inputs.to_vec();
        inputs.sort_unstable();
        Segment { ops: ops.to_vec(), inputs, outputs: vec![output], kind }
    };
    let as_kernel = |plan: ScaledMmaPlan| SegmentKind::Kernel(Box::new(plan.into()));
    let mut segments = vec![segment(&ops[..3], &[x, sx, w1, sw1, alpha, bias], r, as_kernel(first))];
    if host {
        segments.push(segment(&ops[3..4], &[r], c, SegmentKind::Fallback));
    }
    segments.push(segment(&[last], &[x, sx, w2, sw2, c, beta], y, as_kernel(second)));
    let last_segment = segments.len() - 1;
    let decisions = (0..ops.len())
        .map(|op| Decision { segment: if op < 3 { 0 } else { op - 2 }, rejection: None })
        .collect();
    let partition = Partition { target: "sm_100a".to_owned(), segments, decisions };
    let fixture = Fixture { tensors: sampled(&program, m), program, partition, kernels: HashMap::new() };
    assert_eq!(fixture.interface(0).signature, "nvfp4 alpha row=f32 d=f32");
    assert_eq!(fixture.interface(last_segment).signature, "nvfp4 c=f32 beta d=f32");
    fixture.with_kernel(0, &["RELU"]).with_kernel(last_segment, &["WORKSPACE=300"])
}

/// y = x·w, where x has `l` matrices of `m` rows and there is one w, so that the batch is flattened; for the second
/// device, emulated.
pub fn flattened(l: u64, m: u64) -> Fixture {
    let (k, n) = (Dim::fixed(64), Dim::fixed(N));
    let mut builder = Builder::new("flattened");
    let batch = builder.symbol("M");
    let rows = Dim::fixed(m);
    let codes = |shape: &[&Dim]| {
        let shape = shape.iter().copied().chain([&k]).cloned().collect();
        TensorType::new(shape, ElementType::F4E2M1FN)
    };
    let scales = |shape: &[&Dim]| {
        let shape = shape.iter().copied().chain([&Dim::fixed(4)]).cloned().collect();
        TensorType::scales(shape, ElementType::F8E4M3FN, ScaleLayout::Blocked)
    };
    let x = builder.input("x", codes(&[&batch, &rows]));
    let sx = builder.input("sx", scales(&[&batch, &rows]));
    let w = builder.param("w", codes(&[&n]));
    let sw = builder.param("sw", scales(&[&n]));
    let y = builder.scaled_mma("y", x, sx, w, sw, 16, ElementType::F32, ScaledMmaOptions::default());
    let program = verify(builder.finish(&[y])).unwrap();
    let ops: Vec<Op> = program.module().ops.keys().collect();
    let plan = ScaledMmaPlan {
        root: ops[0],
        format: BlockFormat::NVFP4,
        batch,
        m: rows,
        n,
        k,
        b_batched: false,
        groups: None,
        a: x,
        sfa: Some(sx),
        linear_sfa: false,
        b: w,
        sfb: sw,
        alpha: None,
        c: None,
        beta: None,
        accumulator: ElementType::F32,
        pair: None,
        epilogue: Vec::new(),
        operands: Vec::new(),
        outputs: vec![KernelOutput { of: EpilogueRef::Accumulator, kind: OutputKind::Value { value: y } }],
        proof: Vec::new(),
        constraints: Vec::new(),
    };
    let segment = Segment {
        ops,
        inputs: vec![x, sx, w, sw],
        outputs: vec![y],
        kind: SegmentKind::Kernel(Box::new(plan.into())),
    };
    let partition = Partition {
        target: "sm_100a".to_owned(),
        segments: vec![segment],
        decisions: vec![Decision { segment: 0, rejection: None }],
    };
    let tensors = sampled(&program, l as usize);
    let fixture = Fixture { tensors, program, partition, kernels: HashMap::new() };
    assert_eq!(fixture.interface(0).signature, "nvfp4 d=f32");
    fixture.with_kernel(0, &EMULATED)
}

fn sampled(program: &Program, m: usize) -> HashMap<String, Tensor> {
    inputs(program, &Recipe { rule: Rule::Exact, seed: 7, symbols: vec![("M".to_owned(), m as u64)] })
        .unwrap()
}

impl Fixture {
    /// A session with these params, on a device if there is one.
    pub fn session_with(
        &self,
        params: HashMap<String, Tensor>,
        device: Option<&Device>,
    ) -> Result<Session, SessionError> {
        let (program, partition) = (Arc::new(self.program.clone()), Arc::new(self.partition.clone()));
        let machine = device.map(|device| (device.clone(), Arc::new(self.kernels.clone())));
        Session::new(program, partition, params, machine)
    }

    pub fn value(&self, name: &str) -> Value {
        self.program.facts().value_named(name).unwrap()
    }

    pub fn symbols(&self) -> SymbolValues {
        bind(&self.program, &self.tensors).unwrap().symbols
    }

    pub fn run(&self, device: Option<&Device>, options: &RunOptions) -> Result<Run, RunError> {
        let bound = bind(&self.program, &self.tensors).unwrap();
        let machine = device.map(|device| Machine::new(device, &self.kernels));
        run(&self.program, &self.partition, &bound, options, machine.as_ref())
    }

    /// The value as the fallback computes it.
    pub fn expected(&self, name: &str) -> Tensor {
        let run = self.run(None, &RunOptions::default().keep_all(true)).unwrap();
        run.value(self.value(name)).unwrap().clone()
    }

    pub fn plan(&mut self, segment: usize) -> &mut ScaledMmaPlan {
        match &mut self.partition.segments[segment].kind {
            SegmentKind::Kernel(plan) => match &mut **plan {
                Plan::ScaledMma(plan) => plan,
                _ => panic!("segment {segment} multiplies nothing"),
            },
            SegmentKind::Fallback => panic!("segment {segment} is no kernel"),
        }
    }

    /// The interface of a segment's planned kernel.
    pub fn interface(&self, segment: usize) -> Interface {
        Interface::of(&self.program, self.partition.segments[segment].plan().unwrap())
    }

    /// Gives a segment another kernel of its signature.
    pub fn with_kernel(self, segment: usize, defines: &[&str]) -> Fixture {
        let interface = self.interface(segment);
        self.with_interface(segment, &interface, defines)
    }

    /// Gives a segment a kernel of this interface, right or wrong.
    pub fn with_interface(mut self, segment: usize, interface: &Interface, defines: &[&str]) -> Fixture {
        self.kernels.insert(segment, SegmentKernel::Ready(interface.kernel(defines)));
        self
    }
}

/// The way in which each segment ran, with the reason code if its kernel did not run.
pub fn story(run: &Run) -> Vec<(&'static str, Option<&'static str>)> {
    run.segments.iter().map(|ran| (ran.ran.as_str(), ran.reason.as_ref().map(|reason| reason.code))).collect()
}
