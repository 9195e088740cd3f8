//! Imports graphs with operators of ONNX Runtime and TensorRT, and compares with results computed in f64.

#[path = "support/onnx_file.rs"]
mod onnx_file;

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use fourfold::{Backend, DeviceChoice, Options};
use fourfold_executor::{RunOptions, TensorSource, run};
use fourfold_import::{Import, ImportOptions, ImportedProgram, import};
use fourfold_ir::{Capabilities, ElementType, Entity, Program, Tensor, bind, interpret, verify};
use fourfold_scheduler::partition;
use rten_onnx::onnx::{DataType, NodeProto, TensorProto};

use onnx_file::{Numbers, from_domain, model_of, node, tensor, value};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const M: usize = 3;
const N: usize = 8;
const K: usize = 64;

/// The relative error of sums in f32.
const EXACT: f64 = 1e-6;

/// The magnitudes of E2M1, by code.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of an E4M3 byte.
fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xF), f64::from(byte & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The code among `values`, ascending, that is nearest to a magnitude. Ties go to the even code.
fn nearest(magnitude: f64, values: impl Iterator<Item = f64>) -> u8 {
    let distances = values.enumerate().map(|(code, value)| (code as u8, (value - magnitude).abs()));
    let is_odd = |code: u8| code & 1;
    distances
        .min_by(|(one, near), (other, also)| near.total_cmp(also).then(is_odd(*one).cmp(&is_odd(*other))))
        .map_or(0, |(code, _)| code)
}

/// Quantizes rows to NVFP4 with a global scale, and dequantizes them.
fn nvfp4(values: &[f64], global: f64) -> Vec<f64> {
    let of_block = |block: &[f64]| -> Vec<f64> {
        let amax = block.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let scale = e4m3(nearest(amax / 6.0 / global, (0..0x7F).map(e4m3))) * global;
        let of = |v: &f64| E2M1[usize::from(nearest(v.abs() / scale, E2M1.into_iter()))] * scale * v.signum();
        block.iter().map(of).collect()
    };
    values.chunks(16).flat_map(of_block).collect()
}

/// x · wᵀ + bias.
fn product(x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let of = |row: &[f64], n: usize| {
        let sum: f64 = row.iter().zip(&w[n * K..]).map(|(x, w)| x * w).sum();
        sum + bias.map_or(0.0, |bias| bias[n])
    };
    x.chunks(K).flat_map(|row| (0..N).map(move |n| of(row, n))).collect()
}

/// Numbers between -4 and 4 of 11 bits, which f16 represents.
fn floats(count: usize, seed: u64) -> Vec<f64> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| (numbers.below(2047) as f64 - 1023.0) / 256.0).collect()
}

fn bytes(count: usize, seed: u64, make: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| make(numbers.below(1 << 16))).collect()
}

fn f32_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
}

/// Values of an FP4 weight in packed bytes, of which the low nibble comes first.
fn fp4_values(packed: &[u8]) -> Vec<f64> {
    let of = |code: u8| E2M1[usize::from(code & 7)] * if code & 8 == 0 { 1.0 } else { -1.0 };
    packed.iter().flat_map(|byte| [of(byte & 0xF), of(byte >> 4)]).collect()
}

/// Multiplies each block of `block` values by its scale.
fn scaled(values: &[f64], scales: impl Fn(usize) -> f64, block: usize) -> Vec<f64> {
    values.iter().enumerate().map(|(at, value)| value * scales(at / block)).collect()
}

/// Imports a graph from `x` `[M, K]` to `y` `[M, N]`, and calls `check`.
fn with_import(
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    ty: DataType,
    check: impl FnOnce(&Import, &Path) -> Result<()>,
) -> Result<()> {
    let wide = Some(ElementType::F32);
    let options = ImportOptions { input_type: wide, output_type: wide, ..ImportOptions::default() };
    with_options(nodes, initializers, ty, &options, check)
}

/// Imports a graph of these nodes with options, and checks what came of it.
fn with_options(
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    ty: DataType,
    options: &ImportOptions,
    check: impl FnOnce(&Import, &Path) -> Result<()>,
) -> Result<()> {
    let input = value("x", ty, &[Err("M"), Ok(K as i64)]);
    let output = value("y", ty, &[Err("M"), Ok(N as i64)]);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model_of(nodes, initializers, input, output).write_buf()?)?;
    check(&import(&path, options)?, &path)
}

