//! Applies 10,000 random mutations to the fixtures. Each result is a program or is rejected with errors, and a
//! program is partitioned, checked and, if it is small, run.

use fourfold::ir::Program;
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::{Backend, codegen};
use fourfold_tests::random::Random;

const MUTATIONS: usize = 10_000;
/// The largest number of elements of a value in a program that is run: a mutated extent may exceed all memory.
const MOST_ELEMENTS: u64 = 1 << 16;
/// The same for M·N·K of one multiplication.
const MOST_PRODUCTS: u64 = 1 << 22;

#[test]
fn mutated_fixtures_never_panic() {
    let sources: Vec<String> = fourfold_tests::fixtures()
        .expect("fixtures can be listed")
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("fixtures can be read"))
        // The text after the marker is comments, which would dilute the mutations.
        .map(|source| source.split("; --- expected").next().unwrap_or_default().to_owned())
        .collect();
    let backends: Vec<Backend> = codegen::TARGETS
        .iter()
        .map(|target| fourfold_tests::backend(target.name).expect("a known target"))
        .collect();
    let mut random = Random::new(0xF00D);
    let (mut refused, mut planned, mut ran) = (0, 0, 0);
    for _ in 0..MUTATIONS {
        let mut source = random.pick(&sources);
        // Half of the mutations stay close to a program; the others need not.
        if random.percent(50) {
            source = exchange(&source, &mut random);
        } else {
            for _ in 0..1 + random.below(3) {
                source = mutate(&source, &sources, &mut random);
            }
        }
        match fourfold::ir::load(&source) {
            Err(errors) => {
                refused += 1;
                assert!(!errors.is_empty(), "a rejection has no error:\n{source}");
                for error in errors {
                    assert!(!error.render("mutant.fir", &source).is_empty());
                }
            }
            Ok((program, _)) => {
                planned += 1;
                let backend = random.pick(&backends);
                let small = is_small(&program);
                let plan = backend.plan(program);
                if let Err(error) = backend.check(&plan) {
                    panic!("{error}\n{source}");
                }
                if small {
                    let symbols = plan.program().module().symbols.values();
                    let symbols = symbols.map(|name| (name.clone(), 5)).collect();
                    let recipe = Recipe { rule: Rule::Normal, seed: 1, symbols };
                    if let Ok(inputs) = sample::inputs(plan.program(), &recipe) {
                        ran += usize::from(plan.run(&inputs, &Default::default()).is_ok());
                    }
                }
            }
        }
    }
    println!("{refused} rejected, {planned} planned, {ran} run");
    assert!(
        refused > MUTATIONS / 4 && planned > MUTATIONS / 20 && ran > 100,
        "the mutations reach every stage"
    );
}

fn is_small(program: &Program) -> bool {
    let module = program.module();
    let extent = |dim: &fourfold::ir::Dim| {
        dim.symbols().iter().fold(dim.constant(), |product, _| product.saturating_mul(5)).max(1)
    };
    let elements = |shape: &[fourfold::ir::Dim]| shape.iter().map(extent).fold(1u64, u64::saturating_mul);
    module.values.values().all(|value| elements(&value.ty.shape) <= MOST_ELEMENTS)
        && module.ops.values().all(|operation| {
            let result = operation.results.first().map_or(1, |result| elements(&module.ty(*result).shape));
            let k =
                operation.operands.first().and_then(|a| module.ty(*a).shape.last().map(extent)).unwrap_or(1);
            result.saturating_mul(k) <= MOST_PRODUCTS
        })
}

/// Replaces a token by another of its kind: a value, a number, a type, a layout.
fn exchange(source: &str, random: &mut Random) -> String {
    const TYPES: [&str; 7] = ["f4E2M1FN", "f8E4M3FN", "f8E8M0FNU", "f16", "bf16", "f32", "i1"];
    const LAYOUTS: [&str; 2] = ["linear", "blocked"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_.%".contains(c);
    let mut tokens: Vec<String> = Vec::new();
    for c in source.chars() {
        match tokens.last_mut() {
            Some(token) if is_word(c) && token.ends_with(is_word) => token.push(c),
            _ => tokens.push(c.to_string()),
        }
    }
    let body = tokens.iter().position(|token| token == "func").unwrap_or(0);
    for _ in 0..20 {
        let at = body + random.below(tokens.len() - body);
        let token = tokens[at].clone();
        let kind = |other: &&String| {
            (token.starts_with('%') && other.starts_with('%'))
                || (token.parse::<u64>().is_ok() && other.parse::<u64>().is_ok())
        };
        let peers: Vec<&String> = tokens[body..].iter().filter(kind).collect();
        tokens[at] = if TYPES.contains(&token.as_str()) {
            random.pick(&TYPES).to_owned()
        } else if LAYOUTS.contains(&token.as_str()) {
            random.pick(&LAYOUTS).to_owned()
        } else if peers.is_empty() {
            continue;
        } else {
            random.pick(&peers).clone()
        };
        break;
    }
    tokens.concat()
}

fn mutate(source: &str, sources: &[String], random: &mut Random) -> String {
    let mut bytes = source.as_bytes().to_vec();
    if bytes.is_empty() {
        return "fir 1".to_owned();
    }
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes[at] = (random.bits() & 0x7F) as u8,
        1 => {
            bytes.remove(at);
        }
        2 => bytes.insert(at, random.pick(b"%{}[](),:=<>*-;@.0129aMf\n \xC3")),
        3 => bytes.truncate(at),
        4 | 5 => {
            // Another token of the same kind, from any fixture.
            let words: Vec<&str> = source.split_inclusive([' ', ',', '\n']).collect();
            let donor = random.pick(sources);
            let donors: Vec<&str> = donor.split_inclusive([' ', ',', '\n']).collect();
            let mut words: Vec<&str> = words;
            let index = random.below(words.len());
            words[index] = donors[random.below(donors.len())];
            return words.concat();
        }
        6 => {
            // Another number: extents, blocks, axes.
            let digits: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                let index = digits[random.below(digits.len())];
                bytes[index] = b'0' + random.below(10) as u8;
            }
        }
        _ => {
            // A line moved, repeated or lost.
            let mut lines: Vec<&str> = source.split_inclusive('\n').collect();
            let (from, to) = (random.below(lines.len()), random.below(lines.len()));
            match random.below(3) {
                0 => lines.swap(from, to),
                1 => lines.insert(to, lines[from]),
                _ => {
                    lines.remove(from);
                }
            }
            return lines.concat();
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
