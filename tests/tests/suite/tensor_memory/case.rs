//! One tile of a GEMM as CUTLASS lays it out: shared memory, tensor memory, descriptors, and the expected results.

use fourfold::ir::numeric;

use super::device::{COLUMNS, Device, Function, Instruction, LANES, POISON, Registers, Threads};
use super::problem::{Problem, ROWS};

/// The bytes of a row that one instruction multiplies.
const STEP_BYTES: usize = 32;

/// The swizzles, by the bytes of a row of an atom.
pub(super) const WIDTHS: [u32; 3] = [32, 64, 128];

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    E2m1,
    E4m3,
    E5m2,
}

impl Element {
    /// The number of codes.
    pub fn codes(self) -> usize {
        if self == Element::E2m1 { 16 } else { 256 }
    }

    pub fn value(self, code: u8) -> f64 {
        f64::from(match self {
            Element::E2m1 => numeric::e2m1_to_f32(code),
            Element::E4m3 => numeric::e4m3_to_f32(code),
            Element::E5m2 => numeric::e5m2_to_f32(code),
        })
    }
}

/// The format of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Blocks of 16 codes with ue4m3 scales.
    Nvfp4,
    /// Blocks of 32 codes with ue8m0 scales.
    Mxfp4,
    /// e4m3 by e2m1, with ue8m0 scales. As in the following ones, elements take a byte of shared memory each.
    W4a8,
    /// e2m1 by e5m2.
    A4w8,
    /// e5m2 by e4m3.
    Mxfp8,
}

impl Format {
    pub const ALL: [Format; 5] = [Format::Nvfp4, Format::Mxfp4, Format::W4a8, Format::A4w8, Format::Mxfp8];

    /// The position in [`Format::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The elements of A and B.
    pub fn elements(self) -> [Element; 2] {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => [Element::E2m1; 2],
            Format::W4a8 => [Element::E4m3, Element::E2m1],
            Format::A4w8 => [Element::E2m1, Element::E5m2],
            Format::Mxfp8 => [Element::E5m2, Element::E4m3],
        }
    }

    /// Returns true if an element has a byte of shared memory.
    pub fn has_bytes(self) -> bool {
        !matches!(self, Format::Nvfp4 | Format::Mxfp4)
    }

    /// The elements that one instruction multiplies.
    pub fn step(self) -> usize {
        if self.has_bytes() { STEP_BYTES } else { 2 * STEP_BYTES }
    }

    /// The elements of a row: 128 bytes of shared memory.
    pub fn k(self) -> usize {
        4 * self.step()
    }

    /// The codes per scale.
    pub fn block(self) -> usize {
        if self == Format::Nvfp4 { 16 } else { 32 }
    }

    /// The `block` of an instruction.
    pub fn kind(self) -> u32 {
        if self.has_bytes() { 1 } else { self.block() as u32 }
    }

    /// A scale code that is NaN.
    pub fn nan(self) -> u8 {
        if self == Format::Nvfp4 { 0x7F } else { 0xFF }
    }

    /// The bytes of a row of a swizzle atom, if it can be chosen: 4-bit codes in bytes have 128.
    pub fn width(self, width: u32) -> u32 {
        let is_spread = self.has_bytes() && self.elements().contains(&Element::E2m1);
        if is_spread { 128 } else { width }
    }

    /// The numbers of the elements in an instruction descriptor.
    fn numbers(self) -> [u32; 2] {
        self.elements().map(|element| match element {
            Element::E2m1 if self.has_bytes() => 5,
            Element::E2m1 | Element::E5m2 => 1,
            Element::E4m3 => 0,
        })
    }

    /// The steps along K whose scales one column of tensor memory has.
    fn steps_per_atom(self) -> usize {
        4 * self.block() / self.step()
    }

    /// The scale ID of a step: the byte of its first scale.
    fn id(self, step: usize) -> u32 {
        (step % self.steps_per_atom() * (self.step() / self.block())) as u32
    }
}

