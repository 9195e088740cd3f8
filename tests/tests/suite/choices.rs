//! Programs that choose between two products of one weight: the bits of the separate programs, for every M at the edges,
//! and the report of a choice.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold::executor::{RunOptions, Session};
use fourfold::ir::sample::{Recipe, Rule, inputs};
use fourfold::ir::{Program, Tensor};
use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
use fourfold_cli::replay::explain;
use fourfold_tests::repository;
use proptest::prelude::*;

/// A product with its bias: of x as it is, or of quantized x.
fn arm(quantized: bool, name: &str, [n, k]: [u64; 2], element: &str) -> String {
    let rows = format!("tensor<[M, {n}], ");
    let product = if quantized {
        let blocks = k / 16;
        format!(
            "  %codes, %sfx = block_quantize %x, %g {{block = 16}} : tensor<[M, {k}], f4E2M1FN>, \
             tensor<[M, {blocks}], f8E4M3FN, blocked>\n  %alpha = mul %g, %gw : tensor<[], f32>\n  \
             %{name}.p = scaled_mma %codes, %sfx, %w, %sfw, alpha = %alpha {{block = 16}} : {rows}f32>\n"
        )
    } else {
        format!("  %{name}.p = scaled_mma %x, %w, %sfw, alpha = %gw {{block = 16}} : {rows}f32>\n")
    };
    format!(
        "{product}  %{name}.b = add %{name}.p, %bias : {rows}f32>\n  %{name} = convert %{name}.b : {rows}{element}>\n"
    )
}

fn program(body: &str, [n, k]: [u64; 2], element: &str, y: &str) -> Program {
    let blocks = k / 16;
    let text = format!(
        "fir 1\nfunc @linear(%x: tensor<[M, {k}], {element}>, param %g: tensor<[], f32>, \
         param %w: tensor<[{n}, {k}], f4E2M1FN>, param %sfw: tensor<[{n}, {blocks}], f8E4M3FN, blocked>, \
         param %gw: tensor<[], f32>, param %bias: tensor<[{n}], f32>) {{\n{body}  return %{y}\n}}\n"
    );
    fourfold::ir::load(&text).unwrap_or_else(|errors| panic!("{text}\n{errors:?}")).0
}

fn tensors(program: &Program, m: u64, seed: u64) -> HashMap<String, Tensor> {
    let symbols = vec![("M".to_owned(), m)];
    inputs(program, &Recipe { rule: Rule::Normal, seed, symbols }).expect("the inputs fit")
}

fn backend(target: &str) -> Backend {
    Backend::new(&Options::default().target(target).device(DeviceChoice::None)).expect("a target")
}

fn run(backend: &Backend, program: &Program, tensors: &HashMap<String, Tensor>) -> Tensor {
    let compiled = backend.compile(backend.plan(program.clone()), &CompileOptions::default(), &|_| ());
    let run = compiled.run(tensors, &RunOptions::default()).expect("the program runs");
    run.value(program.module().outputs[0]).expect("an output").clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_m_has_the_bits_of_the_program_that_it_chooses(
        n in (1..6u64).prop_map(|n| n * 8),
        k in (1..9u64).prop_map(|k| k * 32),
        first in 0..40u64,
        more in prop::option::of(1..40u64),
        quantized_first in any::<bool>(),
        element in prop::sample::select(vec!["bf16", "f16"]),
        target in prop::sample::select(vec!["sm_90a", "sm_120a", "cpu"]),
        seed in any::<u32>(),
    ) {
        let size = [n, k];
        let [dense, quantized] = [false, true].map(|quantized| arm(quantized, if quantized { "q" } else { "d" }, size, element));
        let separate = [program(&dense, size, element, "d"), program(&quantized, size, element, "q")];
        let order = if quantized_first { ["%q", "%d"] } else { ["%d", "%q"] };
        let ends: Vec<u64> = [Some(first), more.map(|more| first + more)].into_iter().flatten().collect();
        let operands: Vec<&str> = (0..=ends.len()).map(|at| order[at % 2]).collect();
        let choose = format!(
            "  %y = choose {} {{axis = 0, ends = {ends:?}}} : tensor<[M, {n}], {element}>\n",
            operands.join(", ")
        );
        let both = program(&format!("{dense}{quantized}{choose}"), size, element, "y");
        let backend = backend(target);
        let planned = backend.plan(both.clone());
        backend.check(&planned).expect("the plan is valid");
        let params = tensors(&both, 1, u64::from(seed));
        let partition = Arc::new(planned.partition().clone());
        let normalized = Arc::new(planned.program().clone());
        let mut session = Session::new(normalized, partition, params.clone(), None).expect("a session");
        let mut edges: Vec<u64> = ends.iter().flat_map(|end| [end.saturating_sub(1), *end, end + 1]).collect();
        edges.push(0);
        for m in edges {
            let position = ends.iter().filter(|end| **end < m).count();
            let chosen = usize::from(operands[position] == "%q");
            let mut tensors = tensors(&both, m, u64::from(seed));
            tensors.extend(params.iter().filter(|(name, _)| *name != "x").map(|(name, it)| (name.clone(), it.clone())));
            let want = run(&backend, &separate[chosen], &tensors);
            prop_assert_eq!(&run(&backend, &both, &tensors), &want, "M = {} of {:?}", m, ends);
            let call = session.run(&[(&tensors["x"]).into()], &[]).expect("the call runs");
            prop_assert_eq!(call.outputs[0].as_ref(), Some(&want));
            // The forms differ, so a wrong choice would show.
            let other = run(&backend, &separate[1 - chosen], &tensors);
            prop_assert!(m * k < 512 || want != other);
        }
    }
}

