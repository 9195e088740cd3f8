//! The template against its context, and the inputs that determine a source.

use std::collections::BTreeSet;

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{
    BinaryKind, BlockFormat, ElementType, OperandShape, Predicate, ReduceKind, ScaleRounding, UnaryKind,
};
use fourfold_scheduler::EpilogueRef::{self, Accumulator};

use super::*;
use crate::cutlass::configuration::Configuration;
use crate::cutlass::{CutlassVersion, defaults};
use crate::epilogue::{Epilogue, Operand, Output, OutputKind, Step, StepKind};
use crate::extents::Extents;
use crate::hopper as tiles;
use crate::source::{ABI, MAX_OPERANDS, SOURCE};
use crate::{
    BINARY_FUNCTIONS, Groups, UNARY_FUNCTIONS, capabilities, device_functions, emulate, select, specify,
};

/// The variables that a kernel's template uses, including those of its base templates.
fn template_variables(design: &Design) -> BTreeSet<String> {
    let own = match design {
        Design::Cutlass(configuration) => cutlass::template(configuration),
        Design::Hopper(_) => hopper::TEMPLATE,
    };
    let environment = kernel_environment(own);
    let of =
        |name| environment.get_template(name).expect("the environment has it").undeclared_variables(false);
    // Kernels without a product state these.
    let optional = ["empty", "own_extents", "takes_null"];
    // The template of groups extends the other, and includes two.
    const OF_GROUPS: [&str; 3] =
        ["cutlass/kernel.cu.j2", "cutlass/group_nodes.cu.j2", "cutlass/group_kernel.cu.j2"];
    let is_grouped = matches!(design, Design::Cutlass(it) if it.groups.is_some());
    let others = OF_GROUPS.into_iter().filter(|_| is_grouped);
    let all = [SOURCE, ABI, KERNEL].into_iter().chain(others).flat_map(of);
    all.filter(|variable| !optional.contains(&variable.as_str())).collect()
}

fn spec(target: &str, steps: Vec<Step>, c: Option<ElementType>) -> ScaledMmaSpec {
    spec_of(BlockFormat::NVFP4, target, steps, c)
}

fn spec_of(format: BlockFormat, target: &str, steps: Vec<Step>, c: Option<ElementType>) -> ScaledMmaSpec {
    let target = crate::target(target).expect("a known target");
    let family = defaults::family(target.name).expect("a Blackwell");
    let (operands, outputs) = (Vec::new(), Vec::new());
    let accumulator = ElementType::BF16;
    let mut epilogue =
        Epilogue { pair: false, alpha: true, c, beta: c.is_some(), accumulator, steps, operands, outputs };
    epilogue.outputs = vec![Output { of: epilogue.last(), kind: OutputKind::Value }];
    let configuration = select::cutlass::defaults(family, format, CutlassVersion::PINNED)[0]
        .with_elements(epilogue.source(), epilogue.destination())
        .into();
    ScaledMmaSpec { target, configuration, epilogue }
}

/// The same epilogue, for groups of rows with an alpha each.
fn of_groups(mut spec: ScaledMmaSpec) -> ScaledMmaSpec {
    let family = defaults::family(spec.target.name).expect("a Blackwell");
    let format = spec.configuration.block_format().expect("a format of programs");
    let (configuration, _) = select::cutlass::choose_of_groups(
        family,
        format,
        Groups { has_alphas: true, masked: false, blocked: false },
    )
    .expect("a kernel");
    let (c, d) = (spec.epilogue.source(), spec.epilogue.destination());
    spec.configuration = configuration.with_elements(c, d).into();
    spec
}

/// The CUTLASS configuration of a specification.
fn collectives(spec: &ScaledMmaSpec) -> &Configuration {
    spec.configuration.cutlass().expect("a Blackwell")
}

/// The specification with these outputs instead of D.
fn writing(mut spec: ScaledMmaSpec, outputs: &[(EpilogueRef, OutputKind)]) -> ScaledMmaSpec {
    spec.epilogue.outputs = outputs.iter().map(|(of, kind)| Output { of: *of, kind: *kind }).collect();
    let epilogue = &spec.epilogue;
    spec.configuration = collectives(&spec)
        .with_elements(epilogue.source(), epilogue.destination())
        .for_blocks(epilogue.longest_block())
        .into();
    spec
}

