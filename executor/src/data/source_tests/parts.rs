//! Tests of inputs whose parts are tensors of their own.

use super::*;

const W: &str = "%w: tensor<[3, 2, 4], f4E2M1FN>";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write(
        "a.safetensors",
        &[
            ("e0", "U8", &[2, 2], vec![0x10, 0x32, 0x54, 0x76]),
            ("e2", "U8", &[2, 2], vec![0x89, 0xAB, 0xCD, 0xEF]),
            ("g0", "F32", &[1], 1.5f32.to_le_bytes().to_vec()),
            ("g1", "F32", &[], 2.5f32.to_le_bytes().to_vec()),
            ("odd", "U8", &[3], vec![1, 2, 3]),
        ],
    );
    let stacked: Vec<u8> = (0..8).collect();
    folder.write("b.safetensors", &[("stacked", "U8", &[2, 2, 2], stacked)]);
    folder
}

#[test]
fn parts_are_indices_of_the_first_axis() {
    let references = [
        r#"w[2] = "e2" in "a.safetensors""#,
        r#"w[0] = "e0" in "a.safetensors""#,
        r#"w[1] = "stacked"[1] in "b.safetensors" as high_nibble_first"#,
        r#"g[0] = "g0" in "a.safetensors""#,
        r#"g[1] = "g1" in "a.safetensors""#,
    ];
    for text in references {
        assert_eq!(text.parse::<TensorReference>().unwrap().to_string(), text);
    }
    let inputs = format!("{W}, %g: tensor<[2], f32>, %x: tensor<[M, 4], f32>");
    let data = folder().read(&inputs, (&[], &references, &[])).unwrap();
    let codes = [0, 1, 2, 3, 4, 5, 6, 7, 0, 4, 0, 5, 0, 6, 0, 7, 9, 8, 11, 10, 13, 12, 15, 14];
    assert_eq!(data.inputs["w"].to_codes(), codes);
    assert_eq!(data.inputs["w"].dims(), [3, 2, 4]);
    assert_eq!(data.inputs["g"].to_f64(), [1.5, 2.5]);
    assert!(data.has_references && data.inputs.len() == 2);
}

#[test]
fn blocked_scales_of_parts_keep_their_padding() {
    let folder = Folder::new();
    let bytes = |first: u8| (0..1024).map(|at| first + (at % 100) as u8).collect::<Vec<u8>>();
    let tensors = [("s0", "U8", &[128, 8][..], bytes(1)), ("s1", "U8", &[1024][..], bytes(9))];
    folder.write("f.safetensors", &tensors);
    let references = [r#"s[0] = "s0" in "f.safetensors""#, r#"s[1] = "s1" in "f.safetensors""#];
    let data = folder.read("%s: tensor<[2, 37, 5], f8E4M3FN, blocked>", (&[], &references, &[])).unwrap();
    assert_eq!(data.inputs["s"].bytes(), [bytes(1), bytes(9)].concat());
}

#[test]
fn parts_that_do_not_make_the_input_are_refused() {
    let part = |part: u64| format!(r#"w[{part}] = "e0" in "a.safetensors""#);
    let whole = r#"w = "stacked" in "b.safetensors""#.to_owned();
    for (inputs, references, expected) in [
        (
            W,
            vec![part(0), part(2)],
            "%w: tensor<[3, 2, 4], f4E2M1FN>` do not make it: no reference is to index 1 of the first axis, whose extent is 3",
        ),
        (W, vec![part(0), part(1)], "no reference is to index 2 of the first axis"),
        (W, vec![part(0), part(1), part(1)], "two references are to index 1"),
        (W, vec![part(0), part(1), part(2), part(3)], "index 3 is outside the first axis, whose extent is 3"),
        (W, vec![part(0), whole, part(1), part(2)], "another reference is to the whole input"),
        ("%w: tensor<[M, 2, 4], f4E2M1FN>", vec![part(0)], "only an input with fixed extents has parts"),
        ("%w: tensor<[2, N, 4], f4E2M1FN>", vec![part(0)], "only an input with fixed extents has parts"),
        ("%w: tensor<[], f32>", vec![part(0)], "only an input with fixed extents has parts"),
        ("%w: tensor<[0, 4], f32>", vec![part(0)], "index 0 is outside the first axis, whose extent is 0"),
    ] {
        let references: Vec<&str> = references.iter().map(String::as_str).collect();
        check_error(folder().read(inputs, (&[], &references, &[])), &[expected]);
    }
}

#[test]
fn a_part_that_does_not_fit_is_named() {
    let read = |inputs: &str, tensor: &str| {
        let references =
            [r#"w[0] = "e0" in "a.safetensors""#, &format!(r#"w[1] = {tensor} in "a.safetensors""#)];
        folder().read(inputs, (&[], &references, &[]))
    };
    let inputs = "%w: tensor<[2, 2, 4], f4E2M1FN>";
    check_error(read(inputs, r#""odd""#), &["the tensor `odd`", "%w: tensor<[2, 4], f4E2M1FN>", "[6]"]);
    check_error(read(inputs, r#""e1""#), &["no tensor", "`e1`"]);
    check_error(read(inputs, r#""e2"[3]"#), &["e2", "[3]"]);
    for wrong in [r#"w[1, 2] = "a""#, r#"w[] = "a""#, r#"w[0:2] = "a""#, r#"w[-1] = "a""#, r#"w[1 = "a""#] {
        assert!(wrong.parse::<TensorReference>().is_err(), "{wrong}");
    }
}
