//! Tests of accepted programs, of one rejected program per error, and of totality.

mod accepted;
mod refused;
mod refused_grouped;
mod refused_movement;
mod refused_types;
mod totality;

use expect_test::Expect;

use super::verify;
use crate::builder::{Builder, ScaledMmaOptions};
use crate::diagnostics::Place;
use crate::entities::Value;
use crate::module::Module;
use crate::program::Program;
use crate::types::ElementType::{self, BF16, F4E2M1FN, F8E4M3FN, F16, F32};
use crate::types::ScaleLayout::{self, Blocked, Linear};
use crate::types::{Dim, Shape, TensorType};

fn fixed(extents: &[u64]) -> Shape {
    extents.iter().map(|extent| Dim::fixed(*extent)).collect()
}

/// A type of fixed extents.
fn ty(extents: &[u64], element: ElementType) -> TensorType {
    TensorType::new(fixed(extents), element)
}

/// Scales of fixed extents.
fn sf(extents: &[u64], element: ElementType, layout: ScaleLayout) -> TensorType {
    TensorType::scales(fixed(extents), element, layout)
}

fn accept(module: Module) -> Program {
    match verify(module) {
        Ok(program) => program,
        Err(invalid) => {
            let errors: Vec<String> = invalid
                .errors
                .iter()
                .map(|error| format!("{:?} {}: {}", error.place, error.code(), error.kind))
                .collect();
            panic!("refused:\n{}", errors.join("\n"))
        }
    }
}

/// A program with the body `build`, which returns the outputs.
fn program(build: impl FnOnce(&mut Builder) -> Vec<Value>) -> Module {
    let mut b = Builder::new("main");
    let outputs = build(&mut b);
    b.finish(&outputs)
}

/// Compares the errors of a program, one per line: place, code, message.
#[track_caller]
fn check(build: impl FnOnce(&mut Builder) -> Vec<Value>, expected: Expect) {
    check_module(program(build), expected);
}

#[track_caller]
fn check_module(module: Module, expected: Expect) {
    let text = match verify(module) {
        Ok(_) => "accepted\n".to_owned(),
        Err(invalid) => invalid
            .errors
            .iter()
            .map(|error| {
                let place = match error.place {
                    Place::Module => "module".to_owned(),
                    Place::Input(index) => format!("input {index}"),
                    Place::Op(op) => format!("{op} `{}`", error.op_text.as_deref().unwrap_or("no text")),
                    Place::Output(index) => format!("output {index}"),
                };
                format!("{place}: {}: {}\n", error.code(), error.kind)
            })
            .collect(),
    };
    expected.assert_eq(&text);
}

/// NVFP4 operands a `[.., m, k]`, b `[n, k]` and their scales, as inputs.
fn nvfp4_operands(b: &mut Builder, m: u64, n: u64, k: u64) -> [Value; 4] {
    [
        b.input("a", ty(&[m, k], F4E2M1FN)),
        b.input("sfa", sf(&[m, k / 16], F8E4M3FN, Blocked)),
        b.param("b", ty(&[n, k], F4E2M1FN)),
        b.param("sfb", sf(&[n, k / 16], F8E4M3FN, Linear)),
    ]
}