/// The same specification for sm_90a, for any M.
fn on_hopper(spec: ScaledMmaSpec) -> ScaledMmaSpec {
    let format = spec.configuration.block_format().expect("a format");
    let unknown = Extents { l: None, m: None, n: None, k: None };
    let (configuration, _) =
        select::hopper::choose(format, unknown, spec.epilogue.only_values()).expect("a format of the target");
    let target = crate::target(tiles::TARGET).expect("a known target");
    ScaledMmaSpec { target, configuration: configuration.into(), ..spec }
}

const NVFP4: OutputKind = OutputKind::Quantized {
    global: Some(0),
    element: ElementType::F4E2M1FN,
    block: 16,
    scale_rounding: None,
    formula: Nvfp4Formula::DEFAULT,
};

fn mx(element: ElementType, scale_rounding: ScaleRounding) -> OutputKind {
    let (scale_rounding, formula) = (Some(scale_rounding), Nvfp4Formula::DEFAULT);
    OutputKind::Quantized { global: None, element, block: 32, scale_rounding, formula }
}

fn reduced(kind: ReduceKind, shape: OperandShape) -> OutputKind {
    OutputKind::Reduced { kind, shape }
}

/// A specification with all kinds of outputs, of the accumulator and of three steps.
fn many() -> ScaledMmaSpec {
    let gelu = step(StepKind::Unary(UnaryKind::Gelu), &[Accumulator], ElementType::F32);
    let narrow = step(StepKind::Convert, &[EpilogueRef::Step(0)], ElementType::F16);
    let fp8 = step(StepKind::Convert, &[EpilogueRef::Step(0)], ElementType::F8E4M3FN);
    let mut spec = spec("sm_120a", vec![gelu, narrow, fp8], None);
    spec.epilogue.operands = vec![Operand { shape: OperandShape::Scalar, element: ElementType::F32 }];
    let steps = [0, 1, 2].map(EpilogueRef::Step);
    writing(
        spec,
        &[
            (steps[0], reduced(ReduceKind::Max, OperandShape::Column)),
            (steps[2], OutputKind::Value),
            (steps[1], NVFP4),
            (steps[1], OutputKind::Value),
            (Accumulator, mx(ElementType::F8E5M2, ScaleRounding::Floor)),
        ],
    )
}

fn step(kind: StepKind, operands: &[EpilogueRef], element: ElementType) -> Step {
    Step { kind, operands: operands.to_vec(), element }
}

fn activation(kind: UnaryKind) -> Step {
    step(StepKind::Unary(kind), &[Accumulator], ElementType::F32)
}

/// A specification with these epilogue operands and no C.
fn reading(target: &str, operands: &[(OperandShape, ElementType)]) -> ScaledMmaSpec {
    let add = |index: usize| {
        let value = index.checked_sub(1).map_or(Accumulator, EpilogueRef::Step);
        let operands = [value, EpilogueRef::Operand(index)];
        step(StepKind::Binary(BinaryKind::Add), &operands, ElementType::F32)
    };
    let mut spec = spec(target, (0..operands.len()).map(add).collect(), None);
    spec.epilogue.operands =
        operands.iter().map(|(shape, element)| Operand { shape: *shape, element: *element }).collect();
    spec
}

#[test]
fn the_template_has_exactly_the_variables_of_its_context() {
    let cutlass = spec("sm_100a", vec![activation(UnaryKind::Gelu)], None);
    for spec in [on_hopper(cutlass.clone()), of_groups(cutlass.clone()), cutlass] {
        let context = serde_json::to_value(context(&spec)).expect("the context is an object");
        let fields: BTreeSet<String> = context.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(template_variables(&spec.configuration), fields);
    }
}

#[test]
fn every_activation_is_defined_once_with_what_it_calls() {
    for kind in UNARY_FUNCTIONS {
        let again = step(StepKind::Unary(kind), &[EpilogueRef::Step(0)], ElementType::F32);
        let source = emit(&spec("sm_120a", vec![activation(kind), again], None)).text;
        let definition = format!("float fn_{}(float x) {{", kind.name());
        assert_eq!(source.matches(&definition).count(), 1, "{kind}");
        for call in [format!("float const s0 = fn_{kind}(v);"), format!("float const s1 = fn_{kind}(s0);")] {
            assert_eq!(source.matches(&call).count(), 1, "{call}");
        }
        for helper in ["exp_negative", "logistic_product"] {
            let defined = source.matches(&format!("float {helper}(")).count();
            let mentioned = source.matches(&format!("{helper}(")).count();
            assert_eq!(defined, usize::from(0 < mentioned), "{helper} of {kind}");
        }
    }
}

