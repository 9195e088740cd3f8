//! Faults planted in the kernels, each of which the simulation must find.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fourfold::codegen::hopper::Tile;

use crate::programs::{PAIR_PROGRAMS, PROGRAMS, Program, WEIGHT_ONLY_PROGRAMS};
use crate::simulation::{Case, device_text, without};

/// Plants faults in the kernels, each of which the simulation must find.
#[test]
fn what_is_wrong_is_found() {
    let (many, small_m, shared) = ([1, 64, 544, 1056, 1], [1, 8, 288, 8192, 1], [1, 64, 256, 2112, 132]);
    let kept = [1, 64, 96, 2112, 2];
    let helped = [1, 40, 96, 4128, 4];
    // One of two CTAs has 14 chunks of K, the other 13.
    let regs = [1, 16, 96, 6784, 2];
    let regs_batch = [2, 16, 96, 3488, 1];
    let left = [2, 300, 96, 2080, 1];
    let (one, two, alone) = ([1, 1, 288, 4096, 1], [1, 2, 288, 4096, 1], [1, 8, 160, 1024, 1]);
    let near = [1, 1, 416, 8352, 1];
    let faults = [
        // Operands read before they are loaded, and multiplied before that.
        ("barrier_wait(smem.full_b(from.stage), from.phase);", "", many),
        (
            "  barrier_wait(consumer.smem.full_a(consumer.ring.stage), consumer.ring.phase);\n  uint64_t",
            "  uint64_t",
            many,
        ),
        ("(step == 2 || step == 4)", "step == 2", many),
        // Stages overwritten while they are multiplied, or before they are read; sums overwritten before they are read.
        ("barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);\n      // Rows", "\n      // Rows", many),
        ("barrier_wait(smem.empty_b(ring.stage), ring.phase ^ 1);", "", many),
        ("barrier_wait(smem.tile_stored(), tiles_done & 1);", "", many),
        // One arrival too few, and bytes that never arrive.
        ("barrier_init(smem.empty_a(i), V::kPhaseWarps);", "barrier_init(smem.empty_a(i), 9);", many),
        (
            "barrier_expect_tx(barrier, V::kStageBytes);",
            "barrier_expect_tx(barrier, V::kStageBytes + 16);",
            many,
        ),
        (
            "barrier_expect_tx(barrier, panel_bytes * (2 / V::kFullBarriersA));",
            "barrier_expect_tx(barrier, panel_bytes * (2 / V::kFullBarriersA) - 16);",
            many,
        ),
        // A of another word, and SFA of another row.
        ("kBlockBytesA + run_of(word, 0);", "kBlockBytesA + run_of(word ^ 1, 0);", many),
        ("m % 128 / 32 * 4;", "m % 128 / 64 * 4;", many),
        // SFB of other K blocks and rows, swapped panels, and another panel in the workspace.
        ("block * (kAtomsPerBlock * kAtomRows)", "block * kAtomsPerBlock", many),
        ("min(work.n_idx * V::kTileN / 128 + i, p.atoms_n - 1)", "work.n_idx / 2", many),
        ("block * 2 + panel);", "block * 2 + 1 - panel);", many),
        ("+ 2 * kTermsA * block * next_panel", "+ kTermsA * block * next_panel", many),
        // Another K step of A, and another order of a thread's rows of B and columns of D.
        ("step / 4 * V::kPanelBytes + step % 4 * 32", "step % 2 * V::kPanelBytes + step / 2 * 32", many),
        ("codes_at[i] = codes ^ i * kPartBytes;", "codes_at[i] = codes;", many),
        ("scales_at[i] = scales ^ i * 16;", "scales_at[i] = scales;", many),
        ("far = (1 - i % 2) * 2 + row", "far = i % 2 * 2 + row", many),
        // Sums of a phase read before they are stored, stored over operands of the other phase, and at the wrong place.
        ("named_barrier_sync<3, V::kConsumerThreads>();", "", many),
        ("a((first + 2 - phase) % V::kStages)", "a((first + 3 + phase) % V::kStages)", many),
        ("consumer.ring.stage - phase, phase, sums", "consumer.ring.stage, phase, sums", many),
        // Sums of a cluster stored over operands, and added before they arrive; stages at the wrong place.
        (">> p.cluster_bits;\n  barrier_wait(smem.exchange_empty(), 0);", ">> p.cluster_bits;", shared),
        ("barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);\n    }", "}", shared),
        ("barrier_wait(smem.exchange_full(warp), 0);", "", shared),
        ("smem.exchange(blocks % V::kStages, source)", "smem.exchange(0, source)", shared),
        ("(first + slice / V::kSlicesPerStage) % V::kStages", "(first + 1) % V::kStages", shared),
        // The same with two CTAs that keep a warpgroup each; K blocks taken twice, wrong ones, and sums sent to the CTA
        // itself.
        ("other);\n  barrier_wait(smem.exchange_empty(), 0);", "other);", kept),
        ("barrier_wait(smem.exchange_full(thread / 32), 0);", "", kept),
        ("rank * (common + result.alone)", "rank * common", kept),
        ("i < end - begin ? begin + i : i", "begin + i", kept),
        ("work, 1 - own_rank(p), sums", "work, own_rank(p), sums", kept),
        // A wrong split, a split that two CTAs compute, and flags that are not cleared.
        ("steps_before += p.split_steps;", "", helped),
        ("~((beyond << p.cluster_bits) + rank)", "~(beyond << p.cluster_bits)", helped),
        ("p.flags[item] = 0;", "", helped),
        // An arrival at a CTA that may have ended.
        (" && !TileScheduler<V>(p, rank).helps()", "", helped),
        // A decoded late: read too early, the wrong rows, and the wrong tile.
        ("wait_for_slab<V>(p, work, block / kSlabBlocks);", "", left),
        ("--left, run.next(matrix)", "--left", left),
        ("tile = behind + ahead.first_tiles.number;", "tile = behind;", left),
        // Another thread's part of K, and its scales.
        ("word * (64 * kTermsA) + t * 16;", "word * (64 * kTermsA) + (t ^ 1) * 16;", small_m),
        (
            "block * V::kABlockScaleBytes + lane() % 4 * 8",
            "block * V::kABlockScaleBytes + (lane() % 4 ^ 1) * 8",
            one,
        ),
        // e4m3: words of another group, a word left out, another row of A, sums read too early, and those of another
        // warpgroup.
        ("(2 * t + word / 2) * 16", "(2 * t + 1 - word / 2) * 16", one),
        ("WgmmaE4m3<8 * kTileM>::add(", "WgmmaE4m3<8 * kTileM>::begin(", one),
        (
            "word % 2) * kTileM + m) * V::kMatrixBytes",
            "word % 2) * kTileM + kTileM - 1 - m) * V::kMatrixBytes",
            two,
        ),
        ("wgmma_wait<V::kBlocks - 1 - block>();\n        mine", "mine", one),
        ("warp / V::kMmaWarps * V::kMaxGroups + run.group", "run.group", one),
        // A and B read before they are loaded.
        ("    fence_async_proxy();\n  }\n  __syncthreads();\n", "  }\n", alone),
        ("cp_async_wait<V::kStages - 1>();", "cp_async_wait<V::kStages>();", one),
        // A prefetch outside of the tensor.
        ("prefetch_l2(first_row + rows[i]);", "prefetch_l2(first_row + p.n * p.row_bytes);", near),
        // Other rows, and sums of another group or of another place.
        ("min(at_row + i * 32, last)", "min(at_row + i * 4, last)", one),
        ("vector / 4 * V::kGroups + part, m", "vector / 4 * V::kGroups + 1 - part, m", one),
        ("end <= last ? smem.rings + warp", "end < last ? smem.rings + warp", small_m),
        // One of two accumulators left out.
        ("acc[chunk][0][i] + acc[chunk][1][i]", "acc[chunk][0][i]", small_m),
        // Sums of a cluster read before they arrive, and bytes that never arrive.
        ("  if (cluster.mask > 0) {\n    barrier_wait(smem.exchange_full, 0);\n  }", "", small_m),
        ("units * 4 + cluster.mask - cluster.rank", "units * 4 + cluster.mask + 1", small_m),
        // A in registers: B of the previous phase, scales of another part, and B loaded over A that is still read.
        (
            "barrier_wait(barriers + stage * 8, phase ^ (V::kLoadsA ? stage : 0));",
            "barrier_wait(barriers + stage * 8, phase);",
            regs,
        ),
        ("scales + place * V::kSfbRoom", "scales", regs),
        ("__syncwarp();\n      if (stage == 1) {", "if (stage == 1) {", regs),
        // Other parts, other rows, their scales, and SFA of another chunk.
        ("part + 1 == parts ? 0 : part + 1", "part + 1", regs),
        ("block * 4 + stage * 2, batch", "block * 4 + stage, batch", regs),
        ("phase * V::kSfbRoom + stage * 8", "phase * V::kSfbRoom", regs),
        ("barriers + 8, 0, chunk * V::kChunkAtoms", "barriers + 8, 0, 0", regs),
        // Scales of another matrix.
        ("first_atom_n = static_cast<int>(batch) * parameters.atoms_n;", "", regs_batch),
        ("first_atom_m = static_cast<int>(batch) * parameters.atoms_m;", "", regs_batch),
        // Sums of another part, sums of idle warps, and sums of other warps or of the other CTA before they are
        // complete.
        ("part = order.part(place / V::kStages)", "part = place / V::kStages", regs),
        (
            "piece = lane(); piece < groups * (kSumPieces / 2);",
            "piece = lane(); piece < kSumPieces / 2;",
            regs,
        ),
        ("barrier_wait(smem.sums_full, 0);", "", regs),
        ("barrier_wait(smem.exchange_full, 0);\n        add_pair", "add_pair", regs),
    ];
    // Outputs with blocks: units that both CTAs store.
    let of_blocks = [(">= first + others;", ">= first;", regs)];
    // A of 16 bits: another byte of a word of B, another thread's scales, and swapped panels.
    let of_16_bits = [
        (": 0x4440 + t;", ": 0x4440 + (t ^ 1);", many),
        ("scales[0][i], word, 4);", "scales[0][i], word ^ 1, 4);", many),
        ("(block * 2 + panel) * kPanelRowBytes", "(block * 2 + 1 - panel) * kPanelRowBytes", many),
        // Copied A: another thread's, read before it arrives, and pieces that are not where they are read.
        (
            "piece = (t * V::kBlocks + block) * kWordsA",
            "piece = ((t ^ 1) * V::kBlocks + block) * kWordsA",
            regs,
        ),
        (
            "cp_async_wait<0>();\n    __syncwarp();\n    CUTLASS_PRAGMA_UNROLL\n    for (int column",
            "CUTLASS_PRAGMA_UNROLL\n    for (int column",
            regs,
        ),
        (
            "to + row * V::kRowBytesA + small_m_regs_piece(row, place) * 16",
            "to + row * V::kRowBytesA + place * 16",
            regs,
        ),
        ("from_row = min(row, p.small_m.m - 1u);", "from_row = 0;", regs),
        // Boxes of A over each other, and too few of them.
        ("+ box * p.box_m * kPanelRowBytes, barrier", ", barrier", left),
        ("? p.last_boxes : p.boxes", "? p.last_boxes : p.last_boxes", left),
    ];
    // B of 8 bits: another part of codes, and scales of another part.
    let of_8_bits = [
        ("block * kBlockBytes + part * kPartBytes,", "block * kBlockBytes,", many),
        ("+ stage + i / kThreadRows * 2;", "+ stage;", many),
        ("part * (kPartsB == 2 ? 2 :", "part * (kPartsB == 2 ? 0 :", alone),
    ];
    // A of f16 in two terms: B of another block, and one term stored over the other.
    let of_terms = [
        ("block_of_a / kTermsA;", "block_of_a / (2 * kTermsA);", many),
        ("store_words(to + term * 64,", "store_words(to,", small_m),
    ];
    // A of 16 bits or FP4 beside 8 bits: other codes of a row of B, and other pairs of A.
    let of_direct = ("? 0x4410 + t * 0x22", "? 0x4410 + (t ^ 1) * 0x22", many);
    let of_pairs =
        ("{{pair(0), pair(2)}, {pair(1), pair(3)}}", "{{pair(0), pair(1)}, {pair(2), pair(3)}}", many);
    let all: Vec<_> = faults
        .map(|fault| (&PROGRAMS[0], fault))
        .into_iter()
        .chain(of_blocks.map(|fault| (&PROGRAMS[2], fault)))
        .chain(of_16_bits.map(|fault| (&WEIGHT_ONLY_PROGRAMS[0], fault)))
        .chain(of_8_bits.map(|fault| (&PROGRAMS[4], fault)))
        .chain(of_terms.map(|fault| (&WEIGHT_ONLY_PROGRAMS[5], fault)))
        .chain([(&WEIGHT_ONLY_PROGRAMS[3], of_direct), (&PROGRAMS[6], of_pairs)])
        .collect();
    assert_all_found("wrong", &all);
}

