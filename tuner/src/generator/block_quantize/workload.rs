//! Inputs and expected outputs of a block-quantization kernel.

use fourfold_codegen::block_quantize::Configuration;
use fourfold_executor::kernel;
use fourfold_ir::numeric::{self, MxElement};
use fourfold_ir::{ElementType, Tensor};

use crate::generator::Workload;
use crate::problem::Problem;

/// The kind of data and of comparison. Nothing is summed, so every implementation gives the same bits.
const RULE: &str = "blocks of seeded values over 28 binades, some of zeros, of subnormals, with an infinity or a NaN; codes \
                    and scales equal the interpreter's, padding is zero, and every byte is compared";

/// The largest input that is generated.
const MOST_BYTES: u64 = 1 << 32;

/// The workload of a problem that the kernel supports.
pub(super) fn workload(settings: &Configuration, problem: &Problem, seed: u64) -> Result<Workload, String> {
    let Configuration { input, format, layout, .. } = *settings;
    let Problem { l, m, k, .. } = *problem;
    // `takes` admits at most 2^31 scales of 32 values each: no product overflows.
    if l * m * k * input.storage_bits() as u64 / 8 > MOST_BYTES {
        return Err(format!("the values exceed the reference's limit of {MOST_BYTES} bytes"));
    }
    let dims = |columns: u64| vec![l as usize, m as usize, columns as usize];
    let block = format.block() as usize;
    let mut random = SplitMix64(seed);
    let global = random.global();
    let count = (l * m * k) as usize;
    let mut bytes = Vec::with_capacity(count * input.storage_bits() / 8);
    for _ in 0..count / block {
        random.block(input, block, &mut bytes);
    }
    let reason = |error: fourfold_ir::TensorError| error.to_string();
    let values = Tensor::new(input, dims(k), None, bytes).map_err(reason)?;

    let mut codes = vec![0; count];
    let blocks = values.to_f32();
    let scales = blocks.chunks(block).zip(codes.chunks_mut(block)).map(|(values, codes)| {
        match format.scale_rounding() {
            None => numeric::quantize_nvfp4_block_by(format.formula(), values, global, codes),
            Some(rounding) => numeric::quantize_mx_block(values, MxElement::E2M1, rounding, codes),
        }
    });
    let scales: Vec<u8> = scales.collect();
    let codes = Tensor::from_codes(ElementType::F4E2M1FN, dims(k), None, codes).map_err(reason)?;
    let scales =
        Tensor::from_codes(format.scale(), dims(k / u64::from(format.block())), Some(layout), scales);
    let scales = scales.map_err(reason)?;

    let mut inputs = vec![("values".to_owned(), values.bytes().to_vec())];
    if format.has_global() {
        inputs.push(("global".to_owned(), global.to_le_bytes().to_vec()));
    }
    Ok(Workload {
        extents: kernel::Extents::new(&[l, m, k].map(|extent| extent as i64)),
        inputs,
        expected: vec![codes.bytes().to_vec(), scales.bytes().to_vec()],
        rule: RULE,
    })
}

/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A per-tensor scale in [1/8, 1/2) with a random mantissa.
    fn global(&mut self) -> f32 {
        let bits = self.next();
        let exponent = 124 + (bits >> 32 & 1) as u32;
        f32::from_bits(exponent << 23 | bits as u32 & 0x007F_FFFF)
    }

    /// The bytes of a block of values.
    fn block(&mut self, element: ElementType, block: usize, bytes: &mut Vec<u8>) {
        let bits = self.next();
        let kind = bits % 64;
        // The binade of the block's largest magnitudes.
        let binade = 115 + (bits >> 32) as u32 % 22;
        let special = (bits >> 8) as usize % block;
        for i in 0..block {
            let bits = self.next();
            let (sign, mantissa) = ((bits >> 63) as u32, bits as u32 & 0x007F_FFFF);
            let exponent = binade - (bits >> 32) as u32 % 7;
            let float = |magnitude: u32| f32::from_bits(sign << 31 | magnitude);
            let usual = if bits >> 40 & 15 == 0 { float(0) } else { float(exponent << 23 | mantissa) };
            let value = match kind {
                0..4 => float(0),
                // Subnormal numbers of the type.
                4..8 => {
                    put_subnormal(element, sign, mantissa, bytes);
                    continue;
                }
                8 if i == special => float(f32::INFINITY.to_bits()),
                9 if i == special => float(f32::NAN.to_bits()),
                _ => usual,
            };
            put(element, value, bytes);
        }
    }
}

fn put(element: ElementType, value: f32, bytes: &mut Vec<u8>) {
    match element {
        ElementType::BF16 => bytes.extend(numeric::f32_to_bf16_bits(value).to_le_bytes()),
        ElementType::F16 => bytes.extend(numeric::f32_to_f16_bits(value).to_le_bytes()),
        _ => bytes.extend(value.to_le_bytes()),
    }
}

fn put_subnormal(element: ElementType, sign: u32, mantissa: u32, bytes: &mut Vec<u8>) {
    let narrow = |bits: u32| ((sign << 15 | mantissa >> (23 - bits)) as u16).to_le_bytes();
    match element {
        ElementType::BF16 => bytes.extend(narrow(7)),
        ElementType::F16 => bytes.extend(narrow(10)),
        _ => bytes.extend((sign << 31 | mantissa).to_le_bytes()),
    }
}