#[test]
fn exactly_the_functions_of_the_capabilities_have_device_code() {
    for kind in UnaryKind::ALL {
        assert_eq!(UNARY_FUNCTIONS.contains(kind), !device_functions(&[*kind]).is_empty(), "{kind}");
    }
    for kind in BinaryKind::ALL {
        let sum = step(StepKind::Binary(*kind), &[Accumulator, Accumulator], ElementType::F32);
        let source = emit(&spec("sm_120a", vec![sum], None)).text;
        assert_eq!(BINARY_FUNCTIONS.contains(kind), !source.contains("unsupported("), "{kind}");
    }
}

/// The lines between the accumulator and the result.
fn body(spec: &ScaledMmaSpec) -> Vec<String> {
    let text = emit(spec).text;
    let lines = text.lines().map(str::trim).skip_while(|line| *line != "float v = acc[i];").skip(1);
    lines.take_while(|line| *line != "}").map(str::to_owned).collect()
}

#[test]
fn each_narrowing_that_a_program_states_is_in_the_source() {
    let function = |kind, of, element| step(StepKind::Unary(kind), &[of], element);
    let exp = function(UnaryKind::Exp, Accumulator, ElementType::BF16);
    let convert = step(StepKind::Convert, &[EpilogueRef::Step(0)], ElementType::F16);
    let sqrt = function(UnaryKind::Sqrt, EpilogueRef::Step(1), ElementType::F16);
    let expected = [
        "v = __fmul_rn(alpha[i], v);",
        "v = round_bf16(v);",
        "float const s0 = round_bf16(fn_exp(v));",
        "float const s1 = round_f16(s0);",
        "float const s2 = fn_sqrt(s1);",
        "result[i] = s2;",
    ];
    let spec = spec("sm_100a", vec![exp, convert, sqrt], None);
    assert_eq!(body(&spec), expected, "the last rounding is the conversion to D");
    let text = emit(&spec).text;
    for element in ["bf16", "f16"] {
        assert_eq!(text.matches(&format!("float round_{element}(float x)")).count(), 1);
    }
}

#[test]
fn what_changes_no_digit_is_not_rounded_again() {
    let kinds = [
        StepKind::Unary(UnaryKind::Neg),
        StepKind::Unary(UnaryKind::Abs),
        StepKind::Unary(UnaryKind::Relu),
        StepKind::Clamp { lower: 0, upper: 1f32.to_bits() },
    ];
    let mut steps: Vec<Step> =
        kinds.iter().map(|kind| step(*kind, &[Accumulator], ElementType::BF16)).collect();
    let branches = [EpilogueRef::Step(0), EpilogueRef::Step(1)];
    steps.push(step(StepKind::Binary(BinaryKind::Max), &branches, ElementType::BF16));
    steps.push(step(StepKind::Binary(BinaryKind::Min), &branches, ElementType::BF16));
    steps.push(step(StepKind::Compare(Predicate::Le), &branches, ElementType::I1));
    let chosen = [EpilogueRef::Step(6), EpilogueRef::Step(4), EpilogueRef::Step(5)];
    steps.push(step(StepKind::Select, &chosen, ElementType::BF16));
    steps.push(step(StepKind::Unary(UnaryKind::Neg), &[EpilogueRef::Step(7)], ElementType::BF16));
    let expected = [
        "v = __fmul_rn(alpha[i], v);",
        "v = round_bf16(v);",
        "float const s0 = fn_neg(v);",
        "float const s1 = fn_abs(v);",
        "float const s2 = fn_relu(v);",
        "float const s3 = op_min(op_max(v, __uint_as_float(0x00000000u)), __uint_as_float(0x3f800000u));",
        "float const s4 = op_max(s0, s1);",
        "float const s5 = op_min(s0, s1);",
        "bool const s6 = s0 <= s1;",
        "float const s7 = s6 ? s4 : s5;",
        "float const s8 = fn_neg(s7);",
        "result[i] = s8;",
    ];
    assert_eq!(body(&spec("sm_120a", steps, None)), expected);
}

