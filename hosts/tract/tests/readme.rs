//! The example of the README is the example of this crate, and prints what the README says.

#[path = "../examples/layer.rs"]
#[allow(dead_code, reason = "main is the example's")]
mod layer;

const README: &str = include_str!("../README.md");
const EXAMPLE: &str = include_str!("../examples/layer.rs");

#[test]
fn the_readme_has_the_example_and_its_output() {
    let example = EXAMPLE.split_once("\n\n").expect("a comment and code").1;
    assert!(README.contains(example.trim_end()), "copy examples/layer.rs into README.md");
    let output = layer::layer().unwrap();
    assert!(output.contains("[7, 8]: 3.378"), "{output}");
    // With a GPU the kernel runs, or another reason is printed.
    if output.contains("no CUDA driver") {
        assert!(README.contains(output.trim_end()), "copy this into README.md:\n{output}");
    }
}
