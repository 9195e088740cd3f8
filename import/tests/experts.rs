//! Imports mixtures of experts, and compares them with their published formulas.

#[path = "support/mixture.rs"]
mod mixture;
#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use std::path::Path;

use fourfold::{Backend, DeviceChoice, Options};
use fourfold_import::{Import, ImportOptions, ImportedProgram, LeftOutCode, ProgramKind, import, write};
use fourfold_ir::{ElementType, Entity, OpKind, Program, Tensor, bind, interpret};
use serde_json::{Value, json};

use mixture::{Architecture, Entry, Format, Mixture, Random, write_model};
use support::{Inputs, Result, error_of_rows, fixtures, read_program};

fn options(output: ElementType) -> ImportOptions {
    ImportOptions { output_type: Some(output), ..ImportOptions::default() }
}

fn mixtures(imported: &Import) -> Vec<&ImportedProgram> {
    imported.programs.iter().filter(|program| program.kind == ProgramKind::Moe).collect()
}

/// The rows of x, which have few bits.
fn rows(count: usize, hidden: usize) -> Vec<f64> {
    let mut random = Random(count as u64);
    (0..count * hidden).map(|_| f64::from(random.number())).collect()
}

/// The only mixture of a model, with its tensors.
fn program_of(model: &Path, output: &Path, name: &str, m: usize) -> Result<(Program, Inputs)> {
    let imported = import(model, &options(ElementType::F32))?;
    let found = mixtures(&imported);
    assert_eq!(
        found.iter().map(|program| &*program.name).collect::<Vec<_>>(),
        [name],
        "{:?}",
        imported.left_out
    );
    let written = write(&imported, output)?;
    let file = written.into_iter().find(|program| program.name == name).ok_or("it is not written")?.file;
    read_program(&file, m)
}

fn y_of(program: &Program, inputs: &mut Inputs, x: &[f64], m: usize) -> Result<Vec<f64>> {
    let module = program.module();
    let ty = module.ty(module.inputs[0]);
    let x = Tensor::from_f64(ty.element, vec![m, x.len() / m], None, x)?;
    inputs.insert("x".to_owned(), x);
    let values = interpret(program, &bind::bind(program, inputs)?)?;
    Ok(values[module.outputs[0].index()].to_f64())
}

fn check(mixture: &Mixture, shards: usize) -> Result<Program> {
    let folder = tempfile::tempdir()?;
    mixture.write(folder.path(), shards)?;
    let mut found = None;
    for m in [1, 7, 33] {
        let output = folder.path().join(format!("programs{m}"));
        let (program, mut inputs) = program_of(folder.path(), &output, mixture.path(), m)?;
        let x = rows(m, mixture.hidden);
        let y = y_of(&program, &mut inputs, &x, m)?;
        let expected: Vec<f64> = x.chunks(mixture.hidden).flat_map(|row| mixture.expected(row)).collect();
        let error = error_of_rows(&y, &expected, mixture.hidden, &vec![true; m]);
        println!("{:?} {:?} M={m}: {error:e}", mixture.architecture, mixture.format);
        assert!(error < 2e-6, "{:?} {:?} M={m}: {error:e}", mixture.architecture, mixture.format);
        assert!(expected.iter().any(|value| value.abs() > 0.1), "the formula gives numbers");
        found = Some(program);
    }
    Ok(found.ok_or("no program")?)
}

fn products(program: &Program) -> usize {
    let ops = program.module().ops.values();
    ops.filter(|operation| matches!(operation.kind, OpKind::GroupedScaledMma(_))).count()
}

#[test]
fn experts_stored_one_by_one_have_the_published_result() -> Result<()> {
    for (format, architecture, shards) in [
        (Format::ModelOpt, Architecture::Mixtral, 3),
        (Format::ModelOptWeights, Architecture::Mixtral, 1),
        (Format::CompressedTensors, Architecture::Mixtral, 2),
        (Format::ModelOpt, Architecture::Qwen3(true), 1),
        (Format::CompressedTensors, Architecture::Qwen3(false), 1),
        (Format::ModelOptWeights, Architecture::Qwen3(true), 2),
    ] {
        let mixture = Mixture::new(format, architecture, (6, 2), (80, 48), 7);
        assert_eq!(products(&check(&mixture, shards)?), 3);
    }
    let mixture = Mixture::new(Format::ModelOpt, Architecture::Qwen3(true), (19, 8), (48, 32), 3);
    check(&mixture, 1)?;
    let mixture = Mixture::new(Format::ModelOptMx, Architecture::Mixtral, (9, 3), (96, 32), 5);
    assert_eq!(products(&check(&mixture, 2)?), 3);
    let mixture = Mixture::new(Format::ModelOpt, Architecture::Mixtral, (1, 1), (32, 48), 4);
    check(&mixture, 1)?;
    Ok(())
}