#[test]
fn operands_are_read_by_the_node_of_their_shape() {
    use ElementType::{BF16, F16, F32};
    use OperandShape::{Column, Matrix, Row, Scalar};
    let operands = [(Matrix, BF16), (Scalar, F16), (Row, F32), (Column, BF16), (Matrix, F32)];
    let spec = reading("sm_100a", &operands);
    assert_eq!(spec.signature(), "nvfp4 alpha matrix=bf16 scalar=f16 row=f32 column=bf16 matrix=f32 d=f32");
    let text = emit(&spec).text;
    for (part, count) in [
        ("Sm90SrcFetch<ElementC>", 1),
        ("using ElementC = cutlass::bfloat16_t;", 1),
        ("static_cast<ElementC const *>(p.operands[0])", 1),
        ("Sm90ScalarBroadcast<cutlass::half_t>", 1),
        ("Sm90RowBroadcast<0, CtaTileShape, float, float>", 1),
        ("Sm90ColBroadcast<0, CtaTileShape, cutlass::bfloat16_t, float, ColumnStride, 1>", 1),
        ("Sm90AuxLoad<0, void, float, RowMajor, void, void>", 1),
        ("addresses.operand_count, kOperands, 9, \"operands\"", 1),
        ("{\"x1\", 2}", 1),
        ("{\"x3\", 16}", 1),
        ("problem.n % 8 != 0", 1),
    ] {
        assert_eq!(text.matches(part).count(), count, "{part}");
    }
    let mut with_c = reading("sm_100a", &operands);
    with_c.epilogue.c = Some(F32);
    let text = emit(&with_c).text;
    assert_eq!(text.matches("Sm90AuxLoad<").count(), 2, "C is the source");
    assert!(text.contains("static_cast<ElementC const *>(p.c)"));
}

#[test]
fn the_interface_has_room_for_as_many_operands_as_a_kernel_may_have() {
    for name in ["sm_100a", "sm_120a", "sm_90a"] {
        for format in capabilities(name).expect("a target").formats {
            let most: usize = format.epilogue.operands.iter().map(|operand| operand.most).sum();
            // A, B, their scales and C precede the epilogue's operands.
            assert!(most + 5 <= MAX_OPERANDS, "{name}: {most}");
        }
    }
}

#[test]
fn what_is_only_written_is_rounded_where_it_is_written() {
    let expected = [
        "v = __fmul_rn(alpha[i], v);",
        "v = round_bf16(v);",
        "float const s0 = fn_gelu(v);",
        // The quantization of its value includes the rounding.
        "float const s1 = round_f16(s0);",
        "float const s2 = s0;",
        "result[0][i] = s0;",
        "result[1][i] = s2;",
        "result[2][i] = s1;",
        "result[3][i] = v;",
    ];
    assert_eq!(body(&many()), expected);
    // Fake quantization: a value rounded to 8 bits and used as a number.
    let fp8 = step(StepKind::Convert, &[Accumulator], ElementType::F8E5M2);
    let back = step(StepKind::Convert, &[EpilogueRef::Step(0)], ElementType::BF16);
    let fake = spec("sm_100a", vec![fp8, back], None);
    assert_eq!(body(&fake)[2..4], ["float const s0 = round_f8E5M2(v);", "float const s1 = s0;"]);
    assert!(emit(&fake).text.contains("static_cast<float>(cutlass::float_e5m2_t(x))"));
}

