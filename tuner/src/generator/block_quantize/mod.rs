//! Kernels for the op `block_quantize`.
//!
//! A kernel quantizes values `[L, M, K]` to packed e2m1 codes and one scale per block of a row, bit-equal to the
//! interpreter. It uses the common kernel interface: A is the values, K is divided into blocks, and N is 1. For NVFP4,
//! the first epilogue operand is the per-tensor scale, an f32. The first output is the codes, the second the scales.
//!
//! Each thread holds `values` consecutive values of a block. The threads of a block exchange their largest magnitude by
//! warp shuffles, and each computes the scale. The arithmetic is the quantization code of `codegen`'s epilogues.

mod rules;
mod settings;
mod workload;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{
    KernelSource, Target, Templated, emit_template, quantization_functions, scale_functions,
};
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};
use serde::Serialize;

use self::settings::{Format, PARAMETERS, Padding, Settings};
use super::{Broken, Configured, Generator, Parameter, Work, Workload};
use crate::parameters::Parameters;
use crate::problem::Problem;

const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The targets, each with the SASS mnemonic of its conversion to e2m1. A target without one is checked for a store
/// instead, which a kernel without its work would not contain.
const TARGETS: [(&str, Option<&str>); 5] = [
    ("sm_100a", Some(CONVERSION)),
    ("sm_103a", Some(CONVERSION)),
    ("sm_120a", Some(CONVERSION)),
    ("sm_121a", Some(CONVERSION)),
    ("sm_90a", None),
];
const CONVERSION: &str = "F2FP.SATFINITE.E2M1";
const STORE: &str = "STG";

/// The type of block-quantization kernels.
#[derive(Clone, Copy, Debug)]
pub struct BlockQuantize;

impl Generator for BlockQuantize {
    fn name(&self) -> &'static str {
        "block_quantize"
    }

    fn about(&self) -> &'static str {
        "quantizes the rows of a matrix in blocks: bf16, f16 or f32 to FP4 codes with one scale per block"
    }

    fn targets(&self) -> &'static [&'static str] {
        const NAMES: [&str; TARGETS.len()] =
            [TARGETS[0].0, TARGETS[1].0, TARGETS[2].0, TARGETS[3].0, TARGETS[4].0];
        &NAMES
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        _: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>> {
        let settings = Settings::read(parameters)?;
        rules::check(&settings, target)?;
        Ok(Box::new(Quantizer { settings, target }))
    }
}

/// A configured block-quantization kernel.
#[derive(Clone, Debug)]
struct Quantizer {
    settings: Settings,
    target: &'static Target,
}

impl Configured for Quantizer {
    fn name(&self) -> String {
        let Settings { input, format, layout, padding, threads, values, turns, rows } = self.settings;
        let padding = match padding {
            Padding::Kernel => "",
            Padding::Memset => "_memset",
        };
        format!("quantize_{input}_{format}_{layout}_t{threads}v{values}x{turns}r{rows}{padding}")
    }

    fn source(&self) -> KernelSource {
        let conversion = TARGETS.iter().find(|(name, _)| *name == self.target.name).and_then(|it| it.1);
        emit_template(Templated {
            template: TEMPLATE,
            kernel: self.name(),
            target: self.target,
            opcode: conversion.unwrap_or(STORE),
            context: self.context(conversion.is_some()),
        })
    }

    fn takes(&self, problem: &Problem) -> Result<(), String> {
        /// The interface's limit for scales in the padded layout.
        const MOST_SCALE_BYTES: u64 = i32::MAX as u64;
        let Problem { l, m, n, k } = *problem;
        let block = self.settings.format.block();
        if n != 1 {
            return Err(format!(
                "N is {n}; a matrix to be quantized has M rows of K values, and N must be 1"
            ));
        }
        if !k.is_multiple_of(block) {
            return Err(format!("K is {k}, which is not a multiple of {block}"));
        }
        let bytes = m.next_multiple_of(128).checked_mul((k / block).next_multiple_of(4));
        match bytes.and_then(|bytes| bytes.checked_mul(l)) {
            Some(bytes) if bytes <= MOST_SCALE_BYTES => Ok(()),
            _ => Err("the scales take 2^31 bytes or more in the padded layout".to_owned()),
        }
    }

    fn workload(&self, problem: &Problem, seed: u64) -> Result<Workload, String> {
        self.takes(problem)?;
        workload::workload(&self.settings, problem, seed)
    }

    fn workload_key(&self) -> String {
        let Settings { input, format, layout, .. } = self.settings;
        format!("{input} {format} {layout}")
    }