#[test]
fn one_scale_of_x_for_all_experts_makes_one_quantization() -> Result<()> {
    let count = |program: &Program| {
        let ops = program.module().ops.values();
        ops.filter(|operation| matches!(operation.kind, OpKind::BlockQuantize { .. })).count()
    };
    for format in [Format::ModelOpt, Format::CompressedTensors] {
        let mut mixture = Mixture::new(format, Architecture::Qwen3(true), (5, 2), (64, 32), 11);
        assert_eq!(count(&check(&mixture, 1)?), 0, "each expert has scales of its own");
        mixture.share_input_scales();
        assert_eq!(count(&check(&mixture, 1)?), 2);
    }
    Ok(())
}

#[test]
fn gate_and_up_with_the_same_scales_are_one_kernel() -> Result<()> {
    let pairs = |program: Program| -> Result<usize> {
        let options = Options::default().target("sm_90a").device(DeviceChoice::None);
        let planned = Backend::new(&options)?.plan(program);
        Ok(planned.partition().kernels().filter(|(_, plan)| plan.pair.is_some()).count())
    };
    for format in [Format::ModelOpt, Format::ModelOptWeights, Format::CompressedTensors] {
        let mut mixture = Mixture::new(format, Architecture::Qwen3(true), (5, 2), (64, 96), 12);
        // Calibration of experts one by one gives rows without quantization in one op.
        mixture.share_input_scales();
        let apart = import_for_kernels(&mixture)?;
        assert_eq!((products(&apart), pairs(apart)?), (3, 0), "{format:?}: each has scales of its own");
        mixture.share_global_scales();
        check(&mixture, 1)?;
        let shared = import_for_kernels(&mixture)?;
        assert_eq!((products(&shared), pairs(shared)?), (3, 1), "{format:?}");
    }
    Ok(())
}

/// The program of a mixture with bf16 activations, which kernels take.
fn import_for_kernels(mixture: &Mixture) -> Result<Program> {
    let folder = tempfile::tempdir()?;
    mixture.write(folder.path(), 1)?;
    let options = ImportOptions {
        input_type: Some(ElementType::BF16),
        output_type: Some(ElementType::BF16),
        ..ImportOptions::default()
    };
    let imported = import(folder.path(), &options)?;
    let written = write(&imported, &folder.path().join("programs"))?;
    let name = mixture.path();
    let file = &written.iter().find(|program| program.name == name).ok_or("it is not written")?.file;
    Ok(read_program(file, 7)?.0)
}

#[test]
fn stacked_experts_of_gpt_oss_have_the_published_result() -> Result<()> {
    for (counts, extents, seed) in [((7, 4), (64, 96), 5), ((4, 1), (32, 64), 6), ((32, 4), (96, 32), 8)] {
        let mixture = Mixture::new(Format::GptOss, Architecture::GptOss, counts, extents, seed);
        let program = check(&mixture, 1)?;
        assert_eq!(products(&program), 2);
        // Whole tensors are read at once.
        assert_eq!(program.module().inputs.len(), 9);
    }
    Ok(())
}

/// Computes a mixture from the programs of its experts, which `checkpoints.rs` compares with the tools that wrote them.
fn from_experts(model: &Path, x: &[f64], hidden: usize) -> Result<Vec<f64>> {
    let name = "model.layers.0.mlp";
    let folder = tempfile::tempdir()?;
    let imported = import(model, &options(ElementType::F32))?;
    let written = write(&imported, folder.path())?;
    let of = |name: &str, x: &[f64]| -> Result<Vec<f64>> {
        let program = written.iter().find(|program| program.name == name).ok_or("no program")?;
        let (program, mut inputs) = read_program(&program.file, 1)?;
        y_of(&program, &mut inputs, x, 1)
    };
    let (_, inputs) = program_of(model, folder.path(), name, 1)?;
    let (router, bias) = (inputs["router"].to_f64(), inputs["router.bias"].to_f64());
    let mut y = Vec::new();
    for row in x.chunks(hidden) {
        let scores = router.chunks(hidden).zip(&bias);
        let scores: Vec<f64> = scores
            .map(|(weights, bias)| weights.iter().zip(row).map(|(w, x)| w * x).sum::<f64>() + bias)
            .collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
        let exp: Vec<f64> =
            order[..2].iter().map(|expert| (scores[*expert] - scores[order[0]]).exp()).collect();
        let mut sum = vec![0.0; hidden];
        for (expert, weight) in order[..2].iter().zip(&exp) {
            let both = of(&format!("{name}.experts.{expert}.gate_up_proj"), row)?;
            let gated: Vec<f64> = both
                .chunks(2)
                .map(|pair| {
                    let (gate, up) = (pair[0].min(7.0), pair[1].clamp(-7.0, 7.0));
                    gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
                })
                .collect();
            let out = of(&format!("{name}.experts.{expert}.down_proj"), &gated)?;
            sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += out * weight / (exp[0] + exp[1]));
        }
        y.extend(sum);
    }
    Ok(y)
}