#[test]
fn every_output_has_its_node_its_pointers_and_its_bytes() {
    let spec = many();
    let signature = "nvfp4 alpha scalar=f32 max=column@s0 d=f8E4M3FN q=f4E2M1FN:f8E4M3FN/16*x0@s1 d=f16@s1 \
                     q=f8E5M2:f8E8M0FNU/32:floor@acc";
    assert_eq!(spec.signature(), signature);
    let text = emit(&spec).text;
    for part in [
        "using ElementD = cutlass::float_e4m3_t;",
        "constexpr int kResults = 4, kResultOfD = 1;",
        "ReducedOutput<0, Max, Left::kColumn>{static_cast<float *>(p.outputs[0])}",
        "static_cast<ElementD *>(p.outputs[1])",
        "QuantizedOutput<2, Nvfp4>{static_cast<uint8_t *>(p.outputs[2]), static_cast<uint8_t *>(p.outputs[3]), \
         static_cast<float const *>(p.operands[0])}",
        "ValueOutput<2, cutlass::half_t>{static_cast<cutlass::half_t *>(p.outputs[4])}",
        "QuantizedOutput<3, Mx<E5m2, false>>{static_cast<uint8_t *>(p.outputs[5]), \
         static_cast<uint8_t *>(p.outputs[6]), nullptr}",
        "addresses.output_count, kOutputs, 7, \"outputs\"",
        "bytes[0] = l * m * 4;",
        "bytes[1] = l * m * n * 1;",
        "bytes[2] = l * m * n / 2;",
        "bytes[3] = l * scale_bytes(m, n / 16);",
        "bytes[4] = l * m * n * 2;",
        "bytes[6] = l * scale_bytes(m, n / 32);",
        "cudaMemsetAsync(outputs[0], 0xFF, bytes[0], stream)",
        "cudaMemsetAsync(outputs[3], 0x00, bytes[3], stream)",
        "problem.n / 32 % 4 != 0)",
        "if (std::strcmp(role, \"y3\") == 0) {\n    return scale_at(problem->m, problem->n / 16, batch, row, block);",
        "if (std::strcmp(role, \"y6\") == 0) {\n    return scale_at(problem->m, problem->n / 32, batch, row, block);",
        "if (problem.n % 32 != 0)",
        "{\"y0\", 4}",
        "{\"y6\", 16}",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part}");
    }
    // Only the quantization reads the per-tensor scale.
    assert!(!text.contains("Sm90ScalarBroadcast<float>, {}, {static_cast<float const *>(p.operands[0])"));
    assert_eq!(text.matches("Sm90ScalarBroadcast<float>").count(), 1, "alpha");
}

#[test]
fn on_hopper_every_output_is_written_by_us_and_every_operand_read() {
    use ElementType::{BF16, F16, F32};
    use OperandShape::{Column, Matrix, Row, Scalar};
    let spec = on_hopper(many());
    assert_eq!(spec.signature(), many().signature());
    assert!(spec.name().starts_with("nvfp4_scaled_mm_sm90_x1_2_8_16_64x256_128x256_"), "{}", spec.name());
    let source = emit(&spec);
    assert_eq!((source.opcode, source.architecture, source.prelude), ("HGMMA", "90a", None));
    assert_eq!(emulate(&source), None);
    for part in [
        "using Outputs = cute::tuple<ReducedOutput<0, Max, Left::kColumn>, ValueOutput<1, cutlass::float_e4m3_t>, \
         QuantizedOutput<2, Nvfp4>, ValueOutput<2, cutlass::half_t>, QuantizedOutput<3, Mx<E5m2, false>>>;",
        "ValueOutput<1, cutlass::float_e4m3_t>{static_cast<cutlass::float_e4m3_t *>(p.outputs[1])}",
        "constexpr int kResults = 4;",
        "constexpr bool kSimple = false;",
        "constexpr bool kMx = false;",
        "if (problem.n % 32 != 0)",
        "cudaMemsetAsync(outputs[0], 0xFF, bytes[0], stream)",
        "return scale_at(role[2] == 'a' ? problem->m : problem->n, problem->k / 16, batch, row, block);",
        "if (std::strcmp(role, \"y6\") == 0) {\n    return scale_at(problem->m, problem->n / 32, batch, row, block);",
        tiles::KERNEL,
        tiles::HEAD,
    ] {
        assert_eq!(source.text.matches(part).count(), 1, "{part}");
    }
    // The source is built without CUTLASS and includes none of its headers.
    for absent in ["GemmKernel", "\"cutlass/", "\"cute/", "<cute/", "struct Subtile", "Writer", "kResultOfD"]
    {
        assert!(!source.text.replace(tiles::KERNEL, "").contains(absent), "{absent}");
    }

    let operands = [(Matrix, BF16), (Scalar, F16), (Row, F32), (Column, BF16), (Matrix, F32)];
    let mut spec = reading("sm_100a", &operands);
    (spec.epilogue.c, spec.epilogue.beta) = (Some(F16), true);
    let text = emit(&on_hopper(spec)).text;
    for part in [
        "(acc, read_scalar<N>(arguments.alpha), read_matrix<N>(arguments.c, here), read_scalar<N>(arguments.beta), \
         read_matrix<N>(arguments.x0, here), read_scalar<N>(arguments.x1), read_row<N>(arguments.x2, here), \
         read_column<N>(arguments.x3, here), read_matrix<N>(arguments.x4, here))",
        "{ p.alpha, static_cast<cutlass::half_t const *>(p.c), p.beta, static_cast<cutlass::bfloat16_t const *>(p.operands[0]), ",
        "  cutlass::bfloat16_t const *x3;",
        "result[0][i] = s4;",
        "constexpr bool kSimple = true;",
        "using Outputs = cute::tuple<ValueOutput<0, float>>;",
        // The multiple of N that C, the matrix operand and D require.
        "if (problem.n % 8 != 0)",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part}");
    }
    assert!(!text.contains("kSubtileRows") && !text.contains("struct Nvfp4"), "only what is used");
}

