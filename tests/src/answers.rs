//! Compares the answers of a loaded kernel with the plan and the generator: the extents that it accepts, the memory that
//! it requires, its grids, and where it reads scales. No GPU is needed.

use fourfold::codegen::cutlass::configuration::Configuration;
use fourfold::codegen::cutlass::grid::{self, Grid};
use fourfold::codegen::hopper::Tile;
use fourfold::codegen::{Design, Output, OutputKind, ScaledMmaSpec, capabilities, hopper};
use fourfold::executor::kernel::{Device, Extents, Kernel};
use fourfold::ir::{Dim, ElementType, OperandShape, numeric};

use crate::built::format;
use crate::random::Random;

/// The extents of one call of such a kernel.
#[derive(Clone, Copy, Debug)]
struct Problem {
    l: i64,
    m: i64,
    n: i64,
    k: i64,
    /// The groups of rows, if the kernel has them.
    e: Option<i64>,
    /// The rows of scales with whole tiles for each group, if the kernel reads these.
    p: Option<i64>,
}

impl Problem {
    fn extents(self) -> Extents {
        match self.e {
            None => Extents::of_product(self.l, self.m, self.n, self.k),
            Some(e) => {
                let extents = [self.l, self.m, self.n, self.k, e, self.p.unwrap_or(0)];
                Extents::new(&extents[..5 + usize::from(self.p.is_some())])
            }
        }
    }

    /// The matrices of B.
    fn matrices(self) -> i64 {
        self.e.unwrap_or(self.l)
    }
}

const DEVICE: Device = Device { sm_count: 148, max_active_clusters: 74 };

/// Checks that a kernel accepts exactly the extents that its plan admits, and requests the scale buffers that the
/// plan allocates.
///
/// # Panics
/// Panics if it does not.
pub fn check_acceptance(spec: &ScaledMmaSpec, kernel: &Kernel) {
    const SHAPES: usize = 200;
    let mut random = Random::new(0xACCE);
    let (mut good, mut bad) = (0, 0);
    let format = format(spec);
    let block = format.block as usize;
    // A 16-bit A has no scales.
    let is_grouped = spec.configuration.groups().is_some();
    let is_padded = is_padded(spec);
    let is_blocked = spec.configuration.groups().is_some_and(|groups| groups.blocked);
    let (sfa, sfb) = if format.is_weight_only() { (None, 2) } else { (Some(1), 3) };
    for _ in 0..SHAPES {
        let problem = Problem {
            l: if is_grouped { 1 } else { random.pick(&[1, 1, 1, 2, 3, 0]) },
            m: random.pick(&[0, 1, 8, 9, 16, 37, 91, 128, 129, 130, 257, 1000]),
            n: random.pick(&[4, 8, 12, 24, 32, 40, 72, 96, 100, 136, 7, 256, 264, 416, 0]),
            // At K = 2^28, scales take 2^30 bytes per 128 rows in MXFP4, and 2^31 in NVFP4.
            k: random.pick(&[32, 96, 160, 256, 480, 7168, 48, 16, 40, 0, 3 << 32, 1 << 30, 1 << 28]),
            e: is_grouped.then(|| random.pick(&[1, 1, 3, 8, 8, 33, 512, 513, 0])),
            p: is_padded.then(|| random.pick(&[0, 1, 128, 384, 1000, 4096, 1 << 20, 1 << 32])),
        };
        let expected = meets_the_rules(spec, &problem);
        let answer = kernel.query(&DEVICE, &problem.extents());
        let name = &kernel.metadata().kernel;
        assert_eq!(answer.is_ok(), expected, "{problem:?}: {answer:?} of {name}");
        good += usize::from(expected);
        bad += usize::from(!expected);
        let Ok(requirements) = answer else { continue };
        let mut outputs = output_bytes(spec, &problem);
        outputs.resize(requirements.outputs.len(), 0);
        assert_eq!(requirements.outputs[..], outputs, "{problem:?} of {name}");
        if problem.l == 0 || problem.m == 0 {
            assert_eq!((requirements.workspace, requirements.operands[sfb]), (0, 0));
            assert!(sfa.is_none_or(|sfa: usize| requirements.operands[sfa] == 0));
            continue;
        }
        let columns = problem.k as usize / block;
        let bytes = |rows: i64| numeric::blocked_len(rows as usize, columns);
        let bytes_a = match problem.p {
            Some(rows) => bytes(rows),
            None if is_grouped && !is_blocked => problem.m as usize * columns,
            None if is_grouped => {
                let e = problem.e.unwrap_or(1);
                e as usize * bytes(problem.m / e)
            }
            None => problem.l as usize * bytes(problem.m),
        };
        assert!(sfa.is_none_or(|sfa| requirements.operands[sfa] as usize == bytes_a), "{problem:?}");
        let bytes_b = problem.matrices() as usize * bytes(problem.n);
        assert_eq!(requirements.operands[sfb] as usize, bytes_b, "{problem:?}");
        // The blocked scales of groups, each of which may end with a part of 128 rows.
        let tiles = match problem.e {
            None => 0,
            Some(_) if is_blocked => 0,
            Some(e) if is_masked(spec) => e * (problem.m / e + 127).div_euclid(128),
            Some(e) => problem.m / 128 + problem.m.min(e + 1),
        };
        let scales = (tiles as usize * bytes(128)) as u64;
        let is_right = match spec.target.name {
            hopper::TARGET => workspaces(spec, &problem).any(|(decoded, piece)| {
                let rest = requirements.workspace.checked_sub(decoded);
                rest.is_some_and(|rest| rest % piece == 0 && rest / piece < DEVICE.sm_count as u64)
            }),
            _ => requirements.workspace.checked_sub(scales).is_some_and(|rest| rest < 1 << 24),
        };
        assert!(is_right, "unexpected workspace: {requirements:?} of {name}");
    }
    assert!(good >= SHAPES / 20 && bad >= SHAPES / 10, "{good} good and {bad} bad shapes");
}