/// Plants faults in the stores of paired columns.
#[test]
fn what_is_wrong_with_pairs_of_columns_is_found() {
    let (many, alone, regs) = ([1, 64, 544, 1056, 1], [1, 8, 160, 1024, 1], [1, 16, 96, 6784, 2]);
    let faults = [
        // Columns of the product as those of D.
        ("(n + first_row_n<V>(quad) / kColumns * kColumns) / kPair", "n + first_row_n<V>(quad)", many),
        ("small_m_column(first_unit, vector) / kPair,", "small_m_column(first_unit, vector),", alone),
        ("column / kPair, p.m", "column, p.m", regs),
        // The sum of the other row of A, that of a lane of another row of B, and a row of A stored twice.
        ("is_odd ? sum.x : sum.y, 8)", "is_odd ? sum.y : sum.x, 8)", regs),
        ("is_odd ? sum.x : sum.y, 8)", "is_odd ? sum.x : sum.y, 16)", regs),
        ("write(m + is_odd, pair);", "write(m, pair);", regs),
    ];
    assert_all_found("wrong_pair", &faults.map(|fault| (&PAIR_PROGRAMS[0], fault)));
}

/// A program, a text of its kernel, the text that replaces it, and a case that shows the fault.
type Planted<'a> = (&'a Program, (&'a str, &'a str, Case));

