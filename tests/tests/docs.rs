//! The program in the README is a program, and does what the README says.

use fourfold::DEFAULT_TARGET;
use fourfold::ir::text;
use fourfold_tests::{backend, repository};

#[test]
fn the_program_in_the_readme_is_one_kernel() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there is a README");
    let blocks: Vec<&str> =
        readme.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let program = blocks.iter().find(|block| block.starts_with("fir 1")).expect("the README shows a program");
    let (program, _) =
        text::load(program).unwrap_or_else(|errors| panic!("{}", errors[0].render("README.md", program)));
    let planned = backend(DEFAULT_TARGET).expect("the default target exists").plan(program);
    assert_eq!(planned.partition().kernels().count(), 1);
}
