//! Tests of the properties of each rule's data.

use super::*;
use crate::builder::{Builder, ScaledMmaOptions};
use crate::interp::interpret;
use crate::types::{Dim, TensorType};
use crate::verify::verify;
use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I1, I32};
use ScaleLayout::{Blocked, Linear};

/// A program with a blocked and a linear scale tensor: D = alpha · A·Bᵀ.
fn program(format: (ElementType, ElementType, ElementType, u32), k: u64) -> Program {
    let (a, b, scale, block) = format;
    let mut builder = Builder::new("main");
    let (m, n) = (builder.symbol("M"), Dim::fixed(40));
    let fixed = Dim::fixed;
    let blocks = fixed(k / u64::from(block));
    let x = builder.input("x", TensorType::new(vec![m.clone(), fixed(k)], a));
    let scales = TensorType::scales(vec![m, blocks.clone()], scale, Blocked);
    let sx = (!a.is_half()).then(|| builder.input("sx", scales));
    let w = builder.param("w", TensorType::new(vec![n.clone(), fixed(k)], b));
    let sw = builder.param("sw", TensorType::scales(vec![n, blocks], scale, Linear));
    let y = builder.scaled_mma("y", x, sx, w, sw, block, F32, ScaledMmaOptions::default());
    verify(builder.finish(&[y])).unwrap()
}

const NVFP4: (ElementType, ElementType, ElementType, u32) = (F4E2M1FN, F4E2M1FN, F8E4M3FN, 16);

fn recipe(rule: Rule, seed: u64, m: u64) -> Recipe {
    Recipe { rule, seed, symbols: vec![("M".to_owned(), m)] }
}

#[test]
fn names_of_rules_come_back() {
    for rule in Rule::ALL {
        assert_eq!(Rule::from_name(rule.name()), Some(rule));
    }
    assert_eq!(Rule::from_name("Exact"), None);
}

#[test]
fn the_generator_is_splitmix64() {
    // The published first outputs for the seed 1234567.
    let mut random = SplitMix64(1_234_567);
    assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    assert_eq!([fnv1a(""), fnv1a("a")], [0xCBF2_9CE4_8422_2325, 0xAF63_DC4C_8601_EC8C]);
}