    /// Counts one division per value.
    fn work(&self, problem: &Problem) -> Work {
        let Settings { input, format, layout, .. } = self.settings;
        let Problem { l, m, k, .. } = *problem;
        let (values, blocks) = (l * m * k, k / format.block());
        let scales = match layout {
            ScaleLayout::Linear => l * m * blocks,
            ScaleLayout::Blocked => l * m.next_multiple_of(128) * blocks.next_multiple_of(4),
        };
        let global = if format.has_global() { 4 } else { 0 };
        let bytes = values * input.storage_bits() as u64 / 8 + values / 2 + scales + global;
        Work { bytes, flops: values }
    }
}

/// The variables of the template and of the templates that it extends.
#[derive(Serialize)]
struct Context {
    formula: [String; 1],
    signature: String,
    input: String,
    values_of_word: usize,
    block: u64,
    blocks_type: &'static str,
    has_global: bool,
    is_blocked: bool,
    writes_padding: bool,
    threads: u32,
    values: u32,
    turns: u32,
    rows: u32,
    has_conversion: bool,
    quantization_functions: &'static str,
    scale_functions: &'static str,
    /// Empty: the kernel needs no CUTLASS header.
    head: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: u32,
    required_pointers: &'static str,
    scalars: [&'static str; 0],
    operand_alignments: Vec<u32>,
    n_multiple: u32,
    outputs: [Output; 2],
    clears: Vec<Clear>,
}

/// An output tensor.
#[derive(Serialize)]
struct Output {
    bytes: String,
    alignment: u32,
    /// 0: the template itself computes the offsets of scales.
    scale_block: u32,
}

/// A memset before the kernel runs.
#[derive(Serialize)]
struct Clear {
    output: u32,
    byte: &'static str,
    condition: String,
    why: &'static str,
}

impl Quantizer {
    fn context(&self, has_conversion: bool) -> Context {
        let Settings { input, format, layout, padding, threads, values, turns, rows } = self.settings;
        let (block, is_blocked) = (format.block(), layout == ScaleLayout::Blocked);
        let (scale, rounding) = match format {
            Format::Nvfp4 => (ElementType::F8E4M3FN, ""),
            Format::Mxfp4(ScaleRounding::Floor) => (ElementType::F8E8M0FNU, ":floor"),
            Format::Mxfp4(ScaleRounding::Ceil) => (ElementType::F8E8M0FNU, ":ceil"),
        };
        let global = if format.has_global() { "*x0" } else { "" };
        let how = if format.has_global() { ", global x0" } else { "" };
        let scale_bytes = match layout {
            ScaleLayout::Blocked => format!("l * scale_bytes(m, problem.k / {block})"),
            ScaleLayout::Linear => format!("l * m * (problem.k / {block})"),
        };
        let clear = Clear {
            output: 1,
            byte: "0x00",
            condition: format!(" && (problem.m % 128 != 0 || problem.k / {block} % 4 != 0)"),
            why: "Scales beyond the last row and column are zero.",
        };
        let output = |bytes| Output { bytes, alignment: 16, scale_block: 0 };
        Context {
            formula: [format!("y0[l, m, k], y1[l, m, k / {block}] = quantize(a[l, m, k]; {format}{how})")],
            signature: format!("a={input} q=f4E2M1FN:{scale}/{block}{rounding}{global} {layout}"),
            input: input.to_string(),
            values_of_word: 32 / input.storage_bits(),
            block,
            blocks_type: match format {
                Format::Nvfp4 => "Nvfp4",
                Format::Mxfp4(ScaleRounding::Floor) => "Mx<E2m1, false>",
                Format::Mxfp4(ScaleRounding::Ceil) => "Mx<E2m1, true>",
            },
            has_global: format.has_global(),
            is_blocked,
            writes_padding: is_blocked && padding == Padding::Kernel,
            threads,
            values,
            turns,
            rows,
            has_conversion,
            quantization_functions: quantization_functions(),
            scale_functions: scale_functions(),
            head: "",
            load_parameter: "",
            load_argument: "",
            shared_bytes: 0,
            required_pointers: "pointers.a",
            scalars: [],
            operand_alignments: if format.has_global() { vec![4] } else { Vec::new() },
            n_multiple: 1,
            outputs: [output("l * m * problem.k / 2".to_owned()), output(scale_bytes)],
            clears: if padding == Padding::Memset { vec![clear] } else { Vec::new() },
        }
    }
}