/// Checks that a kernel accepts problems at the limits of L, M and N, with the grid of its own parameters, and
/// rejects those beyond. Thus every problem that a plan admits can be launched.
///
/// # Panics
/// Panics if it does not.
pub fn check_grid(spec: &ScaledMmaSpec, kernel: &Kernel) {
    let name = &kernel.metadata().kernel;
    let (mut taken, mut refused) = (0, 0);
    // At most one column of scale blocks.
    let rules = capabilities(spec.target.name).expect("a known target");
    let k_multiple = rules.format(format(spec)).expect("a format of the target").k_multiple;
    let k = i64::try_from(k_multiple.max(64)).expect("an extent");
    let problems = match &spec.configuration {
        Design::Cutlass(configuration) if configuration.groups.is_some() => group_limits(configuration),
        Design::Cutlass(configuration) => cutlass_limits(configuration),
        Design::Hopper(configuration) => hopper_limits(configuration),
    };
    let e = spec.configuration.groups().is_some().then_some(1);
    for ([l, m, n], launches) in problems {
        let extent = |extent: u64| i64::try_from(extent).expect("an extent");
        let p = is_padded(spec).then_some(128);
        let problem = Problem { l: extent(l), m: extent(m), n: extent(n), k, e, p };
        let answer = kernel.grid(&DEVICE, &problem.extents());
        assert_eq!(answer.is_ok(), launches, "{problem:?}: {answer:?} of {name}");
        assert_eq!(kernel.query(&DEVICE, &problem.extents()).is_ok(), launches, "{problem:?} of {name}");
        refused += usize::from(!launches);
        let Ok(found) = answer else { continue };
        taken += 1;
        let found = found.expect("a library of this ABI states its grid").map(u64::from);
        let [x, y, z] = found;
        assert!(0 < x && x <= i32::MAX as u64 && y <= grid::MAX_GRID_YZ && z <= grid::MAX_GRID_YZ);
        let Design::Cutlass(configuration) = &spec.configuration else {
            assert_eq!([y, z], [1, 1], "{problem:?} of {name}");
            continue;
        };
        if e.is_some() {
            // The ends of groups are data, so the grid never depends on them.
            assert_eq!(x * y * z, DEVICE.sm_count as u64, "{problem:?} of {name}");
            continue;
        }
        match grid::grid(configuration, [l, m, n]) {
            Grid { blocks: Some(blocks), .. } => assert_eq!(found, blocks, "{problem:?} of {name}"),
            Grid { tiles, .. } => {
                let blocks = tiles.map(|tiles| tiles.min(DEVICE.sm_count as u64));
                assert_eq!(Some(x * y * z), blocks, "{problem:?} of {name}");
            }
        }
    }
    assert!(taken >= 4 && refused >= 1, "{name}: {taken} accepted and {refused} rejected");
}

