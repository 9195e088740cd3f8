//! The segments that a host is offered, by claim.

use fourfold::RunOptions;
use fourfold::ir::sample::{self, Rule};
use fourfold::scheduler::Tier;
use fourfold::{Backend, Claim, Error};

/// A product, a softmax of its result, and a product of f32 as bf16, which stays on the fallback.
const SOURCE: &str = "fir 1
func @claims(%a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[24, 96], f4E2M1FN>, param %sfb: tensor<[24, 6], f8E4M3FN, blocked>) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>
  %y = softmax %d {axis = 1} : tensor<[37, 24], f32>
  %z = mma %y, %y : tensor<[37, 37], bf16>
  return %z
}
";

#[test]
fn a_host_is_offered_the_segments_that_it_claims_and_runs_the_others() {
    let (program, _) = fourfold::ir::load(SOURCE).expect("a valid program");
    let recipe = sample::Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() };
    let tensors = sample::inputs(&program, &recipe).expect("it has no symbols");
    let cases: [(Claim, &[Tier], Option<&str>); 3] = [
        (Claim::Everything, &[Tier::Kernel], None),
        (Claim::KernelsOnly, &[Tier::Kernel], Some("%y = softmax")),
        (Claim::Device, &[Tier::Kernel, Tier::Device], Some("%z = mma")),
    ];
    for (claim, tiers, unclaimed) in cases {
        assert_eq!(Claim::from_name(claim.name()), Some(claim));
        let backend = Backend::new(&fourfold_tests::options("sm_90a").claim(claim)).expect("a target");
        let planned = backend.plan(program.clone());
        backend.check(&planned).unwrap_or_else(|error| panic!("{error}"));
        let tier = |segment: usize| planned.partition().segments[segment].tier();
        let offered: Vec<Tier> = planned.claimed().iter().map(|claimed| tier(claimed.segment)).collect();
        assert_eq!(offered, tiers, "{}", claim.name());
        let refused = match planned.run(&tensors, &RunOptions::default()) {
            Ok(_) => None,
            Err(Error::Unclaimed { op }) => Some(op),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(refused.as_deref(), unclaimed, "{}", claim.name());
    }
}
