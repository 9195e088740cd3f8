//! Ops beyond the limits of the device tier: the reason names the extent and the limit.

use expect_test::{Expect, expect};
use fourfold_codegen::capabilities;
use fourfold_ir::{Program, SymbolValues};
use fourfold_scheduler::{Partition, Plan, ReasonCode, Tier, check, partition, violated};

use super::support::op_named;

fn planned(source: &str) -> (Program, Partition) {
    let source = format!("fir 1\nfunc @f({source}\n");
    let (program, _) = fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{source}\n{errors:?}"));
    let capabilities = capabilities("sm_90a").expect("a target");
    let partition = partition(&program, &capabilities);
    assert_eq!(check(&program, &capabilities, &partition), Ok(()), "{source}");
    (program, partition)
}

/// The tier and the reason of `%y`.
fn decision(source: &str) -> (Tier, ReasonCode, String) {
    let (program, partition) = planned(source);
    let decision = &partition.decisions[fourfold_ir::Entity::index(op_named(&program, "y"))];
    let reason = decision.rejection.clone().expect("a reason");
    (partition.segments[decision.segment].tier(), reason.code, reason.message)
}

/// Checks that the device tier takes `%y` of `source` with FIXED within the limit, and not with `beyond`.
#[track_caller]
fn limit(source: &str, within: &str, beyond: &str, expected: Expect) {
    let (tier, code, message) = decision(&source.replace("FIXED", within));
    assert_eq!((tier, code), (Tier::Device, ReasonCode::NoScaledMmaProducer), "{message}");
    let (tier, code, message) = decision(&source.replace("FIXED", beyond));
    assert_eq!((tier, code), (Tier::Fallback, ReasonCode::ExtentRange), "{message}");
    expected.assert_eq(&message);
}

#[test]
fn routing_beyond_a_limit_names_it() {
    limit(
        "%x: tensor<[3, FIXED], f32>) {
  %y, %i = top_k %x {k = 8} : tensor<[3, 8], f32>, tensor<[3, 8], i32>
  return %y, %i
}",
        "2097152",
        "8388608",
        expect![[
            "%y, %i = top_k: C * K (the elements of a row and those taken) is 8388608 * 8; expected at most 16777216"
        ]],
    );
    limit(
        "%x: tensor<[FIXED, 2], f16>) {
  %y, %i = top_k %x {k = 1} : tensor<[FIXED, 1], f16>, tensor<[FIXED, 1], i32>
  return %y, %i
}",
        "17179869176",
        "17179869177",
        expect![["%y, %i = top_k: M (the rows) is 17179869177; expected at most 17179869176"]],
    );
    limit(
        "%ids: tensor<[7, 3], i32>) {
  %y, %r, %e = group_rows %ids {groups = FIXED} : tensor<[21], i32>, tensor<[21], i32>, tensor<[FIXED], i32>
  return %y, %r, %e
}",
        "65536",
        "65537",
        expect![["%y, %r, %e = group_rows: E (the groups) is 65537; expected at most 65536"]],
    );
    limit(
        "%ends: tensor<[FIXED], i32>) {
  %y = padded_ends %ends {multiple = 128} : tensor<[FIXED], i32>
  return %y
}",
        "65536",
        "65537",
        expect![["%y = padded_ends: E (the groups) is 65537; expected at most 65536"]],
    );
    limit(
        "%x: tensor<[FIXED, 1], f16>, %i: tensor<[FIXED], i32>) {
  %y = scatter_add %x, %i : tensor<[5, 1], f32>
  return %y
}",
        "2147483647",
        "4000000000",
        expect![["%y = scatter_add: M (the indices) is 4000000000; expected at most 2147483647"]],
    );
}