/// Returns problems at the limits of L, M and N, and one beyond each. The flag is true if a launch is possible.
fn cutlass_limits(configuration: &Configuration) -> Vec<([u64; 3], bool)> {
    let [tile_m, tile_n, _] = configuration.tile.map(u64::from);
    let most = grid::MAX_GRID_YZ;
    // Scales are limited to 2^22 blocks of 128 rows.
    let (rows, blocks) = (1 << 29, 1 << 22);
    let problems = [
        [most, 1, 64],
        [most + 1, 1, 64],
        [1, 1, most * tile_n],
        [1, 1, (most + 1) * tile_n],
        [1, most * tile_m, 64],
        [1, (most + 1) * tile_m, 64],
        [blocks - 1, 1, 64],
        [1, rows - 128, 64],
        // 2^15 tiles along N and 2^16 along M are one more than a 31-bit tile index can count.
        [1, (1 << 16) * tile_m, ((1 << 15) - 1) * tile_n],
        [1, (1 << 16) * tile_m, (1 << 15) * tile_n],
        [3, 257, 320],
    ];
    problems.map(|problem| (problem, grid::launches(configuration, problem).is_ok())).to_vec()
}

/// Returns the same for one group of rows. Beside the tiles of its rows, two may hold parts of tiles.
fn group_limits(configuration: &Configuration) -> Vec<([u64; 3], bool)> {
    let [tile_m, tile_n, _] = configuration.tile.map(u64::from);
    // Scales are limited to 2^22 blocks of 128 rows.
    let most = (1 << 29) - 128;
    let problems = [
        ([1, 1, 64], true),
        ([1, 1, most], true),
        ([1, most, 64], true),
        ([1, 1, most + 128], false),
        ([1, (1 << 16) * tile_m, ((1 << 15) - 1) * tile_n], true),
        ([1, (1 << 16) * tile_m, (1 << 15) * tile_n], false),
        ([1, 257, 320], true),
    ];
    problems.to_vec()
}

/// Returns the same for `sm_90a`, whose grids extend along x. Kernels for small M have no limit to test.
fn hopper_limits(configuration: &hopper::Configuration) -> Vec<([u64; 3], bool)> {
    const MATRICES: u64 = (1 << 22) - 1;
    let most_m = configuration.max_m().map_or(u64::MAX, u64::from);
    // 2^28 tiles are one too many. With several variants, the kernel selects tiles of 256 by 128 for such a problem.
    let large: Vec<&Tile> = configuration.variants.iter().filter(|tile| !tile.is_small_m()).collect();
    let (tile_m, tile_n) = match large[..] {
        [only] => (u64::from(only.m), u64::from(only.n)),
        // The larger of tiles with the same area; an 8-bit B has no tile of 256 rows.
        _ => large.last().map_or((256, 128), |tile| (u64::from(tile.m), u64::from(tile.n))),
    };
    let (m, n) = (tile_m << 14, tile_n << 14);
    let problems = [
        ([MATRICES, 1, 64], true),
        ([MATRICES, 16, 64], true),
        ([1, 1, MATRICES * 128], true),
        ([1, 16, MATRICES * 128], true),
        ([MATRICES + 1, 1, 64], false),
        ([1, m, n - tile_n], true),
        ([1, m, n], false),
        ([1, MATRICES * 128, 64], true),
    ];
    let is_taken = |([_, m, _], _): &([u64; 3], bool)| *m <= most_m;
    problems.into_iter().filter(is_taken).collect()
}