/// The source holds a copy of the table, with tiles by position.
#[test]
fn a_source_has_the_lines_of_the_table_that_its_tiles_are_for() {
    let all = on_hopper(spec_of(BlockFormat::MXFP4, "sm_100a", Vec::new(), None));
    let Design::Hopper(configuration) = &all.configuration else { panic!("it is for Hopper") };
    for held in configuration
        .variants
        .clone()
        .into_iter()
        .map(|tile| vec![tile])
        .chain([configuration.variants.clone()])
    {
        let configuration = tiles::Configuration { variants: held, ..configuration.clone() };
        let variants = &configuration.variants;
        let source = emit(&ScaledMmaSpec { configuration: configuration.clone().into(), ..all.clone() });
        let text = &source.text;
        let held: Vec<_> = configuration.choices().collect();
        for choice in select::hopper::choices(BlockFormat::MXFP4) {
            let at = held.iter().find(|(of, _)| *of == choice).map(|(_, at)| *at);
            // A tile outside the source is replaced by its wide tile, if the source has that.
            let like_it = |tile: &tiles::Tile| [choice.tile, choice.tile.wide()].contains(tile);
            assert_eq!(at.is_some(), variants.iter().any(like_it), "{choice:?}");
            let tiles::Choice { max_m, max_n, max_k, cluster, .. } = choice;
            let line = |at: usize| format!("    {{ {max_m}, {max_n}, {max_k}, {at}, {cluster} }},\n");
            match at {
                Some(at) => assert_eq!(text.matches(&line(at)).count(), 1, "{choice:?}"),
                None => assert!(!text.contains(&line(0)), "{choice:?}"),
            }
        }
        for tiles::Tile { m, n } in variants {
            let instance = format!(
                "template __global__ void kernel<{m}, {n}, sizeof(Parameters), Variant<{m}, {n}>::kShared>("
            );
            assert_eq!(text.matches(&instance).count(), 1, "{m}");
        }
        assert_eq!(text.matches("template __global__ void kernel<").count(), variants.len());
        let largest = variants.last().expect("a tile");
        assert_eq!(source.opcode == "HGMMA", !largest.is_small_m(), "{variants:?}");
        assert_eq!(source.opcode == "QGMMA", largest.uses_e4m3(), "{variants:?}");
        let tile = [largest.m, largest.n, tiles::TILE_K].map(|extent| extent.to_string());
        assert!(text.contains(&format!("\\\"tile\\\":[{}]", tile.join(","))), "{variants:?}");
        assert!(text.contains("constexpr bool kMx = true;") && text.contains("problem->k / 32, batch"));
    }
}

/// Constants that the device code repeats.
#[test]
fn the_table_and_the_kernels_agree_about_tiles() {
    for constant in [
        format!("constexpr int kSmallM = kGrouped ? 0 : {};", tiles::SMALL_M),
        format!("constexpr int kMaxGroups = {};", crate::targets::MAX_GROUPS),
        format!("constexpr int kBlockK = {},", tiles::TILE_K),
    ] {
        assert_eq!(tiles::KERNEL.matches(&constant).count(), 1, "{constant}");
    }
    for tile in tiles::TILES {
        let text = if tile.is_small_m() { "struct SmallM {" } else { "struct Tiled {" };
        let of_the_kind = tiles::KERNEL.split_once(text).expect("it is in the kernel").1;
        let most = of_the_kind.split_once("kMaxCluster = ").expect("it has a bound").1;
        let (bound, known) = if tile.is_small_m() {
            ("8;", 8)
        } else {
            // With N = 64 two phases share K.
            ("kGrouped ? 1 : 4 / kPhases;", if tile.n == 64 { 2 } else { 4 })
        };
        assert!(most.starts_with(bound) && tile.max_cluster() == known, "{tile}");
    }
}

