//! The programs whose epilogues are built for every family, and the features they cover.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::{
    BINARY_FUNCTIONS, Epilogue, KernelSpec, OutputKind, ScaledMmaSpec, StepKind, UNARY_FUNCTIONS,
};
use fourfold::ir::{ElementType, OperandShape, ReduceKind};
use fourfold::kernels::planned_kernels;
use fourfold::{Backend, Claim};

/// One target per family; its members differ only in the tag and the tile.
pub const DAG_TARGETS: [&str; 3] = ["sm_100a", "sm_120a", "sm_90a"];

/// Returns the kernels of the programs by the program's name. The name of a second kernel ends in its number.
///
/// # Errors
/// Fails if a program is invalid or has no kernel.
pub fn kernels(target: &str) -> Result<BTreeMap<String, ScaledMmaSpec>> {
    // Every output is part of a kernel's epilogue, also where a device segment would be faster.
    let backend = Backend::new(&crate::options(target).claim(Claim::KernelsOnly))?;
    let mut kernels = BTreeMap::new();
    for file in crate::fixtures()? {
        let name = file.file_stem().context("a fixture has a name")?.to_string_lossy().into_owned();
        if !name.starts_with("dag_") && name != "activations" {
            continue;
        }
        let source = std::fs::read_to_string(&file)?;
        let (program, _) = fourfold::ir::load(&source)
            .map_err(|errors| anyhow::anyhow!("{}: {}", file.display(), errors[0].message))?;
        let planned = planned_kernels(&backend.plan(program), CutlassVersion::PINNED, false);
        ensure!(!planned.is_empty(), "{} has no kernel", file.display());
        for (index, kernel) in planned.into_iter().enumerate() {
            let name = if index == 0 { name.clone() } else { format!("{name}.{index}") };
            if let KernelSpec::ScaledMma(spec) = kernel.spec {
                kernels.insert(name, spec);
            }
        }
    }
    Ok(kernels)
}

/// A feature of epilogues and its test.
pub struct Feature {
    /// The name.
    pub name: String,
    /// Returns true if an epilogue has it.
    pub holds: Box<dyn Fn(&Epilogue) -> bool>,
}

/// A test of an output, given its kind and the element type of its source.
type IsOutput = dyn Fn(&OutputKind, ElementType) -> bool;

/// Every feature of epilogues, as `docs/reference/epilogues.md` lists them.
pub fn features() -> Vec<Feature> {
    let feature =
        |name: &str, holds: Box<dyn Fn(&Epilogue) -> bool>| Feature { name: name.to_owned(), holds };
    let reads = |name: &str, shape: OperandShape| {
        let holds = move |it: &Epilogue| it.operands.iter().any(|operand| operand.shape == shape);
        feature(name, Box::new(holds))
    };
    let steps = |name: &str, is: fn(&StepKind) -> bool| {
        feature(name, Box::new(move |it: &Epilogue| it.steps.iter().any(|step| is(&step.kind))))
    };
    let writes = |name: &str, is: Box<IsOutput>| {
        let holds =
            move |it: &Epilogue| it.outputs.iter().any(|output| is(&output.kind, it.element(output.of)));
        feature(name, Box::new(holds))
    };
    let mut features = vec![
        feature("alpha", Box::new(|it| it.alpha)),
        feature("C, an added matrix", Box::new(|it| it.c.is_some())),
        feature("beta", Box::new(|it| it.beta)),
        reads("device scalar", OperandShape::Scalar),
        reads("row, `[N]` or `[1, N]`", OperandShape::Row),
        reads("column, `[M, 1]`", OperandShape::Column),
        reads("one more matrix operand", OperandShape::Matrix),
        feature(
            "several matrix operands",
            Box::new(|it| {
                let matrices = it.operands.iter().filter(|operand| operand.shape == OperandShape::Matrix);
                usize::from(it.c.is_some()) + matrices.count() > 1
            }),
        ),
        steps("constant", |kind| matches!(kind, StepKind::Constant(_))),
        steps("convert, keeping every narrowing", |kind| *kind == StepKind::Convert),
        steps("clamp", |kind| matches!(kind, StepKind::Clamp { .. })),
        steps("compare and select", |kind| *kind == StepKind::Select),
        feature("a value used twice is computed once", Box::new(uses_a_step_twice)),
    ];
    features.extend(BINARY_FUNCTIONS.into_iter().map(|kind| {
        let has = move |it: &Epilogue| it.steps.iter().any(|step| step.kind == StepKind::Binary(kind));
        feature(kind.name(), Box::new(has))
    }));
    features.extend(UNARY_FUNCTIONS.into_iter().map(|kind| {
        let has = move |it: &Epilogue| it.steps.iter().any(|step| step.kind == StepKind::Unary(kind));
        feature(kind.name(), Box::new(has))
    }));
    for element in
        [ElementType::F16, ElementType::BF16, ElementType::F32, ElementType::F8E4M3FN, ElementType::F8E5M2]
    {
        let is = move |kind: &OutputKind, of: ElementType| *kind == OutputKind::Value && of == element;
        features.push(writes(&format!("{element} output"), Box::new(is)));
    }
    let values =
        |it: &Epilogue| it.outputs.iter().filter(|output| output.kind == OutputKind::Value).count() > 1;
    features.push(feature("several outputs", Box::new(values)));
    for (name, codes, block) in [
        ("NVFP4 output with its scales", ElementType::F4E2M1FN, 16),
        ("MXFP4 output with its scales", ElementType::F4E2M1FN, 32),
        ("MXFP8 (e4m3) output with its scales", ElementType::F8E4M3FN, 32),
        ("MXFP8 (e5m2) output with its scales", ElementType::F8E5M2, 32),
    ] {
        let is = move |kind: &OutputKind, _: ElementType| matches!(kind, OutputKind::Quantized { element, block: of, .. } if (*element, *of) == (codes, block));
        features.push(writes(name, Box::new(is)));
    }
    for reduction in [ReduceKind::Amax, ReduceKind::Max] {
        for left in [OperandShape::Scalar, OperandShape::Row, OperandShape::Column] {
            let is = move |kind: &OutputKind, _: ElementType| {
                *kind == OutputKind::Reduced { kind: reduction, shape: left }
            };
            features.push(writes(&format!("{} to a {left}", reduction.name()), Box::new(is)));
        }
    }
    features
}

fn uses_a_step_twice(epilogue: &Epilogue) -> bool {
    use fourfold::scheduler::EpilogueRef::Step;
    (0..epilogue.steps.len()).any(|made| {
        let uses = epilogue.steps.iter().flat_map(|step| &step.operands);
        uses.filter(|operand| **operand == Step(made)).count() > 1
    })
}