#[test]
fn a_report_lists_choices_and_what_is_recommended() {
    let file = repository().join("fixtures/choice/one_weight.fir");
    let of = |target| {
        explain(&file, &fourfold_tests::options(target)).unwrap_or_else(|error| panic!("{}", error.render()))
    };
    let report = of("sm_90a");
    let choice = &report.choices[0];
    let arms: Vec<_> =
        choice.arms.iter().map(|arm| (arm.up_to, arm.value.as_str(), arm.activations)).collect();
    assert_eq!(arms, [(Some(64), "%few.y", Some("W4A16")), (None, "%many.y", Some("W4A4"))]);
    let text = report.to_string();
    for line in [
        "\nchoices:\n  %y\n    M <= 64: %few.y (W4A16)\n    any greater M: %many.y (W4A4)\n",
        "    recommended on sm_90a, any M: W4A16, because a kernel that only quantizes A takes",
        "choice: M <= 64 takes %few.y, a greater one %many.y",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // The weight-only product becomes one of the dequantized weight.
    let recommended = &of("sm_120a").choices[0].recommended;
    assert_eq!(recommended.iter().map(|it| (it.up_to, it.activations)).collect::<Vec<_>>(), [(None, "W4A4")]);
    assert!(recommended[0].why.contains("no kernel of the target"));
    // A quantization in the kernel of a norm is free.
    let source = std::fs::read_to_string(&file).expect("a fixture");
    let source = source.replace(
        "%codes, %sfx = block_quantize %x,",
        "%z = mul %x, %x : tensor<[M, 352], bf16>\n  %codes, %sfx = block_quantize %z,",
    );
    let (program, _) = fourfold::ir::load(&source).expect("a valid program");
    let recommended = backend("sm_90a").plan(program).choices().remove(0).recommended;
    let found: Vec<_> = recommended.iter().map(|it| (it.up_to, it.activations.name())).collect();
    assert_eq!(found, [(Some(128), "W4A4"), (None, "W4A16")]);
}

#[test]
fn nothing_is_recommended_for_an_extent_that_is_not_m() {
    let text = "fir 1
func @f(%a: tensor<[B, M, 64], f4E2M1FN>, %sa: tensor<[B, M, 4], f8E4M3FN, blocked>, %x: tensor<[B, M, 64], bf16>,
    param %b: tensor<[32, 64], f4E2M1FN>, param %sb: tensor<[32, 4], f8E4M3FN, blocked>) {
  %many = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[B, M, 32], bf16>
  %few = scaled_mma %x, %b, %sb {block = 16} : tensor<[B, M, 32], bf16>
  %y = choose %few, %many {axis = AXIS, ends = [7]} : tensor<[B, M, 32], bf16>
  return %y
}
";
    let recommended = |axis: &str, batch: &str| {
        let text = text.replace("AXIS", axis).replace("[B,", &format!("[{batch},"));
        let (program, _) = fourfold::ir::load(&text).expect("a valid program");
        backend("sm_90a").plan(program).choices().remove(0).recommended.len()
    };
    // The batch, the columns, and rows of each of several matrices.
    assert_eq!([recommended("0", "B"), recommended("2", "B"), recommended("1", "B")], [0; 3]);
    assert!(recommended("1", "1") > 0, "the rows of one matrix");
}