/// The functions that execute the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// `execute_mma` by one thread.
    Thread,
    /// `execute_mma` by each lane in turn.
    Lanes,
    /// A queue that the warp's next `elect.sync` executes.
    Flush,
    /// A queue that a `tcgen05.commit` executes.
    Commit,
}

impl Path {
    pub const ALL: [Path; 4] = [Path::Thread, Path::Lanes, Path::Flush, Path::Commit];
}

/// One tile.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub format: Format,
    /// The SMs.
    pub group: u32,
    pub n: u32,
    /// The bytes of a row of a swizzle atom.
    pub width: u32,
    /// The steps along K, in the order of the instructions.
    pub steps: Vec<usize>,
    /// One of four layouts of tensor memory.
    pub place: usize,
    /// The distance of groups of eight rows, in units of the densest.
    pub stride: u32,
    /// The first instruction adds to numbers that are in D.
    pub accumulates: bool,
    pub path: Path,
    /// The scales of B have another scale ID than those of A.
    pub swaps_ids: bool,
    /// Higher lanes run first.
    pub descending: bool,
}

/// The offsets of scales in shared memory, 512 bytes per atom.
const SFA: u32 = 160 << 10;
const SFB: u32 = 176 << 10;

/// The columns of tensor memory that a case uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub d: u32,
    pub sfa: u32,
    pub sfb: u32,
}

impl Case {
    /// Returns a case of two SMs.
    pub fn pair(format: Format) -> Case {
        Case {
            format,
            group: 2,
            n: 96,
            width: 128,
            steps: vec![2],
            place: 1,
            stride: 1,
            accumulates: false,
            path: Path::Flush,
            swaps_ids: true,
            descending: false,
        }
    }

    /// Returns a case of one SM.
    pub fn single(format: Format) -> Case {
        Case { group: 1, ..Case::pair(format) }
    }

    fn atoms_along_k(&self) -> u32 {
        (4 / self.format.steps_per_atom()) as u32
    }

    /// The atoms of scales of B, each for 128 rows.
    fn atoms_along_n(&self) -> u32 {
        self.n.div_ceil(128)
    }

    pub fn registers(&self) -> Registers {
        Registers { descending: self.descending, ..Registers::new(self.group) }
    }

    /// The thread that issues instructions.
    pub fn issuer(&self) -> Threads {
        Threads { lanes: 1 << 7, ..self.warp() }
    }

    /// The warp of that thread.
    pub fn warp(&self) -> Threads {
        Threads::warp(0, 1)
    }

    pub fn columns(&self) -> Columns {
        let (of_a, of_b) = (4 * self.atoms_along_k(), 4 * self.atoms_along_k() * self.atoms_along_n());
        let end = COLUMNS as u32;
        match self.place {
            0 => Columns { d: 0, sfa: self.n, sfb: self.n + of_a },
            1 => Columns { d: end - self.n, sfa: 0, sfb: of_a },
            2 => Columns { d: 3, sfa: end - of_b - of_a, sfb: end - of_b },
            _ => Columns { d: end - of_a - of_b - self.n, sfa: end - of_a, sfb: end - of_a - of_b },
        }
    }

    /// The offset of A or B. CUTLASS aligns matrices to 128 bytes only, while atoms of the widest swizzle have 1,024.
    fn base(&self, is_b: bool) -> u32 {
        let (atom, line) = (8 * self.width, if self.width == 128 { 128 } else { 0 });
        if is_b { (64 << 10) + 5 * atom + 5 * line } else { (4 << 10) + 3 * atom + 3 * line }
    }

    fn stride_bytes(&self) -> u32 {
        self.stride * 8 * self.width
    }

