//! A crate that is used for its registration alone.

use fourfold_tract as _;
use tract_core::internal::*;
use tract_core::transform::get_transform;

#[test]
fn the_runtime_and_the_transform_are_known_by_name() -> TractResult<()> {
    let runtime = runtime_for_name("fourfold")?.expect("the crate is linked");
    assert_eq!(runtime.name(), "fourfold");
    assert!(runtimes().any(|runtime| runtime.name() == "fourfold"));
    let transform = get_transform("fourfold")?.expect("the crate is linked");
    assert_eq!(transform.name(), "fourfold");
    let mut model = TypedModel::default();
    let x = model.add_source("x", f32::fact([3]))?;
    model.select_output_outlets(&[x])?;
    transform.transform(&mut model)?;
    let outputs = runtime.prepare(model)?.run(tvec!(tensor1(&[1f32, 2.0, 3.0]).into_tvalue()))?;
    assert_eq!(*outputs[0], tensor1(&[1f32, 2.0, 3.0]));
    Ok(())
}
