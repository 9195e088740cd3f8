//! The functions of the table, called as a C program calls them.

mod api;
mod refused;

use std::collections::HashMap;
use std::thread;

use fourfold::ir::bind::bind_given;
use fourfold::ir::sample::{Recipe, Rule, inputs};
use fourfold::ir::{Tensor, load};
use fourfold::{Backend, CompileOptions, DeviceChoice, Options};

use api::{Backing, Host, OwnDecision, Wrong, api, fixture};
use fourfold_capi::abi::*;

/// Runs a program through the facade, on seeded tensors.
fn expected(source: &str, symbols: &[(&str, u64)], seed: u64) -> (HashMap<String, Tensor>, Vec<Tensor>) {
    let (program, _) = load(source).expect("a valid program");
    let symbols: Vec<(String, u64)> =
        symbols.iter().map(|(name, extent)| ((*name).to_owned(), *extent)).collect();
    let recipe = Recipe { rule: Rule::Exact, seed, symbols: symbols.clone() };
    let tensors = inputs(&program, &recipe).expect("inputs");
    let outputs = program.module().outputs.clone();
    let bound = bind_given(&program, &tensors, &symbols).expect("the inputs fit");
    let backend = Backend::new(&Options::default().device(DeviceChoice::None)).expect("a backend");
    let compiled = backend.compile(backend.plan(program.clone()), &CompileOptions::default(), &|_| ());
    let run = compiled.run_bound(&bound, &Default::default()).expect("a run");
    let outputs = outputs.iter().map(|value| run.value(*value).expect("an output").clone()).collect();
    (tensors, outputs)
}

#[test]
fn runs_and_sessions_have_the_bits_of_the_facade_for_every_extent() {
    for (name, extents) in [
        ("minilm_ffn.fir", &[0, 1, 3, 130][..]),
        ("llama_block.fir", &[1, 7][..]),
        ("attention.fir", &[5][..]),
    ] {
        let source = fixture(name);
        let host = Host::new(&[("device", "none")]);
        let module = host.compile(&source, 0).expect("a module");
        let symbols = module.symbols();
        for &extent in extents {
            let given: Vec<(&str, u64)> = symbols.iter().map(|name| (name.as_str(), extent)).collect();
            let (tensors, outputs) = expected(&source, &given, extent + 7);
            assert_eq!(module.execute(&tensors, &given).expect("a run"), outputs, "{name} {extent}");
            let session = module.session(&tensors).expect("a session");
            for _ in 0..2 {
                let (found, prepared) = session.run(&module, &tensors, &given).expect("a run");
                assert_eq!((found, prepared), (outputs.clone(), false), "{name} {extent}");
            }
        }
    }
}

/// FP4 crosses in three forms, FP8 and scales in two.
#[test]
fn every_form_of_narrow_types_is_taken() {
    let source = fixture("minilm_ffn.fir");
    let host = Host::new(&[("device", "none")]);
    let module = host.compile(&source, 0).expect("a module");
    let (tensors, outputs) = expected(&source, &[("M", 3)], 1);
    for backing in [Backing::Own, Backing::Pairs, Backing::Bytes] {
        let found = module.execute_as(&tensors, &[("M", 3)], backing).expect("a run");
        assert_eq!(found, outputs, "{backing:?}");
    }
}

#[test]
fn ports_describe_the_program() {
    let source = "fir 1
func @layer(%a: tensor<[2*M, 64], f4E2M1FN>, %sfa: tensor<[2*M, 4], f8E4M3FN, blocked>,
    param %b: tensor<[24, 64], f4E2M1FN>, param %sfb: tensor<[24, 4], f8E4M3FN, linear>) {
  %s = swizzle_scales %sfb : tensor<[24, 4], f8E4M3FN, blocked>
  %d = scaled_mma %a, %sfa, %b, %s {block = 16} : tensor<[2*M, 24], f32>
  return %d
}
";
    let host = Host::new(&[("device", "none"), ("target", "sm_90a")]);
    assert_eq!(host.target(), "sm_90a");
    let module = host.compile(source, 0).expect("a module");
    let ports = module.ports(&[]).expect("ports");
    let shapes: Vec<(&str, &[i64], i64)> =
        ports.iter().map(|port| (port.name.as_str(), port.shape.as_slice(), port.bytes)).collect();
    assert_eq!(
        shapes,
        [
            ("a", &[-1, 64][..], -1),
            ("sfa", &[-1, 4], -1),
            ("b", &[24, 64], 768),
            ("sfb", &[24, 4], 96),
            ("d", &[-1, 24], -1),
        ]
    );
    let known = module.ports(&[("M", 65)]).expect("ports");
    let bytes: Vec<i64> = known.iter().map(|port| port.bytes).collect();
    // Two tiles of 128 rows, each with 4 scales a row.
    assert_eq!(bytes, [130 * 32, 2 * 128 * 4, 768, 96, 130 * 24 * 4]);
    let kinds: Vec<(u8, u8, u32, u32)> =
        known.iter().map(|port| (port.code, port.bits, port.layout, port.flags)).collect();
    let (none, linear, blocked) = (LAYOUT_NONE, LAYOUT_LINEAR, LAYOUT_BLOCKED);
    assert_eq!(
        kinds,
        [
            (17, 4, none, 0),
            (10, 8, blocked, 0),
            (17, 4, none, PORT_PARAM),
            (10, 8, linear, PORT_PARAM),
            (2, 32, none, 0)
        ]
    );
    assert_eq!(known[1].ty, "tensor<[2*M, 4], f8E4M3FN, blocked>");
    let (capturable, why_not) = module.capturable(&[("M", 65)]);
    assert!(!capturable && why_not.starts_with("no_device"), "{why_not}");
    let (capturable, why_not) = module.capturable(&[]);
    assert!(!capturable && why_not.starts_with("no_device"), "{why_not}");
}