/// The values of a program's output on the interpreter and on the fallback.
fn outputs(imported: &ImportedProgram, path: &Path, x: &[f64]) -> Result<[Vec<f64>; 2]> {
    let program: Program = verify(imported.module.clone()).map_err(|_| "the program is not valid")?;
    let module = program.module();
    let file = std::fs::read(path)?;
    let mut tensors: HashMap<String, Tensor> = imported.data.iter().cloned().collect();
    for reference in &imported.tensors {
        let TensorSource::Bytes { start, end, .. } = &reference.source else {
            return Err("a tensor of an ONNX file has no name".into());
        };
        let ty = module.ty(program.facts().value_named(&reference.input).ok_or("the input is missing")?);
        let dims = ty.shape.iter().map(|dim| dim.as_fixed().unwrap_or(0) as usize).collect();
        let part = file[*start as usize..*end as usize].to_vec();
        tensors.insert(reference.input.clone(), Tensor::new(ty.element, dims, ty.layout, part)?);
    }
    let input = module.inputs.iter().find(|input| !tensors.contains_key(module.name_of(**input)));
    let name = module.name_of(*input.ok_or("the program has no input")?).to_owned();
    tensors.insert(name, Tensor::from_f64(ElementType::F32, vec![M, K], None, x)?);
    let bound = bind::bind(&program, &tensors)?;
    let values = interpret(&program, &bound)?;
    let capabilities = Capabilities {
        target: "cpu".into(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
    };
    let done = run(&program, &partition(&program, &capabilities), &bound, &RunOptions::default(), None)?;
    let output = module.outputs[0];
    Ok([values[output.index()].to_f64(), done.value(output).ok_or("the run has no output")?.to_f64()])
}

/// Compares every program, of the graph and of its linear, with a result. Each has `kernels` kernels on a GPU.
fn compare(imported: &Import, path: &Path, x: &[f64], expected: &[f64], kernels: usize) -> Result<()> {
    assert!(imported.left_out.is_empty(), "{:?}", imported.left_out);
    let names: Vec<&str> = imported.programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names, ["model", "up"]);
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for program in &imported.programs {
        for found in outputs(program, path, x)? {
            assert_eq!(found.len(), expected.len());
            let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
            let error = differences.fold(0.0, f64::max) / largest;
            assert!(error < EXACT, "{} differs by {error:e}", program.name);
        }
        for target in ["sm_100a", "sm_120a", "sm_90a"] {
            let backend = Backend::new(&Options::default().target(target).device(DeviceChoice::None))?;
            let plan = backend.plan_module(program.module.clone())?;
            assert_eq!(plan.partition().kernels().count(), kernels, "{} for {target}", program.name);
        }
    }
    Ok(())
}

/// The node of `MatMulBlockQuantizedFp4Weight` with these inputs and attributes.
fn fp4_weight(inputs: &[&str], attributes: &[(&str, i64)]) -> NodeProto {
    let mut node = from_domain("com.microsoft", "MatMulBlockQuantizedFp4Weight", inputs, &["y"], attributes);
    node.name = Some("/up/MatMulBlockQuantizedFp4Weight".to_owned());
    node
}