#[test]
fn a_source_of_one_tile_says_how_many_blocks_share_it() {
    let all = on_hopper(spec("sm_100a", Vec::new(), None));
    let source = |tile, cluster| {
        let configuration = tiles::Configuration::forced(BlockFormat::NVFP4, tile, cluster).expect("a tile");
        emit(&ScaledMmaSpec { configuration: configuration.into(), ..all.clone() })
    };
    for tile in tiles::TILES.into_iter().filter(|tile| tile.max_cluster() > 1) {
        let (free, two) = (source(tile, 0), source(tile, 2));
        assert_ne!(free.hash, two.hash);
        let max_m = if tile.is_small_m() { tile.m } else { tiles::ANY };
        let line = format!("    {{ {max_m}, {any}, {any}, 0, 2 }},\n", any = tiles::ANY);
        assert_eq!(two.text.matches(&line).count(), 1, "{tile}");
        assert!(two.kernel.contains("_c2_"), "{}", two.kernel);
    }
}

#[test]
fn a_kernel_without_d_stores_nothing_as_d() {
    let gelu = step(StepKind::Unary(UnaryKind::Gelu), &[Accumulator], ElementType::F32);
    let mut with_c = spec("sm_100a", vec![gelu], Some(ElementType::F32));
    with_c.epilogue.operands = vec![Operand { shape: OperandShape::Scalar, element: ElementType::F32 }];
    let spec = writing(with_c, &[(EpilogueRef::Step(0), reduced(ReduceKind::Amax, OperandShape::Scalar))]);
    assert_eq!(spec.signature(), "nvfp4 alpha c=f32 beta scalar=f32 amax=scalar");
    let text = emit(&spec).text;
    assert!(
        text.contains("struct CollectiveEpilogue : BuiltEpilogue {") && text.contains("kResultOfD = -1;")
    );
    assert!(text.contains("using ElementD = cutlass::float_e4m3_t;") && text.contains("bytes[0] = 4;"));
    assert_eq!(text.matches("problem.n % 4 != 0").count(), 1, "what C asks of N");
    assert!(!text.contains("pointers.n") && !text.contains("struct Nvfp4"), "only what is used");
    let plain = emit(&reading("sm_100a", &[])).text;
    for part in ["BuiltEpilogue", "Writer", "cudaMemsetAsync", "Subtile", "kResults"] {
        assert!(!plain.contains(part), "{part}");
    }
}

#[test]
fn a_thread_of_sm100_has_whole_blocks() {
    let tile = |target: &str, element: ElementType, kind: OutputKind| {
        let spec = spec(target, Vec::new(), Some(element));
        collectives(&writing(spec, &[(Accumulator, kind)])).epilogue.tile
    };
    let long = mx(ElementType::F8E4M3FN, ScaleRounding::Ceil);
    assert_eq!(tile("sm_100a", ElementType::BF16, long), None, "the builder's own tile has 32 columns");
    assert_eq!(tile("sm_100a", ElementType::F32, long), Some([128, 32]));
    assert_eq!(tile("sm_100a", ElementType::F32, NVFP4), None);
    assert_eq!(tile("sm_120a", ElementType::F32, long), None, "its warps tell each other");
}

#[test]
fn names_stay_short_however_many_steps_there_are() {
    let steps = (0..32).map(|_| activation(UnaryKind::GeluTanh)).collect();
    let spec = spec("sm_100a", steps, None);
    assert!(spec.name().len() < 160, "{}", spec.name());
    assert!(spec.name().ends_with("_gelu_tanh_26more_f32"), "{}", spec.name());
}

#[test]
fn equal_specifications_give_equal_bytes_and_different_ones_different_hashes() {
    let steps = || vec![activation(UnaryKind::Silu)];
    let one = emit(&spec("sm_100a", steps(), None));
    assert_eq!(one, emit(&spec("sm_100a", steps(), None)));
    let others = [
        spec("sm_103a", steps(), None),
        spec("sm_100a", steps(), Some(ElementType::F16)),
        spec("sm_120a", steps(), None),
        spec_of(BlockFormat::MXFP4, "sm_100a", steps(), None),
    ];
    for other in others {
        assert_ne!(one.hash, emit(&other).hash);
    }
}