#[test]
fn the_same_recipe_gives_the_same_bytes_on_every_machine() {
    let bytes = |element, layout, rule| {
        let tensor = tensor(element, vec![2, 4], layout, rule, 42).unwrap();
        tensor.to_codes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let found = [
        bytes(F4E2M1FN, None, Rule::Exact),
        bytes(F8E4M3FN, Some(Linear), Rule::Exact),
        bytes(F8E4M3FN, Some(Blocked), Rule::Contest),
        bytes(F8E8M0FNU, Some(Linear), Rule::Normal),
        bytes(BF16, None, Rule::Normal),
        bytes(I32, None, Rule::Normal),
    ];
    expect_test::expect![[r#"
        0b020405000d030c
        494a4a4851565254
        0038380000443840
        7176796c738b7884
        0bc0bfbffdbed3bf07beb53e9cbf0c3f
        04000000fafffffffcfffffffdfffffff8ffffff06000000fbffffff05000000"#]]
    .assert_eq(&found.join("\n"));
}

#[test]
fn an_input_depends_on_its_name_and_the_seed_but_not_on_other_inputs() {
    let program = program(NVFP4, 64);
    let first = inputs(&program, &recipe(Rule::Normal, 1, 37)).unwrap();
    assert_eq!(first.len(), 4);
    assert_eq!(first, inputs(&program, &recipe(Rule::Normal, 1, 37)).unwrap());
    let second = inputs(&program, &recipe(Rule::Normal, 2, 37)).unwrap();
    assert!(first.iter().all(|(name, tensor)| second[name] != *tensor));
    // Another M changes x and sx but neither w nor sw.
    let third = inputs(&program, &recipe(Rule::Normal, 1, 38)).unwrap();
    assert_eq!([&third["w"], &third["sw"]], [&first["w"], &first["sw"]]);
    assert_eq!(third["x"].dims(), [38, 64]);
    assert_ne!(first["x"].bytes()[..32], first["w"].bytes()[..32]);
}

#[test]
fn symbols_must_be_exactly_the_programs() {
    let program = program(NVFP4, 64);
    let with = |symbols: &[(&str, u64)]| {
        let symbols = symbols.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        inputs(&program, &Recipe { rule: Rule::Exact, seed: 0, symbols }).map_err(|error| error.to_string())
    };
    assert!(with(&[("M", 0)]).is_ok());
    assert_eq!(with(&[]).unwrap_err(), "the recipe has no value for the symbol `M`");
    assert_eq!(with(&[("M", 1), ("Q", 2)]).unwrap_err(), "the program has no symbol `Q`");
    assert_eq!(with(&[("M", 1), ("M", 1)]).unwrap_err(), "the recipe gives the symbol `M` a value twice");
    for absurd in [1 << 33, 1 << 60, u64::MAX] {
        assert!(
            with(&[("M", absurd)]).unwrap_err().starts_with("`%x`: a f4E2M1FN tensor cannot have the shape")
        );
    }
}

/// The f32 sums of products in five orders: ascending, descending, even before odd, by halves, and 32 lanes apart.
fn sums_in_some_orders(products: &[f32]) -> [f32; 5] {
    fn halves(products: &[f32]) -> f32 {
        match products {
            [] => 0.0,
            [one] => *one,
            _ => {
                let (left, right) = products.split_at(products.len() / 2);
                halves(left) + halves(right)
            }
        }
    }
    let sum = |products: &mut dyn Iterator<Item = &f32>| products.fold(0.0f32, |sum, product| sum + product);
    let lanes: Vec<f32> = (0..32).map(|lane| sum(&mut products.iter().skip(lane).step_by(32))).collect();
    [
        sum(&mut products.iter()),
        sum(&mut products.iter().rev()),
        sum(&mut products.iter().step_by(2).chain(products.iter().skip(1).step_by(2))),
        halves(products),
        sum(&mut lanes.iter()),
    ]
}

#[track_caller]
fn check_exact_in_any_order(
    format: (ElementType, ElementType, ElementType, u32),
    rule: Rule,
    k: u64,
    seed: u64,
) {
    let program = program(format, k);
    let tensors = inputs(&program, &recipe(rule, seed, 50)).unwrap();
    let bound = crate::bind::bind(&program, &tensors).unwrap();
    let d = interpret(&program, &bound).unwrap().pop().unwrap().to_f32();
    let (k, block) = (k as usize, format.3 as usize);
    let rows = |data: &str, scales: &str| -> Vec<Vec<f32>> {
        let (data, scales) = (tensors[data].to_f32(), tensors.get(scales).map(Tensor::to_f32));
        let scale = |index: usize| scales.as_ref().map_or(1.0, |scales| scales[index / block]);
        let element = |(index, code): (usize, &f32)| code * scale(index);
        data.iter().enumerate().map(element).collect::<Vec<_>>().chunks(k).map(<[f32]>::to_vec).collect()
    };
    let (a, b) = (rows("x", "sx"), rows("w", "sw"));
    for (index, expected) in d.iter().enumerate() {
        let products: Vec<f32> = a[index / 40].iter().zip(&b[index % 40]).map(|(a, b)| a * b).collect();
        assert_eq!(sums_in_some_orders(&products), [*expected; 5], "element {index}");
    }
    assert!(d.iter().filter(|d| **d != 0.0).count() > d.len() / 2);
}

#[test]
fn exact_rule_products_are_the_same_in_every_f32_order() {
    for seed in 0..4 {
        check_exact_in_any_order(NVFP4, Rule::Exact, 512, seed);
    }
    let pairs = [(F4E2M1FN, F4E2M1FN), (F8E4M3FN, F8E4M3FN), (F8E5M2, F8E4M3FN), (F4E2M1FN, F8E5M2)];
    let with_six = [(F6E2M3FN, F6E2M3FN), (F6E3M2FN, F8E4M3FN), (F6E2M3FN, F6E3M2FN)];
    for (a, b) in pairs.into_iter().chain(with_six) {
        check_exact_in_any_order((a, b, F8E8M0FNU, 32), Rule::Exact, 512, 9);
    }
    for (a, b) in [(BF16, F4E2M1FN), (F16, F8E4M3FN), (BF16, F8E5M2)] {
        check_exact_in_any_order((a, b, F8E8M0FNU, 32), Rule::Exact, 512, 9);
        check_exact_in_any_order((a, F4E2M1FN, F8E4M3FN, 16), Rule::Exact, 512, 9);
    }
}

#[test]
fn contest_rule_products_are_the_same_in_every_f32_order() {
    check_exact_in_any_order(NVFP4, Rule::Contest, 4096, 3);
    for (a, b) in [(F4E2M1FN, F4E2M1FN), (F8E4M3FN, F8E5M2), (F6E2M3FN, F6E3M2FN)] {
        check_exact_in_any_order((a, b, F8E8M0FNU, 32), Rule::Contest, 1792, 3);
    }
    check_exact_in_any_order((F16, F4E2M1FN, F8E4M3FN, 16), Rule::Contest, 4096, 3);
    check_exact_in_any_order((BF16, F4E2M1FN, F8E8M0FNU, 32), Rule::Contest, 1792, 3);
}

#[test]
fn the_worst_exact_rule_row_is_exact_and_one_of_twice_the_length_need_not_be() {
    let worst: Vec<f64> = (0..512).map(|_| (12.0f64 * 15.0).powi(2)).collect();
    assert!(worst.iter().sum::<f64>() < 2f64.powi(24));
    assert!(worst.iter().sum::<f64>() * 2.0 > 2f64.powi(24));
}

#[test]
fn exact_rule_scales_have_one_exponent_per_row_and_all_mantissas() {
    let codes = tensor(F8E4M3FN, vec![2, 100, 32], Some(Linear), Rule::Exact, 4).unwrap().to_codes();
    let mut exponents: Vec<u8> = Vec::new();
    for row in codes.chunks(32) {
        assert!(row.iter().all(|code| code >> 3 == row[0] >> 3));
        exponents.push(row[0] >> 3);
    }
    exponents.sort_unstable();
    exponents.dedup();
    assert_eq!(exponents, (3..=11).collect::<Vec<_>>(), "2^-4 to 2^4 under a bias of 7");
    assert!((0..8).all(|mantissa| codes.iter().any(|code| code % 8 == mantissa)));
    let codes = tensor(F8E8M0FNU, vec![100, 16], Some(Linear), Rule::Exact, 4).unwrap().to_codes();
    for row in codes.chunks(16) {
        let least = *row.iter().min().unwrap();
        assert!(row.iter().all(|code| code - least <= 1) && (123..=131).contains(&least));
    }
}

#[test]
fn every_rule_draws_all_sixteen_fp4_codes() {
    for rule in Rule::ALL {
        let codes = tensor(F4E2M1FN, vec![16, 64], None, rule, 1).unwrap().to_codes();
        for code in 0..16 {
            let count = codes.iter().filter(|found| **found == code).count();
            assert!((30..100).contains(&count), "{code} occurs {count} times in 1024");
        }
    }
}

#[test]
fn normal_scales_have_every_kind_of_value_and_no_nan() {
    let codes = tensor(F8E4M3FN, vec![61, 1], Some(Linear), Rule::Normal, 77).unwrap().to_codes();
    assert!(codes.contains(&0x00) && codes.contains(&0x7E) && codes.iter().any(|code| (1..8).contains(code)));
    let codes = tensor(F8E4M3FN, vec![200, 64], Some(Linear), Rule::Normal, 77).unwrap().to_codes();
    assert!((0..=0x7E).all(|code| codes.contains(&code)) && codes.iter().all(|code| *code <= 0x7E));
    let values = tensor(F8E8M0FNU, vec![100, 64], Some(Linear), Rule::Normal, 7).unwrap().to_codes();
    assert_eq!((values.iter().min(), values.iter().max()), (Some(&107), Some(&147)));
    let values = tensor(F8E8M0FNU, vec![100, 64], Some(Linear), Rule::Contest, 7).unwrap().to_codes();
    assert_eq!((values.iter().min(), values.iter().max()), (Some(&126), Some(&129)));
    let values = tensor(F8E4M3FN, vec![100, 64], Some(Linear), Rule::Contest, 7).unwrap().to_f64();
    assert!([0.0, 1.0, 2.0, 3.0].iter().all(|v| values.contains(v)) && values.iter().all(|v| *v <= 3.0));
}

#[test]
fn padding_can_be_made_nan_and_nothing_else_changes() {
    for (element, nan) in [(F8E4M3FN, 0x7F), (F8E8M0FNU, 0xFF)] {
        let scales = tensor(element, vec![2, 37, 5], Some(Blocked), Rule::Exact, 3).unwrap();
        let mut poisoned = scales.clone();
        fill_padding_with_nan(&mut poisoned);
        assert_eq!(poisoned.to_codes(), scales.to_codes());
        let count = poisoned.bytes().iter().filter(|byte| **byte == nan).count();
        assert_eq!(count, 2 * (128 * 8 - 37 * 5));
        let mut linear = tensor(element, vec![37, 5], Some(Linear), Rule::Exact, 3).unwrap();
        let before = linear.clone();
        fill_padding_with_nan(&mut linear);
        assert_eq!(linear, before);
    }
}

#[test]
fn padding_of_blocked_scales_is_finite_and_never_zero() {
    for (element, nan) in [(F8E4M3FN, 0x7F), (F8E8M0FNU, 0xFF)] {
        for rule in Rule::ALL {
            let scales = tensor(element, vec![2, 37, 5], Some(Blocked), rule, 3).unwrap();
            assert_eq!(
                scales.to_codes(),
                tensor(element, vec![2, 37, 5], Some(Linear), rule, 3).unwrap().bytes()
            );
            let mut seen = Vec::new();
            for matrix in scales.bytes().chunks(128 * 8) {
                for (row, column) in (0..128).flat_map(|row| (0..8).map(move |column| (row, column))) {
                    if row >= 37 || column >= 5 {
                        seen.push(matrix[numeric::blocked_offset(row, column, 5)]);
                    }
                }
            }
            assert_eq!(seen.len(), 2 * (128 * 8 - 37 * 5));
            assert!(seen.iter().all(|code| *code != 0 && *code < nan));
        }
    }
}

#[test]
fn only_the_a_of_a_weight_only_product_is_drawn_for_exact_sums() {
    for (element, rule) in [(BF16, Rule::Exact), (F16, Rule::Contest), (BF16, Rule::Normal)] {
        let program = program((element, F4E2M1FN, F8E4M3FN, 16), 64);
        let x = inputs(&program, &recipe(rule, 1, 91)).unwrap().remove("x").unwrap();
        let normal = tensor(element, vec![91, 64], None, rule, 1 ^ fnv1a("x")).unwrap();
        assert_eq!(x == normal, rule == Rule::Normal);
        let most = if rule == Rule::Exact { 180.0 } else { 36.0 };
        for row in x.to_f64().chunks(64).filter(|_| rule != Rule::Normal) {
            let exponents = -4..=4;
            let fits = |e: i32| {
                row.iter().map(|v| v * 16.0 / 2f64.powi(e)).all(|i| i.fract() == 0.0 && i.abs() <= most)
            };
            assert!(exponents.into_iter().any(fits), "{row:?}");
        }
        let mut distinct = x.to_f64();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        assert!(distinct.len() > 40);
    }
}

#[test]
fn fp6_and_fp8_data_is_finite_and_reaches_both_ends() {
    for (element, largest) in [(F6E2M3FN, 7.5), (F6E3M2FN, 28.0), (F8E4M3FN, 448.0), (F8E5M2, 57344.0)] {
        let values = tensor(element, vec![100, 100], None, Rule::Normal, 3).unwrap().to_f64();
        assert!(values.iter().all(|v| v.is_finite()));
        assert!(values.contains(&largest) && values.contains(&-largest));
    }
    let values = tensor(F8E4M3FN, vec![100, 100], None, Rule::Exact, 3).unwrap().to_f64();
    assert!(
        (-12..=12).all(|i| values.contains(&(f64::from(i) / 4.0))) && values.iter().all(|v| v.abs() <= 3.0)
    );
    let values = tensor(F8E5M2, vec![100, 100], None, Rule::Exact, 3).unwrap().to_f64();
    assert!(
        (-8..=8).all(|i| values.contains(&(f64::from(i) / 2.0))) && values.iter().all(|v| v.abs() <= 4.0)
    );
}

#[test]
fn tensors_look_normal_and_scalars_are_moderate_positive_numbers() {
    for element in [F16, BF16, F32] {
        let values = tensor(element, vec![64, 64], None, Rule::Normal, 8).unwrap().to_f64();
        let mean = values.iter().sum::<f64>() / 4096.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4096.0;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "mean {mean}, variance {variance}");
        for dims in [vec![], vec![1]] {
            let scalars: Vec<f64> = (0..100)
                .map(|seed| tensor(element, dims.clone(), None, Rule::Exact, seed).unwrap().to_f64()[0])
                .collect();
            assert!(scalars.iter().all(|v| (0.25..2.0).contains(v)));
            assert!(scalars.iter().any(|v| *v < 0.5) && scalars.iter().any(|v| *v > 1.0));
        }
    }
    let alpha = tensor(F32, vec![1], None, Rule::Normal, 1).unwrap().to_f64()[0];
    assert_ne!(f64::from(half::f16::from_f64(alpha).to_f32()), alpha, "the mantissa is full");
    let integers = tensor(I32, vec![1000], None, Rule::Normal, 8).unwrap().to_f64();
    assert!((-8..=8).all(|i| integers.contains(&f64::from(i))) && integers.iter().all(|v| v.abs() <= 8.0));
    let coins = tensor(I1, vec![1000], None, Rule::Normal, 8).unwrap().to_codes();
    assert!((400..600).contains(&coins.iter().filter(|coin| **coin == 1).count()));
}

/// A product of groups, whose ends come as a matrix, and a gather.
fn grouped(groups: u64) -> Program {
    let text = format!(
        "fir 1
func @main(%x: tensor<[M, 32], bf16>, %w: tensor<[{groups}, 6, 32], f4E2M1FN>,
    %sw: tensor<[{groups}, 6, 2], f8E4M3FN, linear>, %ends: tensor<[{groups}, 1], i32>, %ids: tensor<[9, 2], i32>,
    %rows: tensor<[5], i32>, %free: tensor<[4000], i32>) {{
  %flat = reshape %ends : tensor<[{groups}], i32>
  %d = grouped_scaled_mma %x, %w, %sw, %flat {{block = 16}} : tensor<[M, 6], f32>
  %positions, %of, %last = group_rows %ids {{groups = 3}} : tensor<[18], i32>, tensor<[18], i32>, tensor<[3], i32>
  %some = gather %d, %rows {{axis = 0}} : tensor<[5, 6], f32>
  return %d, %positions, %some, %free
}}"
    );
    crate::load(&text).unwrap().0
}

#[test]
fn ends_of_groups_have_the_distribution_of_the_seed() {
    for groups in [1, 2, 8, 32, 128] {
        let program = grouped(groups);
        for (seed, rows) in (0..25).flat_map(|seed| [1, 7, 64, 128, 300].map(|rows| (seed, rows))) {
            let drawn = inputs(&program, &recipe(Rule::Exact, seed, rows)).unwrap();
            let bound = crate::bind::bind(&program, &drawn).unwrap();
            interpret(&program, &bound).expect("the ends ascend and the indices have a row");
            let ends = drawn["ends"].to_f64();
            let starts = std::iter::once(0.0).chain(ends.iter().copied());
            let sizes: Vec<f64> = ends.iter().zip(starts).map(|(end, start)| end - start).collect();
            assert!(sizes.iter().all(|size| *size >= 0.0), "{sizes:?}");
            let (total, empty) = (ends[ends.len() - 1], sizes.iter().filter(|size| **size == 0.0).count());
            let largest = sizes.iter().copied().fold(0.0, f64::max);
            let (all, groups) = (rows as f64, groups as f64);
            match Distribution::of_seed(seed) {
                Distribution::Equal => {
                    assert_eq!(total, all);
                    assert!(sizes.iter().all(|size| (size - all / groups).abs() < 1.0));
                }
                Distribution::Uniform => {
                    assert_eq!(total, all);
                    assert!(all < 10.0 * groups || sizes.iter().all(|size| *size < 4.0 * all / groups));
                }
                Distribution::One => assert!(largest == all && total == all),
                Distribution::Sparse => assert!(total == all && empty >= groups as usize / 2),
                Distribution::Single => assert!(largest == 1.0 && total == all.min(groups)),
            }
        }
    }
}

#[test]
fn counts_of_groups_have_the_distribution_of_the_seed() {
    let text = "fir 1
func @main(%x: tensor<[40, M, 32], bf16>, %w: tensor<[40, 6, 32], f4E2M1FN>,
    %sw: tensor<[40, 6, 2], f8E4M3FN, linear>, %counts: tensor<[40], i32>) {
  %d = masked_scaled_mma %x, %w, %sw, %counts {block = 16} : tensor<[40, M, 6], f32>
  return %d
}";
    let program = crate::load(text).unwrap().0;
    for (seed, rows) in (0..25).flat_map(|seed| [1, 7, 64].map(|rows| (seed, rows))) {
        let drawn = inputs(&program, &recipe(Rule::Exact, seed, rows)).unwrap();
        let bound = crate::bind::bind(&program, &drawn).unwrap();
        interpret(&program, &bound).expect("no count exceeds the rows");
        let counts = drawn["counts"].to_f64();
        let of = |number: f64| counts.iter().filter(|count| **count == number).count();
        match Distribution::of_seed(seed) {
            Distribution::Equal => assert_eq!(of(rows as f64), 40),
            Distribution::Uniform => assert!(of(0.0) < 40 && of(rows as f64) < 40),
            Distribution::One => assert_eq!((of(0.0), of(rows as f64)), (39, 1)),
            Distribution::Sparse => assert!((10..40).contains(&of(0.0))),
            Distribution::Single => assert_eq!(of(1.0), 40),
        }
    }
}

#[test]
fn ends_of_groups_that_are_indices_too_are_below_the_extent() {
    let text = "fir 1
func @main(%x: tensor<[M, 32], bf16>, %w: tensor<[4, 6, 32], f4E2M1FN>, %sw: tensor<[4, 6, 2], f8E4M3FN, linear>,
    %ends: tensor<[4], i32>, %table: tensor<[3, 5], f32>) {
  %d = grouped_scaled_mma %x, %w, %sw, %ends {block = 16} : tensor<[M, 6], f32>
  %some = gather %table, %ends {axis = 0} : tensor<[4, 5], f32>
  return %d, %some
}";
    let program = crate::load(text).unwrap().0;
    for (seed, rows) in (0..25).flat_map(|seed| [1, 2, 7, 40].map(|rows| (seed, rows))) {
        let drawn = inputs(&program, &recipe(Rule::Normal, seed, rows)).unwrap();
        let bound = crate::bind::bind(&program, &drawn).unwrap();
        interpret(&program, &bound).expect("the ends ascend and are indices of the table");
    }
}

#[test]
fn only_integers_that_ops_use_as_indices_are_drawn_for_them() {
    let program = grouped(8);
    let drawn = inputs(&program, &recipe(Rule::Normal, 11, 40)).unwrap();
    let is_below = |name: &str, extent: f64| {
        let numbers = drawn[name].to_f64();
        numbers.iter().all(|number| (0.0..extent).contains(number))
            && numbers.iter().any(|number| *number > 0.0)
    };
    assert!(is_below("ids", 3.0) && is_below("rows", 40.0));
    assert_eq!(drawn["free"], tensor(I32, vec![4000], None, Rule::Normal, 11 ^ fnv1a("free")).unwrap());
    let exact = inputs(&program, &recipe(Rule::Exact, 11, 40)).unwrap();
    assert_eq!(exact["x"], unscaled_operand(BF16, vec![40, 32], Rule::Exact, 11 ^ fnv1a("x")).unwrap());
}