/// Returns the workspace of a `sm_90a` kernel in bytes, for each tile that supports the problem. The first number
/// is the size of A decoded in advance: two bytes per element, K in steps of 128, whole tiles of rows in the last
/// matrix; none for small-M tiles and for a 16-bit A. The second is the size of each split of a tile that other CTAs compute: its sums
/// and sixteen flags.
fn workspaces(spec: &ScaledMmaSpec, problem: &Problem) -> impl Iterator<Item = (u64, u64)> {
    let Design::Hopper(configuration) = &spec.configuration else { panic!("{:?}", spec.configuration) };
    let [l, m, k] = [problem.l, problem.m, problem.k].map(|extent| extent as u64);
    let is_weight_only = configuration.format.is_weight_only();
    let of_tile = move |tile: &Tile| match u64::from(tile.m) {
        rows if !tile.is_small_m() => {
            let decoded = ((l - 1) * m + m.next_multiple_of(rows)) * k.next_multiple_of(128) * 2;
            let decoded = if is_weight_only { 0 } else { decoded };
            Some((decoded, u64::from(tile.m * tile.n * 4 + 64)))
        }
        rows => (m <= rows).then_some((0, u64::MAX)),
    };
    configuration.variants.iter().filter_map(of_tile)
}

/// Returns the sizes of the outputs in bytes, in order.
fn output_bytes(spec: &ScaledMmaSpec, problem: &Problem) -> Vec<u64> {
    let [l, m, n] = [problem.l, problem.m, problem.n].map(|extent| extent as usize);
    let matrix = |element: ElementType| l * m * n * element.storage_bits() / 8;
    let bytes = spec.epilogue.outputs.iter().flat_map(|output| match output.kind {
        OutputKind::Value => vec![matrix(spec.epilogue.element(output.of))],
        OutputKind::Quantized { element, block, .. } => {
            vec![matrix(element), l * numeric::blocked_len(m, n / block as usize)]
        }
        OutputKind::Reduced { shape, .. } => vec![match shape {
            OperandShape::Row => n * 4,
            OperandShape::Column => l * m * 4,
            OperandShape::Scalar | OperandShape::Matrix => 4,
        }],
    });
    bytes.map(|bytes| bytes as u64).collect()
}

/// Returns true if each group of rows has a matrix of A of its own.
fn is_masked(spec: &ScaledMmaSpec) -> bool {
    spec.configuration.groups().is_some_and(|groups| groups.masked)
}

/// Returns true if scales of A have whole tiles for each group of rows.
fn is_padded(spec: &ScaledMmaSpec) -> bool {
    spec.configuration.groups().is_some_and(|groups| groups.blocked && !groups.masked)
}