    /// The offset of a step along K: within a swizzle atom, then in the next atoms, which follow all rows.
    fn start(&self, is_b: bool, step: usize) -> u32 {
        let rows = if is_b { self.n / self.group } else { LANES as u32 };
        let byte = (step * STEP_BYTES) as u32;
        self.base(is_b) + byte / self.width * (rows / 8 * self.stride_bytes()) + byte % self.width
    }

    /// Writes rows of codes into shared memory, each 16 bytes at the place that the swizzle gives them.
    fn write_codes(&self, device: &mut Device, cta: u32, is_b: bool, rows: &[Vec<u8>]) {
        let region = rows.len() as u32 / 8 * self.stride_bytes();
        let is_narrow = self.format.elements()[usize::from(is_b)] == Element::E2m1;
        let packed =
            |codes: &[u8]| -> Vec<u8> { codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect() };
        for (row, codes) in (0..).zip(rows) {
            if is_narrow && self.format.has_bytes() {
                // Hopper cannot leave gaps, so the codes of the rows of an atom lie at its begin, in order.
                let offset = row / 8 * self.stride_bytes() + row % 8 * 64;
                device.write_shared(cta, self.base(is_b) + offset, &packed(codes));
                continue;
            }
            for (piece, codes) in (0..).zip(codes.chunks(if is_narrow { 32 } else { 16 })) {
                let bytes = if is_narrow { packed(codes) } else { codes.to_vec() };
                let (atom, chunk) = (piece * 16 / self.width, piece * 16 % self.width / 16);
                // Memory has lines of 128 bytes. A line's number is XORed with those of its chunks.
                let of_row = row / 8 * self.stride_bytes() + row % 8 * self.width;
                let begin = self.base(is_b) + atom * region + of_row;
                let moved = chunk ^ (begin / 128 % (self.width / 16));
                device.write_shared(cta, begin + moved * 16, &bytes);
            }
        }
    }

    /// Returns an atom of scales: 128 rows with four scales each, 32 rows beside each other.
    fn scale_atom(&self, scales: &[Vec<u8>], atom_of_k: u32, is_b: bool) -> Vec<u8> {
        let mut bytes = vec![0xFF; 512];
        for (row, scales) in scales.iter().take(128).enumerate() {
            let of_row = &scales[4 * atom_of_k as usize..][..4];
            for (place, scale) in of_row.iter().enumerate() {
                let place = if is_b && self.has_other_ids() { place ^ 2 } else { place };
                bytes[row % 32 * 16 + row / 32 * 4 + place] = *scale;
            }
        }
        bytes
    }

    fn has_other_ids(&self) -> bool {
        self.swaps_ids && self.format != Format::Nvfp4
    }

    /// The rows of A of a CTA.
    fn rows_of_a(&self, cta: u32) -> std::ops::Range<usize> {
        cta as usize * LANES..(cta as usize + 1) * LANES
    }

    /// Resets the device, allocates tensor memory, and writes operands into shared memory.
    pub fn load(&self, device: &mut Device, problem: &Problem) {
        device.reset(&self.registers());
        device.alloc((1 << self.group) - 1, COLUMNS as u32, self.group);
        let share = (self.n / self.group) as usize;
        for cta in 0..self.group {
            let rows = self.rows_of_a(cta);
            self.write_codes(device, cta, false, &problem.a[rows.clone()]);
            self.write_codes(device, cta, true, &problem.b[cta as usize * share..][..share]);
            for atom_of_k in 0..self.atoms_along_k() {
                let atom = self.scale_atom(&problem.sfa[rows.clone()], atom_of_k, false);
                device.write_shared(cta, SFA + atom_of_k * 512, &atom);
                for atom_of_n in 0..self.atoms_along_n() {
                    let rows = atom_of_n as usize * 128..self.n as usize;
                    let atom = self.scale_atom(&problem.sfb[rows], atom_of_k, true);
                    let index = atom_of_k * self.atoms_along_n() + atom_of_n;
                    device.write_shared(cta, SFB + index * 512, &atom);
                }
            }
        }
    }

