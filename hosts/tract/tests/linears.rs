//! Two FP4 linears around ops that stay with tract, compared with tract's own runtime.

mod common;

use common::two_linears::{K1, check, model};
use common::{cpu, exact_activations, floats, fourfold, run};
use fourfold_tract::{Fate, reason};
use tract_core::internal::*;

#[test]
fn two_linears_equal_tract_on_sm_90a() -> TractResult<()> {
    check(&fourfold("sm_90a"), "sm_90a", 1.0)
}

#[test]
fn two_linears_equal_tract_on_sm_120a() -> TractResult<()> {
    check(&fourfold("sm_120a"), "sm_120a", 1.0)
}

#[test]
fn the_report_names_the_executor_of_every_node() -> TractResult<()> {
    let mut model = model(false)?.into_decluttered()?;
    let report = fourfold("sm_120a").rewrite(&mut model)?;
    let text = report.to_string();
    assert_eq!(report.segments.len(), 2, "{text}");
    let fate = |name: &str| {
        let node = report.nodes.iter().find(|node| node.name == name);
        node.unwrap_or_else(|| panic!("no node {name} in\n{text}")).fate.clone()
    };
    for name in ["fc1.mm", "scaled", "biased", "relu"] {
        assert_eq!(fate(name), Fate::Segment(0), "{name}\n{text}");
    }
    for name in ["fc2.mm", "out"] {
        assert_eq!(fate(name), Fate::Segment(1), "{name}\n{text}");
    }
    assert_eq!(fate("fc1.quantize"), Fate::Absorbed, "{text}");
    // Its codes are outputs of the model.
    assert!(matches!(fate("fc2.quantize"), Fate::Kept(_)), "{text}");
    assert_eq!(report.kept("largest").map(|reason| reason.code), Some(reason::UNSUPPORTED_OP), "{text}");
    assert_eq!(report.kept("shifted").map(|reason| reason.code), Some(reason::BEHIND_HOST_OP), "{text}");
    assert_eq!(report.kept("plain").map(|reason| reason.code), Some(reason::PLAIN_PRODUCT), "{text}");
    let code = report.segments[0].unavailable.as_ref().map(|(code, _)| code.as_str());
    assert_eq!(code, Some("no_device"), "{text}");
    let segments = model.nodes().iter().filter(|node| node.op.name() == "FourfoldSegment").count();
    assert_eq!(segments, 2);
    let property =
        model.properties[fourfold_tract::REPORT_PROPERTY].try_as_plain_ram()?.to_scalar::<String>()?.clone();
    assert_eq!(property, text);
    Ok(())
}

#[test]
fn symbols_may_be_fixed_after_the_rewrite() -> TractResult<()> {
    let mut rewritten = model(false)?.into_decluttered()?;
    fourfold("sm_90a").rewrite(&mut rewritten)?;
    let m = rewritten.symbols.sym("M");
    let fixed = rewritten.set_symbols(&HashMap::from([(m, 5.to_dim())]))?;
    let x = exact_activations(1, 5, K1);
    let want = run(&fourfold("sm_90a"), &model(false)?, std::slice::from_ref(&x))?;
    let got = run(cpu(), &fixed, &[x])?;
    assert_eq!(floats(&got[0]), floats(&want[0]));
    Ok(())
}

#[test]
fn states_on_several_threads_share_the_segments() -> TractResult<()> {
    let prepared = fourfold("sm_90a").prepare(model(false)?)?;
    let single = |rows: usize| {
        let x = exact_activations(rows as u64, rows, K1).into_tvalue();
        prepared.run(tvec!(x)).map(|outputs| floats(&outputs[0]))
    };
    let want: Vec<Vec<f32>> = (1..5).map(single).collect::<TractResult<_>>()?;
    std::thread::scope(|scope| {
        let calls: Vec<_> = (1..5).map(|rows| scope.spawn(move || single(rows))).collect();
        for (call, want) in calls.into_iter().zip(&want) {
            assert_eq!(&call.join().unwrap().unwrap(), want);
        }
    });
    Ok(())
}
