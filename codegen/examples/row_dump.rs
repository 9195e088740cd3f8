//! Emits some row kernels, for experiments.
use fourfold_codegen::row::{Configuration, RowSpec};
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::*;
use fourfold_scheduler::*;
use RowRef::{Operand as X, Step as S};
use RowStepKind as K;
fn x(shape: OperandShape, element: ElementType) -> RowOperand { RowOperand { shape, element } }
fn s(kind: K, operands: &[RowRef], element: ElementType, shape: OperandShape) -> RowStep { RowStep { kind, operands: operands.to_vec(), element, shape } }
fn q(of: RowRef, global: Option<usize>) -> RowOutput {
    RowOutput { of, kind: RowOutputKind::Quantized { format: QuantizedFormat { element: ElementType::F4E2M1FN, scale: ElementType::F8E4M3FN, block: 16 }, layout: ScaleLayout::Blocked, global, scale_rounding: None, formula: Nvfp4Formula::DEFAULT } }
}
fn v(of: RowRef) -> RowOutput { RowOutput { of, kind: RowOutputKind::Value } }
fn main() {
    use ElementType::{BF16, F32};
    use OperandShape::{Column as C, Matrix as M, Row as R, Scalar as O};
    let bits = |f: f32| f.to_bits();
    let programs: Vec<(&str, RowProgram)> = vec![
        ("rms", RowProgram {
            operands: vec![x(M, BF16), x(R, BF16), x(O, F32)],
            steps: vec![
                s(K::Convert, &[X(0)], F32, M),
                s(K::Binary(BinaryKind::Mul), &[S(0), S(0)], F32, M),
                s(K::Reduce(ReduceKind::Mean), &[S(1)], F32, C),
                s(K::Constant(bits(1e-6)), &[], F32, O),
                s(K::Binary(BinaryKind::Add), &[S(2), S(3)], F32, C),
                s(K::Unary(UnaryKind::Rsqrt), &[S(4)], F32, C),
                s(K::Binary(BinaryKind::Mul), &[S(0), S(5)], F32, M),
                s(K::Convert, &[S(6)], BF16, M),
                s(K::Binary(BinaryKind::Mul), &[S(7), X(1)], BF16, M),
            ],
            outputs: vec![q(S(8), Some(2))],
        }),
        ("softmax", RowProgram {
            operands: vec![x(M, BF16)],
            steps: vec![
                s(K::Reduce(ReduceKind::Max), &[X(0)], F32, C),
                s(K::Binary(BinaryKind::Sub), &[X(0), S(0)], F32, M),
                s(K::Unary(UnaryKind::Exp), &[S(1)], F32, M),
                s(K::Reduce(ReduceKind::Sum), &[S(2)], F32, C),
                s(K::Binary(BinaryKind::Div), &[S(2), S(3)], BF16, M),
            ],
            outputs: vec![v(S(4))],
        }),
        ("silu", RowProgram {
            operands: vec![x(M, BF16), x(M, BF16), x(O, F32)],
            steps: vec![
                s(K::Unary(UnaryKind::Silu), &[X(0)], BF16, M),
                s(K::Binary(BinaryKind::Mul), &[S(0), X(1)], BF16, M),
            ],
            outputs: vec![q(S(1), Some(2))],
        }),
        ("sum", RowProgram {
            operands: vec![x(M, BF16)],
            steps: vec![s(K::Reduce(ReduceKind::Sum), &[X(0)], BF16, C)],
            outputs: vec![v(S(0))],
        }),
    ];
    let target = fourfold_codegen::target(&std::env::args().nth(2).unwrap()).unwrap();
    let columns: u64 = std::env::args().nth(3).unwrap().parse().unwrap();
    for (name, program) in programs {
        let configuration = Configuration::usual(&program, Some(columns));
        let source = RowSpec { target, configuration, program }.emit();
        let path = format!("{}/{name}.cu", std::env::args().nth(1).unwrap());
        std::fs::write(path, source.text).unwrap();
        println!("{name} {}", source.kernel);
    }
}