    /// Returns the copies of scales.
    pub fn copies(&self) -> Vec<Instruction> {
        let columns = self.columns();
        let copy = |from: u32, to: u32| Instruction {
            group: self.group,
            d: to,
            // A matrix without swizzle: rows of 16 bytes, eight of them in 128 bytes. The leading offset is not used.
            a: descriptor(from, 3, 128, 0),
            ..Instruction::default()
        };
        let of_a = (0..self.atoms_along_k()).map(|atom| copy(SFA + atom * 512, columns.sfa + atom * 4));
        let of_b = (0..self.atoms_along_k() * self.atoms_along_n())
            .map(|atom| copy(SFB + atom * 512, columns.sfb + atom * 4));
        of_a.chain(of_b).collect()
    }

    /// Returns the multiplication of a step.
    pub fn multiplication(&self, step: usize, accumulates: bool) -> Instruction {
        let columns = self.columns();
        let atom_of_k = (step / self.format.steps_per_atom()) as u32;
        let id_of_a = self.format.id(step);
        let id_of_b = if self.has_other_ids() { id_of_a ^ 2 } else { id_of_a };
        let layout = match self.width {
            32 => 6,
            64 => 4,
            _ => 2,
        };
        let is_mx = u32::from(self.format != Format::Nvfp4);
        let [of_a, of_b] = self.format.numbers();
        Instruction {
            block: self.format.kind(),
            group: self.group,
            d: columns.d,
            descriptor: id_of_b << 4
                | of_a << 7
                | of_b << 10
                | (self.n / 8) << 17
                | is_mx << 23
                | (128 * self.group / 16) << 24
                | id_of_a << 29,
            sfa: (columns.sfa + atom_of_k * 4) | id_of_a << 30,
            sfb: (columns.sfb + atom_of_k * self.atoms_along_n() * 4) | id_of_b << 30,
            accumulates: u32::from(accumulates),
            a: descriptor(self.start(false, step), 1, self.stride_bytes(), layout),
            b: descriptor(self.start(true, step), 1, self.stride_bytes(), layout),
        }
    }

    /// Executes instructions in the way of the case.
    pub fn execute(&self, device: &mut Device, instructions: &[Instruction]) {
        for instruction in instructions {
            let is_copy = instruction.block == 0;
            let (function, threads) = match (self.path, is_copy) {
                (Path::Thread, true) => (Function::ExecuteCopy, self.issuer()),
                (Path::Thread, false) => (Function::ExecuteMma, self.issuer()),
                (Path::Lanes, true) => (Function::ExecuteCopyByLanes, self.warp()),
                (Path::Lanes, false) => (Function::ExecuteMmaByLanes, self.warp()),
                (_, true) => (Function::CopyScales, self.issuer()),
                (_, false) => (Function::Mma, self.issuer()),
            };
            device.issue(function, threads, instruction);
        }
        match self.path {
            Path::Flush => drop(device.call(Function::Flush, self.warp(), &[u64::from(u32::MAX)])),
            Path::Commit => drop(device.call(Function::Commit, self.issuer(), &[0, 0, 1, 0])),
            Path::Thread | Path::Lanes => {}
        }
    }

    /// Returns the numbers in D before the first multiplication: multiples of the unit of their row and column.
    fn initial(&self, problem: &Problem, m: usize, n: usize) -> f64 {
        match &problem.units {
            Some([of_a, of_b]) if self.accumulates => {
                let number = (m * 1_664_525 + n * 22_695_477 + m * n) % 8191;
                (number as f64 - 4095.0) / 4.0 * 2f64.powi(of_a[m] + of_b[n])
            }
            _ => 0.0,
        }
    }