#[test]
fn a_program_without_kernels_says_why_it_is_not_capturable() {
    let source = "fir 1
func @product(%x: tensor<[M, 32], f32>) {
  %y = mma %x, %x : tensor<[M, M], bf16>
  return %y
}
";
    let module = Host::new(&[("device", "none")]).compile(source, 0).expect("a module");
    for symbols in [&[("M", 3)][..], &[]] {
        let (capturable, why_not) = module.capturable(symbols);
        assert!(!capturable && why_not.starts_with("fallback_segment: "), "{why_not}");
    }
}

#[test]
fn every_op_has_a_decision() {
    let source = "fir 1
func @layer(%x: tensor<[M, 32], f32>, %a: tensor<[M, 64], f4E2M1FN>, %sfa: tensor<[M, 4], f8E4M3FN, blocked>,
    param %b: tensor<[24, 64], f4E2M1FN>, param %sfb: tensor<[24, 4], f8E4M3FN, blocked>) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 24], f32>
  %y = relu %d : tensor<[M, 24], f32>
  %s = mma %x, %x : tensor<[M, M], bf16>
  return %y, %s
}
";
    let host = Host::new(&[("device", "none"), ("target", "sm_120a")]);
    let (decisions, segments) = host.query(source).expect("decisions");
    let found: Vec<(&str, u32, &str)> = decisions
        .iter()
        .map(|decision| (decision.name.as_str(), decision.tier, decision.reason.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("%d = scaled_mma", TIER_KERNEL, ""),
            ("%y = relu", TIER_KERNEL, ""),
            ("%s = mma", TIER_FALLBACK, "not_scaled_mma"),
        ]
    );
    let tiers: Vec<u32> = segments.iter().map(|(tier, _)| *tier).collect();
    assert_eq!(tiers.iter().filter(|tier| **tier == TIER_KERNEL).count(), 1, "{segments:?}");
    for decision in &decisions {
        assert_eq!(tiers[decision.segment as usize], decision.tier, "{decision:?}");
    }
    // Dequantizations of both operands become part of a `scaled_mma`.
    let source = fixture("normalize/exact.fir");
    let (program, _) = load(&source).expect("a valid program");
    let (decisions, segments) = host.query(&source).expect("decisions");
    let module = program.module();
    let names: Vec<String> = module.ops.keys().map(|op| module.op_label(op)).collect();
    assert!(decisions.iter().map(|decision| &decision.name).eq(&names), "{decisions:?}");
    assert!(segments.iter().any(|(tier, _)| *tier == TIER_KERNEL));
    let removed: Vec<&OwnDecision> =
        decisions.iter().filter(|decision| decision.tier == TIER_REMOVED).collect();
    assert!(!removed.is_empty() && removed.iter().all(|decision| decision.segment == u32::MAX));
}

#[test]
fn a_module_is_shared_by_threads_and_outlives_its_backend() {
    let source = fixture("minilm_ffn.fir");
    let host = Host::new(&[("device", "none")]);
    let module = host.compile(&source, COMPILE_IN_BACKGROUND).expect("a module");
    drop(host);
    assert!(module.wait(-1).expect("an answer") && module.wait(0).expect("an answer"));
    thread::scope(|scope| {
        for thread in 0..8 {
            let (module, source) = (&module, &source);
            scope.spawn(move || {
                let (tensors, outputs) = expected(source, &[("M", thread)], thread);
                assert_eq!(module.execute(&tensors, &[("M", thread)]).expect("a run"), outputs);
            });
        }
    });
    let (tensors, outputs) = expected(&source, &[("M", 9)], 9);
    let session = module.session(&tensors).expect("a session");
    module.cancel();
    // The session keeps the compiled program.
    let ports = module.ports(&[("M", 9)]).expect("ports");
    let inputs = module.without_params(&tensors);
    drop(module);
    assert_eq!(session.run_on(&ports, &inputs).expect("a run").0, outputs);
}

#[test]
fn products_of_symbols_need_their_extents() {
    let source = "fir 1
func @sum(%x: tensor<[B*S, 8], f32>) {
  %y = relu %x : tensor<[B*S, 8], f32>
  return %y
}
";
    let host = Host::new(&[("device", "none")]);
    let module = host.compile(source, 0).expect("a module");
    let given = [("B", 3), ("S", 5)];
    let (tensors, outputs) = expected(source, &given, 3);
    let Wrong { code, message, .. } = module.execute_given(&tensors, &given, &[]).expect_err("no extents");
    assert!(code == 3 && message.contains("determines the symbol"), "{message}");
    assert_eq!(module.execute_given(&tensors, &given, &given).expect("a run"), outputs);
}

#[test]
fn the_table_is_that_of_the_major_version() {
    let query = |major, minor| fourfold_capi::fourfold_plugin_query(Version { major, minor });
    assert!(query(0, 0).is_null() && query(2, 0).is_null());
    for minor in [0, 1, 900] {
        assert_eq!(query(1, minor), api() as *const Api);
    }
    assert_eq!((api().struct_size, api().version), (size_of::<Api>(), VERSION));
    assert_eq!(api().features, FEATURE_CUDA | FEATURE_CPU_FALLBACK);
}