#[test]
fn a_block_quantized_fp4_weight_multiplies_unquantized_activations() -> Result<()> {
    let (x, bias) = (floats(M * K, 1), floats(N, 2));
    for block in [16, 32] {
        let packed = bytes(N * K / 2, 3, |number| number as u8);
        let scales = bytes(N * K / block, 4, |number| 0x20 + (number % 0x40) as u8);
        let global = 0.0123f32;
        let initializers = || {
            let half = Tensor::from_f64(ElementType::F16, vec![N], None, &bias).expect("the bias fits");
            let (rows, blocks) = (N as i64, (K / block) as i64);
            vec![
                tensor("up.weight", DataType::UINT8, &[rows, K as i64 / 2], &packed),
                tensor("up.weight_scale", DataType::UINT8, &[rows, blocks], &scales),
                tensor("up.weight_scale_2", DataType::FLOAT, &[1], &global.to_le_bytes()),
                tensor("up.input_scale", DataType::FLOAT, &[1], &0.5f32.to_le_bytes()),
                tensor("up.bias", DataType::FLOAT16, &[rows], half.bytes()),
            ]
        };
        let w = scaled(&fp4_values(&packed), |at| e4m3(scales[at]) * f64::from(global), block);
        let attributes = [("N", N as i64), ("K", K as i64), ("block_size", block as i64)];
        let weight = ["x", "up.weight", "up.weight_scale", "up.weight_scale_2"];
        // ONNX Runtime reads the scale of the input only in its native FP4 path, which is off by default.
        for (more, bias) in [
            (&[][..], None),
            (&["up.input_scale"], None),
            (&["", "up.bias"], Some(&bias[..])),
            (&["up.input_scale", "up.bias"], Some(&bias[..])),
        ] {
            let node = fp4_weight(&[&weight[..], more].concat(), &attributes);
            with_import(vec![node], initializers(), DataType::FLOAT16, |imported, path| {
                compare(imported, path, &x, &product(&x, &w, bias), 0)
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_block_quantized_fp4_weight_beside_16_bits_is_a_weight_only_kernel_on_hopper() -> Result<()> {
    let (n, k) = (N as i64, K as i64);
    for (ty, format) in [(DataType::FLOAT16, "f16 x nvfp4"), (DataType::BFLOAT16, "bf16 x nvfp4")] {
        let initializers = vec![
            tensor("w", DataType::UINT8, &[n, k / 2], &bytes(N * K / 2, 3, |number| number as u8)),
            tensor(
                "s",
                DataType::UINT8,
                &[n, k / 16],
                &bytes(N * K / 16, 4, |number| 0x20 + (number % 0x40) as u8),
            ),
            tensor("g", DataType::FLOAT, &[1], &0.0123f32.to_le_bytes()),
        ];
        let node = fp4_weight(&["x", "w", "s", "g"], &[("block_size", 16)]);
        with_options(vec![node], initializers, ty, &ImportOptions::default(), |imported, _| {
            assert_eq!(imported.programs.len(), 2);
            for program in &imported.programs {
                let backend = Backend::new(&Options::default().target("sm_90a").device(DeviceChoice::None))?;
                let plan = backend.plan_module(program.module.clone())?;
                let formats: Vec<String> =
                    plan.partition().kernels().map(|(_, plan)| plan.format.to_string()).collect();
                assert_eq!(formats, [format], "{}", program.name);
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_block_quantized_fp4_weight_that_does_not_fit_is_refused() -> Result<()> {
    let (n, k) = (N as i64, K as i64);
    let inputs = ["x", "w", "s", "g"];
    for (inputs, scales, attributes, part) in [
        (inputs, [n, k / 16], vec![("block_size", 64)], "block size 64"),
        (inputs, [n, k / 16], vec![("block_size", -16)], "block size -16"),
        (inputs, [n, k / 32], vec![("block_size", 16)], "does not have the shape [8, 4]"),
        (inputs, [n, k / 16], vec![("N", n + 1)], "its attribute N differs"),
        (inputs, [n, k / 16], vec![("K", k / 2)], "its attribute K differs"),
        (["x", "x", "s", "g"], [n, k / 16], vec![], "its weight is not constant"),
        (["x", "w", "s", "g2"], [n, k / 16], vec![], "input 3 is not one number"),
    ] {
        let count = (scales[0] * scales[1]) as usize;
        let initializers = vec![
            tensor("w", DataType::UINT8, &[n, k / 2], &vec![0; N * K / 2]),
            tensor("s", DataType::UINT8, &scales, &vec![0; count]),
            tensor("g", DataType::FLOAT, &[1], &1f32.to_le_bytes()),
            tensor("g2", DataType::FLOAT, &[2], &[0; 8]),
        ];
        let node = fp4_weight(&inputs, &attributes);
        with_import(vec![node], initializers, DataType::FLOAT16, |imported, _| {
            assert!(imported.programs.is_empty());
            let message = &imported.left_out[0].message;
            assert!(message.contains("/up/MatMul") && message.contains(part), "{message}, not {part}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Transposes a weight and multiplies by it.
fn multiply(x: &str, weight: &str) -> [NodeProto; 2] {
    let mut matmul = node("MatMul", &[x, "w.t"], &["y"]);
    matmul.name = Some("/up/MatMul".to_owned());
    [node("Transpose", &[weight], &["w.t"]), matmul]
}

/// The attributes of quantization in blocks of the last axis.
fn blocks_of(size: i64) -> Vec<(&'static str, i64)> {
    vec![("axis", -1), ("block_size", size)]
}

#[test]
fn a_float_weight_of_fp4qdq_is_quantized_to_nvfp4_and_back() -> Result<()> {
    let (x, w) = (floats(M * K, 5), floats(N * K, 6));
    let initializers = || vec![tensor("up.weight", DataType::FLOAT, &[N as i64, K as i64], &f32_bytes(&w))];
    let quantize = |block| from_domain("trt", "TRT_FP4QDQ", &["up.weight"], &["w"], &blocks_of(block));
    let nodes = |block| [&[quantize(block)][..], &multiply("x", "w")].concat();
    let amax = w.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let rounded = nvfp4(&w, amax / 2688.0);
    assert_ne!(rounded, w, "the quantization rounds");
    with_import(nodes(16), initializers(), DataType::FLOAT, |imported, path| {
        compare(imported, path, &x, &product(&x, &rounded, None), 0)
    })?;
    with_import(nodes(32), initializers(), DataType::FLOAT, |imported, _| {
        assert!(imported.programs.is_empty());
        let message = &imported.left_out[0].message;
        assert!(message.contains("TRT_FP4QDQ") && message.contains("only blocks of 16"), "{message}");
        Ok(())
    })
}

#[test]
fn nvfp4_quantizers_of_tensorrt_become_a_kernel() -> Result<()> {
    let x = floats(M * K, 7);
    let packed = bytes(N * K / 2, 8, |number| number as u8);
    let scales = bytes(N * K / 16, 9, |number| 0x20 + (number % 0x40) as u8);
    let (w_global, x_global) = (0.0071f32, 0.0017f32);
    let (n, k) = (N as i64, K as i64);
    let initializers = vec![
        tensor("up.weight_f4", DataType::FLOAT4E2M1, &[n, k], &packed),
        tensor("up.weight_f8_scale", DataType::FLOAT8E4M3FN, &[n, k / 16], &scales),
        tensor("up.weight_f8_scale_f32_scale", DataType::FLOAT, &[1], &w_global.to_le_bytes()),
        tensor("up.input_scale", DataType::FLOAT, &[], &x_global.to_le_bytes()),
    ];
    let attributes = [("axis", -1), ("block_size", 16), ("scale_type", 17)];
    let quantize = ["x", "up.input_scale"];
    let dequantize = |inputs: &[&str], output: &str, attributes: &[(&str, i64)]| {
        from_domain("", "DequantizeLinear", inputs, &[output], attributes)
    };
    let nodes = [
        from_domain("trt", "TRT_FP4DynamicQuantize", &quantize, &["x.f4", "x.scale"], &attributes),
        dequantize(&["x.scale", "up.input_scale"], "x.factors", &[]),
        dequantize(&["x.f4", "x.factors"], "x.values", &blocks_of(16)),
        dequantize(&["up.weight_f8_scale", "up.weight_f8_scale_f32_scale"], "w.factors", &[]),
        dequantize(&["up.weight_f4", "w.factors"], "w", &blocks_of(16)),
    ];
    let nodes = [&nodes[..], &multiply("x.values", "w")].concat();
    let w = scaled(&fp4_values(&packed), |at| e4m3(scales[at]) * f64::from(w_global), 16);
    let expected = product(&nvfp4(&x, f64::from(x_global)), &w, None);
    with_import(nodes, initializers, DataType::FLOAT, |imported, path| {
        compare(imported, path, &x, &expected, 1)
    })
}

#[test]
fn mxfp8_quantizers_of_tensorrt_have_the_expected_result() -> Result<()> {
    let x = floats(M * K, 10);
    // Finite E4M3 codes, and scales from 2^-7 to 1.
    let codes = bytes(N * K, 11, |number| (number & 0x80) as u8 | (number % 0x7F) as u8);
    let scales = bytes(N * K / 32, 12, |number| 120 + (number % 8) as u8);
    let (n, k) = (N as i64, K as i64);
    let initializers = vec![
        tensor("up.weight", DataType::FLOAT8E4M3FN, &[n, k], &codes),
        tensor("up.weight_scale", DataType::UINT8, &[n, k / 32], &scales),
    ];
    let attributes = [("axis", -1), ("block_size", 32), ("output_dtype", 17)];
    let dequantize = |inputs: &[&str], output: &str| {
        from_domain("trt", "TRT_MXFP8DequantizeLinear", inputs, &[output], &blocks_of(32))
    };
    let nodes = [
        from_domain("trt", "TRT_MXFP8DynamicQuantize", &["x"], &["x.f8", "x.scale"], &attributes),
        dequantize(&["x.f8", "x.scale"], "x.values"),
        dequantize(&["up.weight", "up.weight_scale"], "w"),
    ];
    let nodes = [&nodes[..], &multiply("x.values", "w")].concat();
    let w: Vec<f64> = codes.iter().map(|code| e4m3(*code)).collect();
    let w = scaled(&w, |at| 2f64.powi(i32::from(scales[at]) - 127), 32);
    // The least power of two that brings a block within 448.
    let of_block = |block: &[f64]| -> Vec<f64> {
        let amax = block.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let scale = 2f64.powf((amax / 448.0).log2().ceil());
        let of = |v: &f64| e4m3(nearest(v.abs() / scale, (0..0x7F).map(e4m3))) * scale * v.signum();
        block.iter().map(of).collect()
    };
    let quantized: Vec<f64> = x.chunks(32).flat_map(of_block).collect();
    with_import(nodes, initializers, DataType::FLOAT, |imported, path| {
        compare(imported, path, &x, &product(&quantized, &w, None), 1)
    })
}