#[test]
fn copies_and_rows_beyond_a_limit_name_it() {
    limit(
        "%x: tensor<[5, FIXED], i1>, %i: tensor<[3], i32>) {
  %y = gather %x, %i {axis = 0} : tensor<[3, FIXED], i1>
  return %y
}",
        "549755813888, 2",
        "549755813888, 3",
        expect![["%y = gather: I is 1649267441664; expected at most 1099511627776"]],
    );
    limit(
        "%x: tensor<[2, FIXED], i1>) {
  %y = transpose %x {permutation = [1, 2, 0]} : tensor<[FIXED, 2], i1>
  return %y
}",
        "274877906944, 2",
        "274877906944, 3",
        expect![[
            "%y = transpose: E (the elements of the operand) is 1649267441664; expected at most 1099511627776"
        ]],
    );
    limit(
        "%x: tensor<[3, FIXED], f16>) {
  %y = relu %x : tensor<[3, FIXED], f16>
  return %y
}",
        "2147483647",
        "2147483648",
        expect![["%y = relu: K is 2147483648; expected at most 2147483647"]],
    );
    limit(
        "%x: tensor<[FIXED, 1024], f16>, %g: tensor<[], f32>) {
  %y, %s = block_quantize %x, %g {block = 16} : tensor<[FIXED, 1024], f4E2M1FN>, tensor<[FIXED, 64], f8E4M3FN, linear>
  return %y, %s
}",
        "33554304",
        "33554432",
        expect![[
            "%y, %s = block_quantize: the scales of a block-scaled tensor are too large; expected at most 2147483647 bytes"
        ]],
    );
    limit(
        "%x: tensor<[FIXED, 3], f16>) {
  %y = reduce %x {axes = [0, 1], kind = max} : tensor<[3], f16>
  return %y
}",
        "549755813888, 2",
        "549755813888, 3",
        expect!["%y = reduce: C is 1649267441664; expected at most 1099511627776"],
    );
    // 4e9 indices are no limit of a gather, whose positions have 64 bits.
    let (tier, ..) = decision(
        "%x: tensor<[5, 3], i1>, %i: tensor<[4000000000], i32>) {
  %y = gather %x, %i {axis = 0} : tensor<[4000000000, 3], i1>
  return %y
}",
    );
    assert_eq!(tier, Tier::Device);
}

#[test]
fn an_op_that_no_kernel_computes_keeps_its_reason() {
    let (tier, code, _) = decision(
        "%x: tensor<[3, 4294967296], f16>) {
  %y = softmax %x {axis = 0} : tensor<[3, 4294967296], f16>
  return %y
}",
    );
    assert_eq!((tier, code), (Tier::Fallback, ReasonCode::NoScaledMmaProducer));
}

/// The grid of a `scatter_add` has a CTA for each row of the result and 2048 of its columns.
#[test]
fn a_scatter_add_stays_within_a_grid() {
    let rows = |columns: &str| {
        format!(
            "%x: tensor<[M, {columns}], f16>, %i: tensor<[M], i32>) {{
  %y = scatter_add %x, %i : tensor<[FIXED, {columns}], f16>
  return %y
}}"
        )
    };
    let message =
        expect!["%y = scatter_add: N (the rows of the result) is 2147483648; expected at most 2147483647"];
    limit(&rows("2048"), "2147483647", "2147483648", message);
    let message =
        expect!["%y = scatter_add: N (the rows of the result) is 1073741824; expected at most 1073741823"];
    limit(&rows("2049"), "1073741823", "1073741824", message);

    let call = |source: &str, extents: &[(&str, u64)]| {
        let (program, partition) = planned(source);
        let mut values = SymbolValues::default();
        for (name, value) in extents {
            let symbols = &program.module().symbols;
            let (symbol, _) = symbols.iter().find(|(_, found)| found.as_str() == *name).expect("a symbol");
            values.set(symbol, *value);
        }
        let (_, plan) = partition.plans().next().expect("a device segment");
        let Plan::Move(plan) = plan else { panic!("another plan") };
        violated(&plan.constraints, &values).map(|rejection| rejection.to_string())
    };
    let rows = rows("4097").replace("FIXED", "N").replace("%x:", "%n: tensor<[N], i1>, %x:");
    assert_eq!(call(&rows, &[("M", 3), ("N", 715_827_882)]), None);
    assert_eq!(
        call(&rows, &[("M", 3), ("N", 715_827_883)]).as_deref(),
        Some("extent_range: N is 715827883; expected at most 715827882")
    );
    let columns = rows.replace("4097", "C");
    assert_eq!(call(&columns, &[("M", 3), ("N", 715_827_882), ("C", 4097)]), None);
    assert_eq!(
        call(&columns, &[("M", 3), ("N", 715_827_883), ("C", 4097)]).as_deref(),
        Some("extent_range: the result has 2147483649 tiles of 1x2048; expected at most 2147483647")
    );
}