/// The format occurs in the name, the header, the signature, the operand type and the scale type. It also
/// occurs in the bound on scale bytes, the offset of a scale, and a schedule that names it. Nowhere else.
#[test]
fn nothing_but_the_format_differs_between_formats() {
    for target in ["sm_100a", "sm_121a"] {
        let source = |format| emit(&spec_of(format, target, vec![activation(UnaryKind::Gelu)], None));
        let (nv, mx) = (source(BlockFormat::NVFP4), source(BlockFormat::MXFP4));
        assert!(nv.kernel.starts_with("nvfp4_scaled_mm_") && mx.kernel.starts_with("mxfp4_scaled_mm_"));
        let translated = nv
            .text
            .replace(&nv.hash, &mx.hash)
            .replace("nvfp4_scaled_mm", "mxfp4_scaled_mm")
            .replace("\"signature\\\":\\\"nvfp4 ", "\"signature\\\":\\\"mxfp4 ")
            .replace("sfa\\\",\\\"element\\\":\\\"f8E4M3FN", "sfa\\\",\\\"element\\\":\\\"f8E8M0FNU")
            .replace("sfb\\\",\\\"element\\\":\\\"f8E4M3FN", "sfb\\\",\\\"element\\\":\\\"f8E8M0FNU")
            .replace("ue4m3, one per 16 elements", "ue8m0, one per 32 elements")
            .replace("nv_float4_t", "mx_float4_t")
            .replace("Nvf4Sm100", "Mxf4Sm100")
            .replace("float_ue4m3_t", "float_ue8m0_t")
            .replace("(problem.k + 63) / 64", "(problem.k + 127) / 128")
            .replace("static_cast<int>(block) * 16", "static_cast<int>(block) * 32");
        assert_eq!(translated, mx.text);
        assert!(!mx.text.contains("ue4m3") && !mx.text.contains("nv_float4"));
    }
}

#[test]
fn names_of_a_program_never_reach_the_source() {
    let program = "fir 1
func @secret.function(
    %secret.a: tensor<[M.secret, 64], f4E2M1FN>, %secret.sa: tensor<[M.secret, 4], f8E4M3FN, blocked>,
    %secret.b: tensor<[24, 64], f4E2M1FN>, %secret.sb: tensor<[24, 4], f8E4M3FN, blocked>, %secret.bias: tensor<[24], f16>
) {
  %secret.d = scaled_mma %secret.a, %secret.sa, %secret.b, %secret.sb {block = 16} : tensor<[M.secret, 24], f32>
  %secret.y = add %secret.d, %secret.bias : tensor<[M.secret, 24], f32>
  return %secret.y
}
";
    let (program, _) = fourfold_ir::load(program).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    for name in ["sm_100a", "sm_121a", "sm_90a"] {
        let capabilities = capabilities(name).expect("a known target");
        let partition = fourfold_scheduler::partition(&program, &capabilities);
        let (_, plan) = partition.plans().next().expect("one kernel");
        let target = crate::target(name).expect("a known target");
        let (spec, _) =
            specify(&program, plan, target, CutlassVersion::PINNED, None).expect("it has kernels");
        let source = spec.emit();
        assert!(!source.text.contains("secret") && !source.kernel.contains("secret"));
        let row = Operand { shape: OperandShape::Row, element: ElementType::F16 };
        assert_eq!(spec.scaled_mma().expect("it multiplies").epilogue.operands, [row]);
    }
}

#[test]
fn a_kernel_says_what_it_reads_and_writes() {
    let mut full = reading("sm_120a", &[(OperandShape::Row, ElementType::F16)]);
    (full.epilogue.c, full.epilogue.beta) = (Some(ElementType::BF16), true);
    assert_eq!(full.signature(), "nvfp4 alpha c=bf16 beta row=f16 d=f32");
    let mut bare = spec_of(BlockFormat::MXFP4, "sm_100a", Vec::new(), None);
    bare.epilogue.alpha = false;
    assert_eq!(bare.signature(), "mxfp4 d=bf16");
    for spec in [full, bare, many()] {
        let text = emit(&spec).text;
        assert_eq!(text.matches(&format!("\\\"signature\\\":\\\"{}\\\"", spec.signature())).count(), 1);
    }
}

#[test]
fn a_kernel_knows_whether_it_is_emulated() {
    let source = emit(&spec("sm_120a", Vec::new(), None));
    assert_eq!(source.text.matches("#ifdef FOURFOLD_EMULATED\n").count(), 1);
    let prelude = emulate(&source).and_then(|source| source.prelude).expect("the family can be emulated");
    assert!(prelude.contains("\n#define FOURFOLD_EMULATED"));
}
