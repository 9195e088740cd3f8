//! What a kernel says of itself is what its plan is compared with before it is launched: the two are written apart.

use anyhow::{Context, Result, ensure};
use fourfold::codegen::configuration::CutlassVersion;
use fourfold::executor::signature_of;
use fourfold::ir::text;
use fourfold::kernels::planned_kernels;

#[test]
fn the_generator_and_the_executor_agree_on_every_signature() -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for target in ["sm_100a", "sm_121a"] {
        let backend = fourfold_tests::backend(target)?;
        for file in fourfold_tests::fixtures()? {
            let Ok((program, _)) = text::load(&std::fs::read_to_string(&file)?) else { continue };
            let planned = backend.plan(program);
            for kernel in planned_kernels(&planned, CutlassVersion::PINNED, false) {
                let plan = planned.partition().segments[kernel.segment].kernel().context("a plan")?;
                let signature = signature_of(planned.program(), plan);
                let stated = format!("\\\"signature\\\":\\\"{signature}\\\",");
                ensure!(kernel.source.text.contains(&stated), "{}: {signature}", file.display());
                seen.insert(signature);
            }
        }
    }
    ensure!(seen.len() >= 8, "the fixtures have few kinds of kernels: {seen:?}");
    Ok(())
}
