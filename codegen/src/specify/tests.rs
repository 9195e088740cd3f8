//! Specifications of plans with the default tables, and with an override.

use fourfold_ir::{BlockFormat, ElementType};

use super::*;
use crate::capabilities;

/// Found in a build: the builder leaves one stage, and Sm120 needs two.
#[test]
fn vectors_that_leave_no_room_for_a_long_tile_get_a_short_one() {
    let family = defaults::family("sm_120a").expect("a Blackwell");
    let extents = Extents { l: Some(1), m: Some(4096), n: Some(1024), k: Some(2048) };
    let long = |element, rows: u64| {
        let (configuration, _) =
            select::cutlass::choose(family, BlockFormat::NVFP4, CutlassVersion::PINNED, extents)
                .expect("a default");
        let configuration = configuration.with_elements(Some(element), element);
        let bytes = rows * 128 * element.storage_bits() as u64 / 8;
        defaults::with_room(configuration, bytes, CutlassVersion::PINNED).0.tile
    };
    assert_eq!(long(ElementType::F32, 3), [128, 128, 128]);
    assert_eq!(long(ElementType::F32, 0), [128, 128, 256]);
    assert_eq!(long(ElementType::BF16, 3), [128, 128, 256]);
}

/// The name and reason of a program's kernel under a table with this kernel. The program adds these operands
/// to the sum, in f32.
fn by_table(name: &str, format: &str, kernel: &str, added: &[&str]) -> (String, String) {
    let named = added.iter().enumerate();
    let inputs: String =
        named.clone().map(|(at, shape)| format!(", %in{at}: tensor<[{shape}], f32>")).collect();
    let value = |steps: usize| if steps == 0 { "%d".to_owned() } else { format!("%x{}", steps - 1) };
    let step = |at: usize| format!("  %x{at} = add {}, %in{at} : tensor<[4096, 1024], f32>\n", value(at));
    let (steps, last): (String, _) = (named.map(|(at, _)| step(at)).collect(), value(added.len()));
    let program = format!(
        "fir 1
func @main(
    %a: tensor<[4096, 2048], f4E2M1FN>, %sa: tensor<[4096, 128], f8E4M3FN, blocked>,
    %b: tensor<[1024, 2048], f4E2M1FN>, %sb: tensor<[1024, 128], f8E4M3FN, blocked>{inputs}
) {{
  %d = scaled_mma %a, %sa, %b, %sb {{block = 16}} : tensor<[4096, 1024], f32>
{steps}  return {last}
}}
"
    );
    let table = format!(
        "schema = 1\n[[table]]\ntargets = [\"{name}\"]\nformats = [\"{format}\"]\n[table.default]\nkernel = {kernel}\n\
         why = \"as it was measured with K = {{k}}\"\n"
    );
    let tables = Tables::parse(&table).expect("it is well-formed");
    let (program, _) = fourfold_ir::load(&program).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let partition = fourfold_scheduler::partition(&program, &capabilities(name).expect("a known target"));
    let (_, plan) = partition.plans().next().expect("one kernel");
    let target = crate::target(name).expect("a known target");
    let (spec, why) =
        specify(&program, plan, target, CutlassVersion::PINNED, Some(&tables)).expect("it has kernels");
    (spec.configuration_name(), why)
}

#[test]
fn a_table_of_ones_own_replaces_the_default_and_what_it_cannot_have_is_the_default_s() {
    let (sm100, sm120) = ("sm_100a", "sm_120a");
    let nosmem = "{ tile = [128, 192, 256], epilogue = \"no_smem\", cluster = [1, 2] }";
    let (name, why) = by_table(sm100, "nvfp4", nosmem, &["1024"]);
    assert_eq!(name, "sm100_128x192x256_1sm_c1x2_nosmem");
    assert_eq!(why, "as it was measured with K = 2048");
    // A table for another format does not apply.
    let usual = "sm100_256x256x256_2sm_c2x1_e128x64";
    let (name, why) = by_table(sm100, "mxfp4", nosmem, &["1024"]);
    assert_eq!(name, usual);
    assert!(!why.contains("table"), "{why}");
    let (name, why) = by_table(sm100, "nvfp4", "{ tile = [128, 96, 256] }", &[]);
    assert_eq!(name, usual);
    let words = "; the table's { tile = [128, 96, 256] } is skipped: rule 9 ";
    assert!(why.starts_with("M = 4096 is large") && why.contains(words), "{why}");
    // Four operands are read 16 columns at a time. Accumulators that overlap in all other columns leave no
    // room for scales.
    let (name, why) = by_table(sm100, "mxfp4", nosmem, &["1024", "1024", "1024", "4096, 1024"]);
    assert_eq!(name, "sm100_128x128x256_1sm_c1x1_e128x16");
    assert!(why.ends_with("_e128x16 exceeds tensor memory, so the default tile"), "{why}");
    let narrow = "{ tile = [256, 256, 256], epilogue_tile = [128, 32] }";
    let (name, why) = by_table(sm100, "nvfp4", narrow, &[]);
    assert_eq!(name, usual);
    assert!(why.contains("is skipped: rule 34 ") && why.contains("480 + 16 + 32 = 528 columns"), "{why}");
    // Without vectors there is room for two stages; with three vectors there is not.
    let long = "{ tile = [128, 128, 256] }";
    assert_eq!(by_table(sm120, "nvfp4", long, &[]).1, "as it was measured with K = 2048");
    let (name, why) = by_table(sm120, "nvfp4", long, &["4096, 1024", "1024", "1024", "1024"]);
    assert_eq!(name, "sm120_128x128x128_c1x1");
    assert!(
        why.ends_with("is skipped: the epilogue's row operands leave no shared memory for its stages"),
        "{why}"
    );
    let (name, why) = by_table("sm_90a", "nvfp4", "{ tile = [64, 256], cluster = 2 }", &[]);
    assert_eq!(name, "sm90_x64x256_c2");
    assert!(why.ends_with("; as it was measured with K = 2048"), "{why}");
}
