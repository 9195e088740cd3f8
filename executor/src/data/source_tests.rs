//! Tests of references, of several files, and of converted dtypes.

mod parts;

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use fourfold_ir::text::parse;
use fourfold_ir::{ElementType, numeric};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

type Stored<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// The header of a file with these tensors, before their bytes. The last one may be larger than its bytes.
fn header(tensors: &[Stored<'_>], last: u64) -> Vec<u8> {
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    let mut start = 0;
    for (at, (name, dtype, shape, bytes)) in tensors.iter().enumerate() {
        let size = if at + 1 == tensors.len() && last > 0 { last } else { bytes.len() as u64 };
        let (name, end) = (serde_json::Value::from(*name), start + size);
        entries.push(format!(
            r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
        start = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes tensors, given by name, dtype, shape and bytes.
    fn write(&self, file: &str, tensors: &[Stored<'_>]) {
        let mut bytes = header(tensors, 0);
        tensors.iter().for_each(|(_, _, _, data)| bytes.extend(data));
        fs::write(self.path(file), bytes).unwrap();
    }

    /// Reads the inputs of a program with these parameters, from data files, references and given files.
    fn read(
        &self,
        inputs: &str,
        (files, references, given): (&[&str], &[&str], &[&str]),
    ) -> Result<DataFile, DataError> {
        let source = format!("fir 1\nfunc @f({inputs}) {{\n  return\n}}\n");
        let module = parse(&source).unwrap_or_else(|errors| panic!("{source}{errors:?}")).module;
        let paths = |names: &[&str]| names.iter().map(|name| self.path(name)).collect();
        let sources = DataSources {
            files: paths(files),
            references: references.iter().map(|text| text.parse().expect(text)).collect(),
            folder: self.0.path().to_owned(),
            given: paths(given),
        };
        sources.read(&module, &[], OtherTensors::Named(&["note"]))
    }

    /// Reads the input `%w` of this type from a reference in `f.safetensors`.
    fn refer(&self, ty: &str, tensor: &str) -> Result<Tensor, DataError> {
        let reference = match tensor.split_once(" as ") {
            Some((tensor, word)) => format!(r#"w = {tensor} in "f.safetensors" as {word}"#),
            None => format!(r#"w = {tensor} in "f.safetensors""#),
        };
        let data = self.read(&format!("%w: tensor<{ty}>"), (&[], &[&reference], &[]));
        data.map(|mut data| data.inputs.remove("w").expect("it is referred to"))
    }
}

#[track_caller]
fn check_error<T: std::fmt::Debug>(result: Result<T, DataError>, parts: &[&str]) {
    let message = crate::chain(&result.expect_err("it is refused"));
    for part in parts {
        assert!(message.contains(part), "`{message}` does not contain `{part}`");
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn f64s(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn indices(count: usize) -> Vec<u8> {
    (0..count as u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn every_dtype_becomes_the_type_of_its_input() {
    let folder = Folder::new();
    let halves = |bits: [u16; 2]| bits.map(u16::to_le_bytes).concat();
    let fp4: Vec<u8> = (0..8).map(|byte| byte * 17 + 1).collect();
    folder.write(
        "f.safetensors",
        &[
            ("f32", "F32", &[2], f32s(&[1.5, -0.0])),
            ("bf16", "BF16", &[2], halves([0x3FC0, 0xFF80])),
            ("f16", "F16", &[2], halves([0x3E00, 0x0001])),
            // The second lies halfway between two floats, the third just above.
            ("f64", "F64", &[4], f64s(&[1.5, 1.0 + 2f64.powi(-24), 1.0 + 2f64.powi(-24) + 1e-12, 1e300])),
            ("e4m3", "F8_E4M3", &[2], vec![1, 0x7F]),
            ("e8m0", "F8_E8M0", &[2], vec![0, 255]),
            ("bytes", "U8", &[2], vec![3, 4]),
            ("fp4", "U8", &[1, 8], fp4.clone()),
            ("words", "U32", &[1, 2], fp4.clone()),
            ("own", "F4", &[1, 16], fp4.clone()),
            ("i32", "I32", &[2], indices(2)),
            ("bool", "BOOL", &[2], vec![0, 7]),
            ("i64", "I64", &[1], vec![0; 8]),
        ],
    );
    let read = |ty: &str, tensor: &str| folder.refer(ty, tensor).unwrap_or_else(|error| panic!("{error:?}"));
    let bits = |tensor: &Tensor| tensor.to_f32().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&read("[2], f32", r#""f32""#)), [0x3FC0_0000, 0x8000_0000]);
    assert_eq!(bits(&read("[2], f32", r#""bf16""#)), [0x3FC0_0000, 0xFF80_0000]);
    assert_eq!(read("[2], f32", r#""f16""#).to_f32(), [1.5, 2f32.powi(-24)]);
    let above = f32::from_bits(1f32.to_bits() + 1);
    assert_eq!(read("[4], f32", r#""f64""#).to_f32(), [1.5, 1.0, above, f32::INFINITY]);
    assert_eq!(read("[4], bf16", r#""f64""#).to_f32(), [1.5, 1.0, 1.0, f32::INFINITY]);
    assert_eq!(read("[4], f16", r#""f64""#).to_f32(), [1.5, 1.0, 1.0, f32::INFINITY]);
    assert_eq!(read("[2], bf16", r#""bf16""#).bytes(), halves([0x3FC0, 0xFF80]));
    assert_eq!(read("[2], f16", r#""f16""#).bytes(), halves([0x3E00, 1]));
    for tensor in [r#""e4m3""#, r#""bytes""#] {
        assert_eq!(read("[2], f8E4M3FN", tensor).element(), ElementType::F8E4M3FN);
    }
    assert_eq!(read("[2], f8E8M0FNU, linear", r#""e8m0""#).bytes(), [0, 255]);
    assert_eq!(read("[2], f8E8M0FNU, linear", r#""bytes""#).bytes(), [3, 4]);
    for tensor in [r#""fp4""#, r#""words""#, r#""own""#] {
        assert_eq!(read("[1, 16], f4E2M1FN", tensor).bytes(), fp4, "{tensor}");
    }
    let swapped = read("[1, 16], f4E2M1FN", r#""fp4" as high_nibble_first"#);
    let codes: Vec<u8> = fp4.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
    assert_eq!(swapped.to_codes(), codes);
    assert_eq!(numeric::e2m1_at(swapped.bytes(), 0), 0);
    assert_eq!(read("[2], i32", r#""i32""#).bytes(), indices(2));
    assert_eq!(read("[2], i1", r#""bool""#).bytes(), [0, 1]);

    let refused = |ty: &str, tensor: &str, parts: &[&str]| check_error(folder.refer(ty, tensor), parts);
    refused(
        "[2], bf16",
        r#""f32""#,
        &["the tensor `f32` does not fit the input `%w", "bf16 is stored as BF16"],
    );
    refused("[2], f16", r#""bf16""#, &["dtype is BF16"]);
    refused("[1], i32", r#""i64""#, &["dtype is I64"]);
    refused("[2], f8E8M0FNU, linear", r#""e4m3""#, &["F8_E8M0 or U8"]);
    refused("[2], f32", r#""f32" as high_nibble_first"#, &["`as high_nibble_first`", "f32 stored as F32"]);
    refused("[1, 16], f4E2M1FN", r#""own" as high_nibble_first"#, &["stored as F4"]);
    refused("[1, 16], f4E2M1FN", r#""words" as high_nibble_first"#, &["stored as U32"]);
}

#[test]
fn extents_of_one_are_free_and_others_are_not() {
    let folder = Folder::new();
    folder.write(
        "f.safetensors",
        &[
            ("w", "F32", &[2, 1, 3], f32s(&[1.0; 6])),
            ("s", "F32", &[], f32s(&[7.0])),
            ("o", "F32", &[1, 1], f32s(&[8.0])),
        ],
    );
    for (ty, dims) in
        [("[2, 3], f32", &[2, 3][..]), ("[2, 1, 3], f32", &[2, 1, 3]), ("[1, 2, 3, 1], f32", &[1, 2, 3, 1])]
    {
        assert_eq!(folder.refer(ty, r#""w""#).unwrap().dims(), dims);
    }
    for tensor in [r#""s""#, r#""o""#, r#""w"[0, 0, 0]"#, r#""w"[1:2, 0, 2]"#] {
        for (ty, rank) in [("[], f32", 0), ("[1], f32", 1), ("[1, 1], f32", 2)] {
            assert_eq!(folder.refer(ty, tensor).unwrap().dims().len(), rank, "{tensor} as {ty}");
        }
    }
    for ty in ["[3, 2], f32", "[6], f32", "[2, 3, 2], f32"] {
        check_error(folder.refer(ty, r#""w""#), &["`w`", "[2, 1, 3] in elements, not"]);
    }
    // A symbol takes the extent of its own axis only.
    assert_eq!(folder.refer("[M, 1, 3], f32", r#""w""#).unwrap().dims(), [2, 1, 3]);
    check_error(folder.refer("[M, 3], f32", r#""w""#), &["not of the form [M, 3]"]);
}

#[test]
fn a_transposed_matrix_of_bytes_is_read_by_rows() {
    let folder = Folder::new();
    let bytes: Vec<u8> = (0..12).collect();
    folder.write(
        "f.safetensors",
        &[
            ("w", "U8", &[2, 2, 3], bytes.clone()),
            ("s", "F8_E4M3", &[4, 3], bytes.clone()),
            ("f", "F32", &[3, 1], f32s(&[1.0; 3])),
        ],
    );
    let codes = folder.refer("[3, 4], f4E2M1FN", r#""w"[1] as transposed"#).unwrap();
    assert_eq!(codes.bytes(), [6, 9, 7, 10, 8, 11]);
    let all = folder.refer("[2, 3, 4], f4E2M1FN", r#""w" as transposed"#).unwrap();
    assert_eq!(all.bytes(), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    let scales = folder.refer("[3, 4], f8E4M3FN, linear", r#""s" as transposed"#).unwrap();
    assert_eq!(scales.bytes(), [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
    for (ty, tensor, parts) in [
        ("[2, 6], f4E2M1FN", r#""w"[1] as transposed"#, &["[3, 4] in elements"][..]),
        ("[4], f4E2M1FN", r#""w"[1, 1] as transposed"#, &["`as transposed` is for matrices of bytes"]),
        ("[1, 3], f32", r#""f" as transposed"#, &["`as transposed`", "stored as F32"]),
        ("[3, 4], f8E4M3FN, blocked", r#""s" as transposed"#, &["not blocked scales"]),
    ] {
        check_error(folder.refer(ty, tensor), parts);
    }
}

#[test]
fn the_blocks_of_fp4_may_be_an_axis() {
    let folder = Folder::new();
    let bytes: Vec<u8> = (0..96).collect();
    folder.write("f.safetensors", &[("w", "U8", &[2, 3, 1, 16], bytes.clone())]);
    for ty in ["[2, 96], f4E2M1FN", "[2, 3, 32], f4E2M1FN", "[192], f4E2M1FN", "[6, 32], f4E2M1FN"] {
        assert_eq!(folder.refer(ty, r#""w""#).unwrap().bytes(), bytes, "{ty}");
    }
    for ty in ["[3, 64], f4E2M1FN", "[96, 2], f4E2M1FN", "[2, 98], f4E2M1FN"] {
        check_error(folder.refer(ty, r#""w""#), &["[2, 3, 1, 32] in elements"]);
    }
}

#[test]
fn blocked_scales_may_have_any_shape_of_their_size() {
    let folder = Folder::new();
    folder.write(
        "f.safetensors",
        &[("s", "U8", &[2, 1, 32, 16], vec![9; 1024]), ("t", "U8", &[512], vec![9; 512])],
    );
    let ty = "[130, 4], f8E4M3FN, blocked";
    assert_eq!(folder.refer(ty, r#""s""#).unwrap().bytes(), [9; 1024]);
    check_error(folder.refer(ty, r#""t""#), &["[512], 512 bytes", "[130, 4] take 1024"]);
    assert!(folder.refer("[128, 4], f8E4M3FN, blocked", r#""s"[1]"#).is_ok());
}

#[test]
fn a_slice_outside_its_tensor_is_refused() {
    let folder = Folder::new();
    folder.write(
        "f.safetensors",
        &[("w", "F32", &[2, 3], f32s(&[0.0; 6])), ("q", "F4", &[2, 6], vec![0x21; 6])],
    );
    for (slice, parts) in [
        ("[2]", &["slice [2] of the tensor `w`", "the slice `2` of axis 0 exceeds its shape [2, 3]"][..]),
        ("[0, 3]", &["`3` of axis 1"]),
        ("[0, 0:4]", &["`0:4` of axis 1"]),
        ("[:, 4:4]", &["`4:4` of axis 1"]),
        ("[0:18446744073709551615:18446744073709551615]", &["of axis 0"]),
        ("[0, 0, 0]", &["3 axes, but its shape is [2, 3]"]),
    ] {
        check_error(folder.refer("[3], f32", &format!("\"w\"{slice}")), parts);
    }
    assert_eq!(folder.refer("[0, 3], f32", r#""w"[1:1]"#).unwrap().count(), 0);
    assert_eq!(folder.refer("[1], f32", r#""w"[0:1:18446744073709551615, 2]"#).unwrap().count(), 1);
    let codes = |tensor: &str| folder.refer("[2, 2], f4E2M1FN", tensor).map(|tensor| tensor.to_codes());
    assert_eq!(codes(r#""q"[:, 2:4]"#).unwrap(), [1, 2, 1, 2]);
    check_error(codes(r#""q"[:, 1:3]"#), &["parts of bytes"]);
    check_error(codes(r#""q"[:, 0:4:2]"#), &["parts of bytes"]);
}

/// The linear indices that a slice of a shape takes, in row-major order, and the extents that stay.
fn taken(shape: &[usize], slice: &[AxisSlice]) -> (Vec<u32>, Vec<usize>) {
    let (mut all, mut dims) = (vec![0u32], Vec::new());
    for (axis, &extent) in shape.iter().enumerate() {
        let of_axis: Vec<u64> = match slice.get(axis).copied().unwrap_or(AxisSlice::Whole) {
            AxisSlice::Whole => (0..extent as u64).collect(),
            AxisSlice::Index(index) => vec![index],
            AxisSlice::Range { start, end, step } => (start..end).step_by(step as usize).collect(),
        };
        if !matches!(slice.get(axis), Some(AxisSlice::Index(_))) {
            dims.push(of_axis.len());
        }
        all = all
            .iter()
            .flat_map(|before| of_axis.iter().map(move |index| before * extent as u32 + *index as u32))
            .collect();
    }
    (all, dims)
}

fn check_slice(shape: &[usize], slice: Vec<AxisSlice>) {
    let folder = Folder::new();
    let count = shape.iter().product();
    folder
        .write("f.safetensors", &[("before", "U8", &[8], vec![255; 8]), ("w", "I32", shape, indices(count))]);
    let (expected, dims) = taken(shape, &slice);
    let extents: Vec<String> = dims.iter().map(ToString::to_string).collect();
    let reference = TensorReference::tensor("w", "w").sliced(slice).to_string();
    let (_, tensor) = reference.split_once(" = ").unwrap();
    let read = folder.refer(&format!("[{}], i32", extents.join(", ")), tensor).expect(&reference);
    let bytes: Vec<u8> = expected.iter().flat_map(|index| index.to_le_bytes()).collect();
    assert_eq!((read.dims(), read.bytes()), (dims.as_slice(), bytes.as_slice()), "{reference}");
}

#[test]
fn far_and_near_runs_are_read() {
    let range = |start, end, step| AxisSlice::Range { start, end, step };
    // Single elements far apart, near ones over several windows, long runs, and whole rows.
    check_slice(&[90, 2000], vec![AxisSlice::Whole, AxisSlice::Index(1999)]);
    check_slice(&[90, 2000], vec![range(1, 90, 3), range(5, 2000, 2)]);
    check_slice(&[9, 9000], vec![range(0, 9, 2), range(10, 8999, 1)]);
    check_slice(&[40_000], vec![range(3, 40_000, 7)]);
    check_slice(&[3, 5, 700], vec![AxisSlice::Index(1), range(1, 5, 2)]);
}

fn sliced_shape() -> impl Strategy<Value = (Vec<usize>, Vec<AxisSlice>)> {
    prop::collection::vec(1usize..9, 1..5).prop_flat_map(|shape| {
        let axes: Vec<_> = shape
            .iter()
            .map(|&extent| {
                let extent = extent as u64;
                prop_oneof![
                    Just(AxisSlice::Whole),
                    (0..extent).prop_map(AxisSlice::Index),
                    (0..=extent, 0..=extent, 1u64..5).prop_map(|(a, b, step)| AxisSlice::Range {
                        start: a.min(b),
                        end: a.max(b),
                        step
                    }),
                ]
            })
            .collect();
        let count = 0..=axes.len();
        (Just(shape), axes, count).prop_map(|(shape, mut axes, count)| {
            axes.truncate(count);
            (shape, axes)
        })
    })
}

proptest! {
    #[test]
    fn a_slice_takes_what_its_indices_say((shape, slice) in sliced_shape()) {
        check_slice(&shape, slice);
    }
}

#[test]
fn bytes_of_any_file_are_a_tensor() {
    let folder = Folder::new();
    fs::write(folder.path("m.onnx"), [&[9; 3][..], &f32s(&[1.0, 2.0, 3.0, 4.0])].concat()).unwrap();
    let read = |inputs: &str, reference: &str| folder.read(inputs, (&["x.safetensors"], &[reference], &[]));
    folder.write("x.safetensors", &[("x", "F32", &[2], f32s(&[0.0; 2]))]);
    let w = read("%w: tensor<[2, 2], f32>", r#"w = bytes 3:19 in "m.onnx""#).unwrap();
    assert_eq!(w.inputs["w"].to_f32(), [1.0, 2.0, 3.0, 4.0]);
    // A range has no shape, so its symbols follow from the other inputs.
    let with_x = "%x: tensor<[M], f32>, %w: tensor<[M, 2], f32>";
    assert_eq!(read(with_x, r#"w = bytes 3:19 in "m.onnx""#).unwrap().inputs["w"].dims(), [2, 2]);
    check_error(read("%w: tensor<[M, 2], f32>", r#"w = bytes 3:19 in "m.onnx""#), &["determine", "`M`"]);
    check_error(
        read(with_x, r#"w = bytes 3:15 in "m.onnx""#),
        &["m.onnx", "range of bytes 3:15", "12 bytes, but [2, 2] f32 takes 16"],
    );
    check_error(read(with_x, r#"w = bytes 4:20 in "m.onnx""#), &["m.onnx", "has 19 bytes", "4:20", "`%w`"]);
    check_error(read(with_x, r#"w = bytes 3:19 in "none.onnx""#), &["none.onnx", "cannot read"]);
    let swapped = read("%w: tensor<[2], f4E2M1FN>", r#"w = bytes 0:1 in "m.onnx" as high_nibble_first"#);
    assert_eq!(swapped.unwrap().inputs["w"].bytes(), [0x90]);
}

#[test]
fn bytes_that_changed_are_an_error() {
    let folder = Folder::new();
    let stored = [&[9; 3][..], &f32s(&[1.0, 2.0])].concat();
    fs::write(folder.path("m.onnx"), &stored).unwrap();
    let own = blake3::hash(&stored[3..11]).to_hex();
    let header = blake3::hash(&stored[..3]).to_hex();
    let read = |reference: &str| folder.read("%w: tensor<[2], f32>", (&[], &[reference], &[]));
    let of_bytes = format!(r#"w = bytes 3:11 blake3 {own} in "m.onnx""#);
    let of_header = format!(r#"w = bytes 3:11 blake3 0:3 {header} in "m.onnx""#);
    for reference in [&of_bytes, &of_header] {
        assert_eq!(read(reference).unwrap().inputs["w"].to_f32(), [1.0, 2.0]);
    }
    let changed = ["m.onnx` has changed", "`%w`", "import the model again"];
    // Other values in the same place, the same values in another place, and a shorter file.
    fs::write(folder.path("m.onnx"), [&[9; 3][..], &f32s(&[1.0, 3.0])].concat()).unwrap();
    check_error(read(&of_bytes), &[&changed[..], &["3:11"]].concat());
    assert!(read(&of_header).is_ok(), "the structure is the same");
    fs::write(folder.path("m.onnx"), [&[9; 2][..], &f32s(&[1.0, 2.0]), &[0]].concat()).unwrap();
    check_error(read(&of_bytes), &changed);
    check_error(read(&of_header), &[&changed[..], &["0:3"]].concat());
    for length in [2, 7] {
        fs::write(folder.path("m.onnx"), &stored[..length]).unwrap();
        check_error(read(&of_bytes), &changed);
        check_error(read(&of_header), &changed);
    }
}

#[test]
fn references_are_checked_without_reading() {
    let folder = Folder::new();
    folder.write("f.safetensors", &[("a", "F32", &[2], f32s(&[1.0, 2.0]))]);
    let module = parse("fir 1\nfunc @f(%w: tensor<[2], f32>) {\n  return\n}\n").unwrap().module;
    let check = |reference: &str| {
        let references = vec![reference.parse().expect(reference)];
        let sources =
            DataSources { references, folder: folder.0.path().to_owned(), ..DataSources::default() };
        sources.open(&module)?.check_references()
    };
    check(r#"w = "a" in "f.safetensors""#).unwrap();
    check_error(check(r#"w = "b" in "f.safetensors""#), &["f.safetensors", "no tensor `b`", "`%w`"]);
    check_error(check(r#"w = "a"[0:1] in "f.safetensors""#), &["shape is [1]", "not [2]"]);
    check_error(check(r#"w = "a" in "g.safetensors""#), &["cannot read", "g.safetensors", "No such file"]);
}

#[test]
fn blocks_of_gguf_are_codes_and_scales() {
    let folder = Folder::new();
    let mxfp4: Vec<u8> = [&[127][..], &(0..16).map(|at| at | (15 - at) << 4).collect::<Vec<u8>>()].concat();
    // The sign of an E4M3 scale has no meaning, and NaN is 0.
    let sub = |first: u8| (first..first + 8).map(|low| low | (low ^ 7) << 4);
    let nvfp4: Vec<u8> =
        [0x38, 0x7F, 0xB8, 0xFF].into_iter().chain([0, 8, 0, 8].into_iter().flat_map(sub)).collect();
    fs::write(folder.path("m.gguf"), [&mxfp4[..], &mxfp4, &nvfp4].concat()).unwrap();
    let read = |ty: &str, source: &str| {
        let inputs = format!("%w: tensor<{ty}>");
        let reference = format!(r#"w = bytes {source}"#);
        folder.read(&inputs, (&[], &[&reference], &[])).map(|data| data.inputs["w"].to_codes())
    };
    let codes: Vec<u8> = (0..16).chain((0..16).rev()).collect();
    let two = codes.repeat(2);
    assert_eq!(read("[2, 32], f4E2M1FN", r#"0:34 in "m.gguf" as gguf_mxfp4"#).unwrap(), two);
    assert_eq!(read("[64], f4E2M1FN", r#"0:34 in "m.gguf" as gguf_mxfp4"#).unwrap(), two);
    assert_eq!(read("[2, 1], f8E8M0FNU, linear", r#"0:34 in "m.gguf" as gguf_mxfp4"#).unwrap(), [127; 2]);
    let first: Vec<u8> = (0..8).chain((0..8).rev()).collect();
    let second: Vec<u8> = (8..16).chain((8..16).rev()).collect();
    let all = [first, second].concat().repeat(2);
    assert_eq!(read("[1, 64], f4E2M1FN", r#"34:70 in "m.gguf" as gguf_nvfp4"#).unwrap(), all);
    let scales = read("[1, 4], f8E4M3FN, linear", r#"34:70 in "m.gguf" as gguf_nvfp4"#);
    assert_eq!(scales.unwrap(), [0x38, 0, 0x38, 0]);
    for (ty, source, parts) in [
        ("[1, 32], f4E2M1FN", r#"0:34 in "m.gguf" as gguf_mxfp4"#, &["34 bytes", "takes 17"][..]),
        (
            "[2, 16], f4E2M1FN",
            r#"0:17 in "m.gguf" as gguf_mxfp4"#,
            &["`as gguf_mxfp4`", "whole blocks of 32"],
        ),
        ("[4, 16], f4E2M1FN", r#"34:70 in "m.gguf" as gguf_nvfp4"#, &["whole blocks of 64"]),
        ("[2, 2], f8E4M3FN, linear", r#"34:70 in "m.gguf" as gguf_nvfp4"#, &["linear f8E4M3FN"]),
        ("[1, 4], f8E4M3FN, blocked", r#"34:70 in "m.gguf" as gguf_nvfp4"#, &["linear f8E4M3FN"]),
        ("[1, 4], f8E8M0FNU, linear", r#"34:70 in "m.gguf" as gguf_nvfp4"#, &["linear f8E4M3FN"]),
        ("[9], f32", r#"34:70 in "m.gguf" as gguf_nvfp4"#, &["`as gguf_nvfp4`", "this is f32"]),
    ] {
        check_error(read(ty, source), &[&["m.gguf", "`%w: tensor<"], parts].concat());
    }
    folder.write("f.safetensors", &[("w", "U8", &[17], vec![0; 17])]);
    let stored = folder.refer("[1, 32], f4E2M1FN", r#""w" as gguf_mxfp4"#);
    check_error(stored, &["`as gguf_mxfp4` is for bytes of a GGUF file"]);
}

#[test]
fn a_missing_tensor_names_the_nearest_and_its_files() {
    let folder = Folder::new();
    folder.write("f.safetensors", &[("model.layers.0.q_proj.weight", "F32", &[1], f32s(&[1.0]))]);
    folder.write("g.safetensors", &[("other", "F32", &[1], f32s(&[1.0]))]);
    let nearly = r#""model.layers.0.q_proj.wieght""#;
    check_error(
        folder.refer("[1], f32", nearly),
        &["f.safetensors` has no tensor", "input `%w`", "did you mean `model.layers.0.q_proj.weight`?"],
    );
    let read = |files: &[&str], text: &str| folder.read("%w: tensor<[1], f32>", (files, &[text], &[]));
    let several = read(&["f.safetensors", "g.safetensors"], r#"w = "elsewhere""#);
    check_error(several, &["f.safetensors` and `", "g.safetensors` have no tensor `elsewhere`"]);
    check_error(read(&[], r#"w = "other""#), &["`%w` refers to the tensor `other`", "add `in \"FILE\"`"]);
    check_error(read(&["g.safetensors"], r#"v = "other""#), &["no input `%v`"]);
}

#[test]
fn later_files_add_and_replace_tensors() {
    let folder = Folder::new();
    let one = |value: f32| f32s(&[value]);
    folder.write(
        "a.safetensors",
        &[("x", "F32", &[1], one(1.0)), ("w", "F32", &[1], one(1.0)), ("note", "F32", &[1], one(1.0))],
    );
    folder.write(
        "b.safetensors",
        &[
            ("w", "F32", &[1], one(2.0)),
            ("expected.y", "F64", &[1], f64s(&[0.1])),
            ("unused", "F32", &[1], one(0.0)),
        ],
    );
    folder
        .write("c.safetensors", &[("stored", "F32", &[1], one(3.0)), ("expected.z", "F32", &[1], one(3.0))]);
    let inputs = "%x: tensor<[1], f32>, %w: tensor<[1], f32>";
    let values = |data: &DataFile| ["x", "w"].map(|name| data.inputs[name].to_f32()[0]);
    let read = |sources: (&[&str], &[&str], &[&str])| folder.read(inputs, sources).unwrap();

    let both = read((&["a.safetensors", "b.safetensors"], &[], &[]));
    assert_eq!(values(&both), [1.0, 2.0]);
    assert_eq!(both.expected[0].1.as_f64(), Some(vec![0.1]));
    assert!(both.other.contains_key("note") && !both.other.contains_key("unused") && both.stale.is_empty());

    // A reference replaces the data files, and takes its tensor from them or from a given file.
    let reference = [r#"w = "stored""#];
    let referred = read((&["a.safetensors", "b.safetensors", "c.safetensors"], &reference, &[]));
    assert_eq!(values(&referred), [1.0, 3.0]);
    assert!(referred.has_references && referred.stale.is_empty());
    let given = read((&["a.safetensors"], &reference, &["c.safetensors"]));
    assert_eq!((values(&given), given.expected.len()), ([1.0, 3.0], 1));

    // A given tensor of the input's name replaces the reference.
    let replaced = read((&["a.safetensors"], &[r#"w = "stored" in "c.safetensors""#], &["b.safetensors"]));
    assert_eq!(values(&replaced), [1.0, 2.0]);
    assert!(!replaced.has_references);

    // With every input given, nothing else is opened, as the missing file shows.
    let alone = read((&["none.safetensors"], &[r#"w = "w" in "none.safetensors""#], &["a.safetensors"]));
    assert_eq!(values(&alone), [1.0, 1.0]);
    check_error(folder.read(inputs, (&["none.safetensors"], &[], &["b.safetensors"])), &["none.safetensors"]);
}

#[test]
fn an_expectation_of_replaced_inputs_is_stale() {
    let folder = Folder::new();
    let one = |value: f32| f32s(&[value]);
    let pair = |x: f32, y: f32| [("x", "F32", &[1][..], one(x)), ("expected.y", "F32", &[1][..], one(y))];
    folder.write("a.safetensors", &[&pair(1.0, 2.0)[..], &[("note", "F32", &[1], one(0.0))]].concat());
    folder.write("b.safetensors", &pair(3.0, 4.0));
    folder.write("x.safetensors", &[("x", "F32", &[1], one(5.0))]);
    folder.write("y.safetensors", &[("expected.y", "F32", &[1], one(6.0))]);
    let read = |given: &[&str]| {
        let data = folder.read("%x: tensor<[1], f32>, %w: tensor<[], f32>", (&["a.safetensors"], &[], given));
        let data = data.unwrap();
        let expected = data.expected.first().map(|(_, tensor)| tensor.as_stored().unwrap().to_f32()[0]);
        (data.inputs["x"].to_f32()[0], expected, data.stale)
    };
    assert_eq!(read(&[]), (1.0, Some(2.0), BTreeMap::new()));
    assert_eq!(read(&["b.safetensors"]).1, Some(4.0));
    assert_eq!(read(&["y.safetensors"]).1, Some(6.0));
    let (x, expected, stale) = read(&["x.safetensors"]);
    assert_eq!((x, expected), (5.0, None));
    assert_eq!(stale.keys().collect::<Vec<_>>(), ["expected.y", "note"]);
    assert!(stale["expected.y"].contains("x.safetensors replaces the input %x"), "{stale:?}");
    assert_eq!(read(&["b.safetensors", "x.safetensors"]).1, None);
    assert_eq!(read(&["x.safetensors", "y.safetensors"]).1, Some(6.0));
}

#[test]
fn links_lead_to_regular_files_only() {
    let folder = Folder::new();
    folder.write("blob", &[("w", "F32", &[1], f32s(&[4.0]))]);
    symlink("blob", folder.path("f.safetensors")).unwrap();
    assert_eq!(folder.refer("[1], f32", r#""w""#).unwrap().to_f32(), [4.0]);
    for (target, part) in [("/dev/zero", "not a regular file"), ("gone", "cannot read")] {
        fs::remove_file(folder.path("f.safetensors")).unwrap();
        symlink(target, folder.path("f.safetensors")).unwrap();
        check_error(folder.refer("[1], f32", r#""w""#), &["f.safetensors", part]);
    }
}

#[test]
fn a_large_file_costs_its_header_and_the_bytes_that_are_used() {
    let folder = Folder::new();
    let rows = 1usize << 20;
    let size = (rows as u64) << 16;
    let tensors: [Stored<'_>; 2] =
        [("s", "F32", &[1], f32s(&[2.0])), ("w", "BF16", &[rows, 1 << 15], Vec::new())];
    let header = header(&tensors, size);
    let path = folder.path("f.safetensors");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&[&header[..], &f32s(&[2.0])].concat(), 0).unwrap();
    let data = header.len() as u64 + 4;
    if file.set_len(data + size).is_err() {
        return; // The file system has no sparse files of 64 GiB.
    }
    file.write_all_at(&0x3FC0u16.to_le_bytes(), data + (12345 << 16) + 2 * 77).unwrap();
    let opened = SafetensorsFile::open(&path).unwrap();
    assert_eq!((opened.length(), opened.tensors().len()), (data + size, 2));
    assert_eq!(opened.metadata().get("format").map(String::as_str), Some("pt"));
    assert_eq!(opened.find("w").map(|w| w.end - w.start), Some(size));
    assert_eq!(opened.find("none"), None);
    assert_eq!(folder.refer("[4], f32", r#""w"[12345, 77:81]"#).unwrap().to_f32(), [1.5, 0.0, 0.0, 0.0]);
    assert_eq!(folder.refer("[3], f32", r#""w"[12344:12347, 77]"#).unwrap().to_f32(), [0.0, 1.5, 0.0]);
    assert_eq!(folder.refer("[], f32", r#""s""#).unwrap().to_f32(), [2.0]);
}

#[test]
fn a_hostile_file_is_refused_by_name() {
    let folder = Folder::new();
    let refused = |header: &str, data: usize, parts: &[&str]| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat();
        fs::write(folder.path("f.safetensors"), bytes).unwrap();
        check_error(folder.refer("[1], f32", r#""w""#), &[&["f.safetensors"], parts].concat());
    };
    refused(r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 3, &["truncated"]);
    let two = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
    refused(two, 6, &["overlap"]);
    refused(
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#,
        4,
        &["address space"],
    );
    refused("[]", 0, &["not a JSON object"]);
    fs::write(folder.path("f.safetensors"), u64::MAX.to_le_bytes()).unwrap();
    check_error(folder.refer("[1], f32", r#""w""#), &["announce a header"]);
    // A huge extent beside a zero takes no bytes, and no arithmetic overflows.
    let empty = format!(r#"{{"w":{{"dtype":"F32","shape":[{},0,8],"data_offsets":[0,0]}}}}"#, u64::MAX);
    let bytes = [&(empty.len() as u64).to_le_bytes()[..], empty.as_bytes()].concat();
    fs::write(folder.path("f.safetensors"), bytes).unwrap();
    check_error(folder.refer("[1], f32", r#""w""#), &["exceeds the address space"]);
    assert!(folder.refer("[0], f32", r#""w"[7, :, 3]"#).is_ok());
    check_error(folder.refer("[1], f32", r#""w"[7, 0, 3]"#), &["`0` of axis 1"]);
}