/// Returns true exactly if the plan admits a call with this problem.
fn meets_the_rules(spec: &ScaledMmaSpec, problem: &Problem) -> bool {
    let capabilities = capabilities(spec.target.name).expect("a known target");
    let format = capabilities.format(format(spec)).expect("a format of the target");
    let extents = [problem.l, problem.m, problem.n, problem.k, problem.p.unwrap_or(0)];
    if extents.iter().any(|extent| *extent < 0 || format.max_extent < *extent as u64) {
        return false;
    }
    if problem.l == 0 || problem.m == 0 {
        return true; // Nothing is launched.
    }
    let [l, m, n] = [problem.l, problem.m, problem.n].map(|extent| extent as u64);
    let tiles = format.grid.tiles(l, m, n);
    if format.grid.max_matrices < l
        || format.grid.max_columns < n
        || tiles.is_none_or(|it| format.grid.max_tiles < it)
    {
        return false;
    }
    // A plan selects a kernel for small M only where M is known.
    if let Design::Hopper(configuration) = &spec.configuration
        && configuration.max_m().is_some_and(|most| i64::from(most) < problem.m)
    {
        return false;
    }
    // A kernel of groups has at least one.
    if problem.e.is_some_and(|e| e < 1 || format.max_groups.is_none_or(|most| most < e as u64)) {
        return false;
    }
    if is_masked(spec) && problem.e.is_some_and(|e| problem.m % e != 0) {
        return false;
    }
    let scale_bytes = |rows: i64, matrices: i64| {
        let matrix =
            numeric::checked_blocked_len(rows as usize, problem.k as usize / format.format.block as usize);
        matrix
            .and_then(|bytes| bytes.checked_mul(matrices as usize))
            .is_some_and(|bytes| bytes as u64 <= format.max_scale_bytes)
    };
    let of_a = scale_bytes(problem.m, problem.l) && problem.p.is_none_or(|rows| scale_bytes(rows, 1));
    let is_blocked = is_masked(spec) && spec.configuration.groups().is_some_and(|groups| groups.blocked);
    let of_a = of_a && problem.e.filter(|_| is_blocked).is_none_or(|e| scale_bytes(problem.m / e, e));
    if !of_a || !scale_bytes(problem.n, problem.matrices()) {
        return false;
    }
    let divides = |extent: i64, of: u64| Dim::fixed(extent as u64).is_multiple_of(of);
    let fits_output = |output: &Output| {
        let rule = match output.kind {
            OutputKind::Value => {
                format.output(spec.epilogue.element(output.of)).expect("a supported output type").n_multiple
            }
            OutputKind::Quantized { element, block, .. } => {
                let rules = &format.epilogue.quantized;
                let rule = rules.iter().find(|rule| (rule.element, rule.block) == (element, block));
                rule.expect("a supported output format").n_multiple
            }
            OutputKind::Reduced { .. } => 1,
        };
        divides(problem.n, rule)
    };
    let c = spec.epilogue.c.map_or(1, |c| format.c(c).expect("a supported type of C").n_multiple);
    problem.n > 0
        && problem.k > 0
        && divides(problem.k, format.k_multiple)
        && spec.epilogue.outputs.iter().all(fits_output)
        && divides(problem.n, c)
        && spec.epilogue.operands.iter().all(|operand| {
            let rule = format.epilogue.operand(operand.shape).and_then(|rule| rule.element(operand.element));
            divides(problem.n, rule.expect("a supported operand type").n_multiple)
        })
}

/// Checks that a kernel reads scales at the offsets of the blocked layout.
///
/// # Panics
/// Panics if it does not.
pub fn check_scale_places(spec: &ScaledMmaSpec, kernel: &Kernel) {
    let mut random = Random::new(0x5CA1E);
    let mut tensors = Vec::new();
    let mut position = 0;
    for output in &spec.epilogue.outputs {
        if let OutputKind::Quantized { block, .. } = output.kind {
            tensors.push((format!("y{}", position + 1), block));
            position += 1;
        }
        position += 1;
    }
    for (m, n, k, l) in [(1, 32, 32, 1), (130, 96, 96, 3), (37, 288, 160, 2), (257, 160, 1056, 1)] {
        let is_grouped = spec.configuration.groups().is_some();
        let (e, p) = (is_grouped.then_some(l), is_padded(spec).then_some(m));
        let problem = Problem { l: if is_grouped { 1 } else { l }, m, n, k, e, p };
        let operands = [("sfa".to_owned(), m, k), ("sfb".to_owned(), n, k)];
        let operands = operands.map(|(it, rows, extent)| (it, rows, extent, format(spec).block));
        // The scales of A of groups are linear, or their places depend on data.
        let operands = operands.into_iter().skip(usize::from(is_grouped));
        let outputs = tensors.iter().map(|(output, block)| (output.clone(), m, n, *block));
        for (operand, rows, extent, block) in operands.chain(outputs) {
            let columns = extent as usize / block as usize;
            let matrix = numeric::blocked_len(rows as usize, columns);
            for _ in 0..100 {
                let row = random.below(rows as usize);
                let block = random.below(columns);
                let batch = random.below(l as usize);
                let ours = batch * matrix + numeric::blocked_offset(row, block, columns);
                let theirs =
                    kernel.scale_offset(&operand, &problem.extents(), row as i64, block as i64, batch as i64);
                assert_eq!(theirs, Some(ours as i64), "{operand} ({row}, {block}, {batch}) of {problem:?}");
            }
        }
    }
}