#[test]
fn a_mixture_of_a_tool_equals_its_experts() -> Result<()> {
    for case in ["gptoss-mxfp4", "modelopt-nvfp4-gpt-oss"] {
        let (model, output, hidden) = (fixtures().join(case), tempfile::tempdir()?, 192);
        let x = rows(5, hidden);
        let (program, mut inputs) = program_of(&model, output.path(), "model.layers.0.mlp", 5)?;
        let y = y_of(&program, &mut inputs, &x, 5)?;
        // The last quantization reads bf16 there, and f32 here; a weight-only product rounds both to bf16.
        let tolerance = if case == "gptoss-mxfp4" { 2e-6 } else { 6e-2 };
        let error = error_of_rows(&y, &from_experts(&model, &x, hidden)?, hidden, &[true; 5]);
        assert!(error < tolerance, "{case}: {error:e}");
    }
    Ok(())
}

/// A change of the configuration and the tensors of a model.
type Change = dyn Fn(&mut Value, &mut Vec<Entry>);

/// The reason that a mixture with these changes has no program.
fn refusal(mixture: &Mixture, change: &Change, input: ElementType) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let (mut config, mut entries) = (mixture.config(), mixture.tensors());
    change(&mut config, &mut entries);
    write_model(folder.path(), &config, &entries, 1)?;
    let options = ImportOptions { input_type: Some(input), ..ImportOptions::default() };
    let imported = import(folder.path(), &options)?;
    assert!(mixtures(&imported).is_empty());
    let is_it = |name: &str| name == mixture.path();
    let left = imported.left_out.iter().find(|left| is_it(&left.name) && left.message.contains("mixture"));
    let left = left.ok_or_else(|| format!("nothing is said: {:?}", imported.left_out))?;
    assert_eq!(left.code, LeftOutCode::UnsupportedBlock);
    Ok(left.message.clone())
}

