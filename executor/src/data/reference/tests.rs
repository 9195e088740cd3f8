//! Tests of the text of references.

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Result<TensorReference, ReferenceError> {
    text.parse()
}

fn hash(start: u64, end: u64) -> RangeHash {
    RangeHash { start, end, blake3: [1; 32] }
}

#[test]
fn every_form_is_read_and_written() {
    let range = |start, end, step| AxisSlice::Range { start, end, step };
    let high = TensorEncoding::HighNibbleFirst;
    for (text, reference) in [
        (r#"w = "a.b""#, TensorReference::tensor("w", "a.b")),
        (r#"fc1.w = "a"[3]"#, TensorReference::tensor("fc1.w", "a").sliced(vec![AxisSlice::Index(3)])),
        (
            r#"w = "a"[:, 1:2, 0:8:2, 5]"#,
            TensorReference::tensor("w", "a").sliced(vec![
                AxisSlice::Whole,
                range(1, 2, 1),
                range(0, 8, 2),
                AxisSlice::Index(5),
            ]),
        ),
        (
            r#"w = "a" in "../m/x.safetensors""#,
            TensorReference::tensor("w", "a").in_file("../m/x.safetensors"),
        ),
        (
            r#"w = "a"[0:4] in "f" as high_nibble_first"#,
            TensorReference::tensor("w", "a").sliced(vec![range(0, 4, 1)]).in_file("f").encoded(high),
        ),
        (r#"w = "a" as high_nibble_first"#, TensorReference::tensor("w", "a").encoded(high)),
        (r#"w = bytes 16:32 in "m.onnx""#, TensorReference::bytes("w", 16, 32, "m.onnx")),
        (
            "w = bytes 16:32 blake3 0101010101010101010101010101010101010101010101010101010101010101 in \"m.onnx\"",
            TensorReference::bytes("w", 16, 32, "m.onnx").checked(hash(16, 32)),
        ),
        (
            "w = bytes 16:32 blake3 0:9 0101010101010101010101010101010101010101010101010101010101010101 in \"m\" \
             as gguf_mxfp4",
            TensorReference::bytes("w", 16, 32, "m").checked(hash(0, 9)).encoded(TensorEncoding::GgufMxfp4),
        ),
        (
            r#"w = bytes 0:0 in "m" as high_nibble_first"#,
            TensorReference::bytes("w", 0, 0, "m").encoded(high),
        ),
        (r#"w = "a\"]; in \n\\""#, TensorReference::tensor("w", "a\"]; in \n\\")),
    ] {
        assert_eq!(parsed(text).as_ref(), Ok(&reference), "{text}");
        assert_eq!(reference.to_string(), text);
    }
}

#[test]
fn space_is_free() {
    let tight = parsed(r#"w="a"[0:4,1:9:2]in"f"as high_nibble_first"#).unwrap();
    let wide = parsed(r#"  w  =  "a" [ 0 : 4 , 1 : 9 : 2 ]  in  "f"  as  high_nibble_first "#).unwrap();
    assert_eq!(tight, wide);
    assert_eq!(tight.file(), Some("f"));
}

#[test]
fn a_wrong_text_says_what_was_expected() {
    for (text, part) in [
        ("", "the name of an input"),
        ("%w = \"a\"", "the name of an input, found `%w"),
        ("w", "`=` after the input"),
        ("w = a", "a tensor's name in quotes, or `bytes A:B in \"FILE\"`, found `a`"),
        ("w = \"a", "the tensor's name is not a JSON string: EOF while parsing a string"),
        ("w = \"\\q\"", "invalid escape"),
        ("w = \"a\"[", "ends with `]`"),
        ("w = \"a\"[]", "`I`, `A:B`, `A:B:S` or `:`"),
        ("w = \"a\"[1,]", "for each axis"),
        ("w = \"a\"[-1]", "without negative numbers, found `-1`"),
        ("w = \"a\"[+1]", "found `+1`"),
        ("w = \"a\"[1:]", "found `1:`"),
        ("w = \"a\"[1:2:3:4]", "found `1:2:3:4`"),
        ("w = \"a\"[18446744073709551616]", "found `18446744073709551616`"),
        ("w = \"a\"[1:2:0]", "the step 0"),
        ("w = \"a\"[2:1]", "ends before it starts"),
        ("w = \"a\" on \"f\"", "`[SLICE]`, `in \"FILE\"`, `as WORD` or nothing more, found `on"),
        ("w = \"a\" in f", "a file in quotes, found `f`"),
        ("w = \"a\" in \"\"", "the path of a file"),
        ("w = \"a\" in \"f\" x", "`as WORD` or nothing more, found `x`"),
        ("w = \"a\" as", "an encoding after `as`"),
        ("w = \"a\" as low", "unknown encoding `low`; `as` takes `high_nibble_first`, `transposed`"),
        ("w = \"a\" as high_nibble_first in \"f\"", "nothing more, found `in"),
        ("w = bytes 3 in \"f\"", "a range of bytes, found `3`"),
        ("w = bytes 3:9:2 in \"f\"", "a range of bytes"),
        ("w = bytes 9:3 in \"f\"", "ends before it starts"),
        ("w = bytes 3:9", "`in \"FILE\"` after the bytes"),
        ("w = bytes 3:9 blake3 in \"f\"", "a BLAKE3 hash of 64 hexadecimal digits, found `in`"),
        ("w = bytes 3:9 blake3 0:2 01 in \"f\"", "64 hexadecimal digits, found `01`"),
        ("w = bytes 3:9 blake3 2:0 01 in \"f\"", "ends before it starts"),
        ("w = \u{e9}", "quotes"),
    ] {
        let message = parsed(text).expect_err(text).to_string();
        assert!(message.contains(part), "{text}: `{message}` does not contain `{part}`");
    }
}

fn axis() -> impl Strategy<Value = AxisSlice> {
    prop_oneof![
        Just(AxisSlice::Whole),
        any::<u64>().prop_map(AxisSlice::Index),
        (any::<u64>(), any::<u64>(), 1u64..).prop_map(|(a, b, step)| AxisSlice::Range {
            start: a.min(b),
            end: a.max(b),
            step
        }),
    ]
}

fn reference() -> impl Strategy<Value = TensorReference> {
    let encoding = prop::option::of(prop::sample::select(&TensorEncoding::ALL[..]));
    let file = any::<String>().prop_filter("a path is not empty", |path| !path.is_empty());
    let tensor = (any::<String>(), prop::collection::vec(axis(), 0..5), prop::option::of(file.clone()))
        .prop_map(|(name, slice, file)| TensorSource::Tensor { name, slice, file });
    let hash = (any::<u64>(), any::<u64>(), any::<[u8; 32]>());
    let hash = hash.prop_map(|(a, b, blake3)| RangeHash { start: a.min(b), end: a.max(b), blake3 });
    let bytes = (any::<u64>(), any::<u64>(), file, prop::option::of(hash));
    let bytes = bytes.prop_map(|(a, b, file, hash)| {
        let (start, end) = (a.min(b), a.max(b));
        TensorSource::Bytes { start, end, file, hash }
    });
    let part = prop::option::of(any::<u64>());
    ("[a-zA-Z_][a-zA-Z0-9_.]{0,8}", part, prop_oneof![tensor, bytes], encoding)
        .prop_map(|(input, part, source, encoding)| TensorReference { input, part, source, encoding })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_on_one_line(reference in reference()) {
        let text = reference.to_string();
        prop_assert!(!text.contains(['\n', '\r']));
        prop_assert_eq!(parsed(&text), Ok(reference));
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), at in 0usize..40) {
        let _ = parsed(&text);
        let valid = r#"w = "a.b"[3, 0:8:2] in "f" as high_nibble_first"#;
        let _ = parsed(&format!("{}{text}{}", &valid[..at], &valid[at..]));
        let _ = parsed(&valid[..at]);
    }
}