    /// Returns the expected tensor memory of a CTA, without D: poison and scales.
    pub fn expected_scales(&self, problem: &Problem, cta: u32) -> Vec<u32> {
        let mut words = vec![POISON; COLUMNS * LANES];
        let columns = self.columns();
        let mut write = |first: u32, atom: &[u8]| {
            for row in 0..128 {
                let bytes = &atom[row % 32 * 16 + row / 32 * 4..][..4];
                let word = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                for copy in 0..4 {
                    words[(first as usize + row / 32) * LANES + copy * 32 + row % 32] = word;
                }
            }
        };
        for atom_of_k in 0..self.atoms_along_k() {
            let atom = self.scale_atom(&problem.sfa[self.rows_of_a(cta)], atom_of_k, false);
            write(columns.sfa + atom_of_k * 4, &atom);
            for atom_of_n in 0..self.atoms_along_n() {
                let rows = atom_of_n as usize * 128..self.n as usize;
                let atom = self.scale_atom(&problem.sfb[rows], atom_of_k, true);
                write(columns.sfb + (atom_of_k * self.atoms_along_n() + atom_of_n) * 4, &atom);
            }
        }
        words
    }

    /// Executes the case, and compares all of tensor memory.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check(&self, device: &mut Device, problem: &Problem) -> Result<(), String> {
        self.load(device, problem);
        let (n, columns) = (self.n as usize, self.columns());
        if self.accumulates {
            for cta in 0..self.group {
                let first = cta as usize * LANES;
                let word =
                    |at: usize| (self.initial(problem, first + at % LANES, at / LANES) as f32).to_bits();
                let words: Vec<u32> = (0..n * LANES).map(word).collect();
                device.write_tensor(self.registers().sm[cta as usize], columns.d, &words);
            }
        }
        let mut instructions = self.copies();
        for (index, step) in self.steps.iter().enumerate() {
            instructions.push(self.multiplication(*step, self.accumulates || index > 0));
        }
        self.execute(device, &instructions);
        for cta in 0..self.group {
            let found = device.read_tensor(self.registers().sm[cta as usize]);
            let mut expected = self.expected_scales(problem, cta);
            for column in 0..n {
                for lane in 0..LANES {
                    let at = (columns.d as usize + column) * LANES + lane;
                    let m = cta as usize * LANES + lane;
                    let sums = self.steps.iter().map(|step| problem.sums[*step][m * ROWS + column]);
                    let (mut value, mut magnitude) = (self.initial(problem, m, column), 0.0);
                    for sum in sums {
                        value += sum.value;
                        magnitude += sum.magnitude;
                    }
                    let got = f32::from_bits(found[at]);
                    // One step has at most four blocks, each with one rounding.
                    let bound = if problem.units.is_some() { 0.0 } else { magnitude * 4.0 * 2f64.powi(-24) };
                    let is_right = got.to_bits() == (value as f32).to_bits()
                        || got.is_nan() && value.is_nan()
                        || (f64::from(got) - value).abs() <= bound && bound > 0.0;
                    if !is_right {
                        return Err(format!(
                            "D of CTA {cta}, row {lane}, column {column}: {got:e}, not {value:e}"
                        ));
                    }
                    expected[at] = found[at];
                }
            }
            if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
                return Err(format!(
                    "CTA {cta}, column {}, lane {}: {:#x}, not {:#x}",
                    at / LANES,
                    at % LANES,
                    found[at],
                    expected[at]
                ));
            }
        }
        let state = device.state();
        if (state.fault, state.unwritten, state.misused) != (0, 0, 0) {
            return Err(format!(
                "fault {} {:x?}, {} reads of unwritten bytes, {} misuses",
                state.fault, state.values, state.unwritten, state.misused
            ));
        }
        Ok(())
    }
}

/// Returns a shared memory descriptor: offsets and strides in bytes, version 1, and the layout's number.
pub(super) fn descriptor(start: u32, leading: u64, stride: u32, layout: u64) -> u64 {
    u64::from(start >> 4) | leading << 16 | u64::from(stride >> 4) << 32 | 1 << 46 | layout << 61
}