/// Checks that each case passes, and that it fails with its fault. `name` names the files.
fn assert_all_found(name: &str, all: &[Planted<'_>]) {
    let several = [Tile::new(128, 64), Tile::new(128, 256), Tile::new(64, 128)];
    // All faults must apply before the first is compiled.
    let device = device_text();
    for (_, (what, by, _)) in all {
        without(&device, what, by);
    }
    let tiles = |case: Case| match case[1] {
        0..=8 | 16 => vec![Tile::new(case[1] as u32, 128)],
        257.. => vec![Tile::new(256, 128)],
        _ => several.to_vec(),
    };
    // Without a fault, each case passes.
    let mut faultless: BTreeMap<_, BTreeMap<Case, &Program>> = BTreeMap::new();
    for (program, (.., case)) in all {
        faultless.entry((program.name, tiles(*case))).or_default().insert(*case, program);
    }
    for ((of, tiles), cases) in faultless {
        let program = cases.values().next().expect("a case");
        let simulation = program.build(&format!("{of}_faultless"), tiles, None);
        for (case, program) in cases {
            for tile in &simulation.tiles {
                program.check(&simulation, case, Some(*tile), 0);
            }
        }
    }
    let is_found = |index: usize, program: &Program, (what, by, case): (&str, &str, Case)| {
        tiles(case).into_iter().any(|tile| {
            let simulation = program.build(&format!("{name}_{index}"), vec![tile], Some((what, by)));
            let check = |seed| program.check(&simulation, case, Some(tile), seed);
            (0..64).any(|seed| std::panic::catch_unwind(|| check(seed)).is_err())
        })
    };
    // Each takes some seconds, most of them for the compiler.
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((program, fault)) = all.get(index) else { break };
                    if !is_found(index, program, *fault) {
                        missed.lock().expect("no thread panics with it").push(fault);
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner().expect("no thread panicked with it"), [] as [&(&str, &str, Case); 0]);
}