#[test]
fn a_mixture_without_a_program_names_what_it_lacks() -> Result<()> {
    let mixtral = Mixture::new(Format::ModelOpt, Architecture::Mixtral, (6, 2), (80, 48), 7);
    let without = |part: &'static str| {
        move |_: &mut Value, entries: &mut Vec<Entry>| {
            entries.retain(|(name, ..)| !name.contains(part));
        }
    };
    let set = |key: &'static str, value: Value| {
        move |config: &mut Value, _: &mut Vec<Entry>| {
            config[key] = value.clone();
        }
    };
    let replaced = |part: &'static str, dtype: &'static str, shape: Vec<usize>, size: usize| {
        move |_: &mut Value, entries: &mut Vec<Entry>| {
            for entry in entries.iter_mut().filter(|(name, ..)| name.ends_with(part)) {
                *entry = (entry.0.clone(), dtype, shape.clone(), vec![0x38; size]);
            }
        }
    };
    let cases: Vec<(Box<Change>, &str)> = vec![
        (
            Box::new(without("experts.5.")),
            "the setting `num_local_experts` is 6, but the tensors are of 5 experts",
        ),
        (Box::new(set("num_local_experts", json!(8))), "is 8, but the tensors are of 6 experts"),
        (Box::new(set("num_local_experts", Value::Null)), "no configuration states the number of experts"),
        (Box::new(without("experts.3.w3.")), "`experts.3.w3` is not imported"),
        (Box::new(without("experts.2.w1.weight_scale")), "`experts.2.w1` is not imported"),
        (Box::new(without("block_sparse_moe.gate.weight")), "it has no tensor `gate.weight`"),
        (
            Box::new(replaced("moe.gate.weight", "BF16", vec![5, 80], 800)),
            "`gate.weight` is BF16 [5, 80], expected",
        ),
        (
            Box::new(replaced("moe.gate.weight", "I32", vec![6, 80], 1920)),
            "`gate.weight` is I32 [6, 80], expected",
        ),
        (Box::new(set("num_local_experts", json!("6"))), "`num_local_experts` is \"6\", not a whole number"),
        (Box::new(set("num_experts", json!(5))), "`num_local_experts` is 6, but `num_experts` is 5"),
        (
            Box::new(set("num_experts_per_tok", json!(7))),
            "`num_experts_per_tok` is 7, not from 1 to the number of",
        ),
        (
            Box::new(set("num_experts_per_tok", json!(0))),
            "`num_experts_per_tok` is 0, not from 1 to the number of",
        ),
        (
            Box::new(set("num_experts_per_tok", json!(2.5))),
            "`num_experts_per_tok` is 2.5, not a whole number",
        ),
        (
            Box::new(set("num_experts_per_tok", Value::Null)),
            "no configuration states the experts of each row",
        ),
        (Box::new(set("hidden_size", json!(96))), "the setting `hidden_size` is 96, but the tensors have 80"),
        (Box::new(set("intermediate_size", json!(80))), "`intermediate_size` is 80, but the tensors have 48"),
        (
            Box::new(set("model_type", json!("qwen2_moe"))),
            "no mixture of experts is known for the architecture",
        ),
        (Box::new(set("hidden_act", json!("gelu_x"))), "`gelu_x`"),
        (Box::new(set("scoring_func", json!("sigmoid"))), "the setting `scoring_func` is \"sigmoid\""),
        (Box::new(set("routed_scaling_factor", json!(2.5))), "the setting `routed_scaling_factor` is 2.5"),
        (
            Box::new(|_, entries| {
                let tensor = "model.layers.3.block_sparse_moe.shared_expert.up_proj.weight";
                entries.push((tensor.to_owned(), "BF16", vec![16, 80], vec![0; 2560]));
            }),
            "the tensor `shared_expert.up_proj.weight` would not be used",
        ),
        (
            Box::new(|_, entries| {
                entries.retain(|(name, ..)| !name.contains("experts.4.w2.weight"));
                let of = |field: &str| format!("model.layers.3.block_sparse_moe.experts.4.w2.{field}");
                entries.push((of("weight"), "U8", vec![80, 32], vec![0; 2560]));
                entries.push((of("weight_scale"), "F8_E4M3", vec![80, 4], vec![0x38; 320]));
                entries.push((of("weight_scale_2"), "F32", vec![], 1f32.to_le_bytes().to_vec()));
            }),
            "`experts.4.w2` has another shape than `experts.0.w2`",
        ),
    ];
    for (change, part) in cases {
        let message = refusal(&mixtral, &*change, ElementType::BF16)?;
        assert!(
            message.starts_with("no mixture of experts is built: ") && message.contains(part),
            "{message}"
        );
    }
    let weights = Mixture::new(Format::ModelOptWeights, Architecture::Mixtral, (6, 2), (80, 48), 7);
    let message = refusal(&weights, &|_, _| {}, ElementType::F32)?;
    assert!(message.contains("import with `--input-type bf16`"), "{message}");
    Ok(())
}

#[test]
fn settings_and_tensors_of_gpt_oss_are_checked() -> Result<()> {
    let gpt_oss = Mixture::new(Format::GptOss, Architecture::GptOss, (4, 2), (64, 32), 7);
    let cases: [(&Change, &str); 6] = [
        (&|config, _| config["swiglu_alpha"] = json!(1.5), "`swiglu_alpha` is 1.5"),
        (&|config, _| config["swiglu_limit"] = json!("x"), "the setting `swiglu_limit` is \"x\""),
        (&|config, _| config["hidden_act"] = json!("gelu"), "not `silu`"),
        (&|_, entries| entries.retain(|(name, ..)| !name.ends_with("router.bias")), "`router.bias`"),
        (&|_, entries| entries.retain(|(name, ..)| !name.ends_with("down_proj_bias")), "has no bias"),
        (
            &|_, entries| entries.retain(|(name, ..)| !name.ends_with("down_proj_scales")),
            "`experts.0.down_proj`",
        ),
    ];
    for (change, part) in cases {
        let message = refusal(&gpt_oss, change, ElementType::BF16)?;
        assert!(message.contains(part), "{message}");
    }
    Ok(())
}
