//! Provokes each fault that the device functions report. Its number and values are checked, and that the results that
//! cannot be computed are NaN.

use std::collections::BTreeSet;

use fourfold_tests::random::Random;

use super::case::{Case, Format, Path, descriptor};
use super::device::{COLUMNS, Device, Function, Instruction, LANES, STATE, State, Threads};
use super::problem::Problem;

/// Bits of a shared memory descriptor, and what a fault says of them.
const BITS_OF_SHARED: [(&[u64], u32); 3] =
    [(&[14, 15, 30, 31], 1), (&[46, 47], 2), (&[48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60], 4)];

/// Bits of an instruction descriptor, and what a fault says of them.
const BITS_OF_INSTRUCTION: [(&[u32], u32); 7] = [
    (&[0, 1, 2, 3], 1),
    (&[6], 2),
    (&[7, 8, 9, 10, 11, 12], 4),
    (&[13, 14, 15, 16], 8),
    (&[24, 25, 26, 27, 28], 16),
    (&[31], 64),
    (&[4, 29], 256),
];

/// A device with operands, and the numbers of the faults that it has reported.
struct Provocation {
    device: Device,
    /// One for each format.
    problems: Vec<Problem>,
    numbers: BTreeSet<u32>,
}

impl Provocation {
    fn start() -> Provocation {
        let mut random = Random::new(0xFA_017);
        Provocation {
            device: Device::start(),
            problems: Format::ALL.iter().map(|format| Problem::exact(*format, &mut random)).collect(),
            numbers: BTreeSet::new(),
        }
    }

    fn problem(&self, format: Format) -> &Problem {
        &self.problems[format.index()]
    }

    /// Loads operands, copies scales, and fills D and what follows with numbers.
    fn load(&mut self, case: &Case) {
        case.load(&mut self.device, &self.problems[case.format.index()]);
        case.execute(&mut self.device, &case.copies());
        self.fill(case);
    }

    fn fill(&mut self, case: &Case) {
        let columns = COLUMNS - case.columns().d as usize;
        for cta in 0..case.group as usize {
            let ones = vec![1f32.to_bits(); columns.min(case.n as usize) * LANES];
            self.device.write_tensor(case.registers().sm[cta], case.columns().d, &ones);
        }
    }

    /// Checks the recorded fault.
    fn expect(&mut self, name: &str, fault: u32, values: [u32; 3]) -> State {
        let state = self.device.state();
        assert_eq!((state.fault, state.values), (fault, values), "{name}: {:x?}", state.values);
        self.numbers.insert(fault);
        state
    }

    /// Executes a wrong multiplication. D is NaN afterwards.
    fn multiply(
        &mut self,
        name: &str,
        case: &Case,
        fault: u32,
        change: impl Fn(&mut Instruction),
        values: impl Fn(&Instruction) -> [u32; 3],
    ) {
        self.load(case);
        let mut instruction = case.multiplication(case.steps[0], true);
        change(&mut instruction);
        case.execute(&mut self.device, &[instruction]);
        self.expect(name, fault, values(&instruction));
        let (first, n) = (instruction.d & 0xFFFF, instruction.descriptor >> 17 & 0x3F);
        self.expect_nan(name, case, first as usize, 8 * n as usize);
    }

    /// Executes a wrong copy of scales. The columns are NaN afterwards.
    fn copy(
        &mut self,
        name: &str,
        case: &Case,
        fault: u32,
        change: impl Fn(&mut Instruction),
        values: impl Fn(&Instruction) -> [u32; 3],
    ) {
        self.load(case);
        let mut instruction = case.copies()[0];
        change(&mut instruction);
        case.execute(&mut self.device, &[instruction]);
        self.expect(name, fault, values(&instruction));
        self.expect_nan(name, case, (instruction.d & 0xFFFF) as usize, 4);
    }

    fn expect_nan(&mut self, name: &str, case: &Case, first: usize, count: usize) {
        for cta in 0..case.group as usize {
            let found = self.device.read_tensor(case.registers().sm[cta]);
            let words = &found[first * LANES..(first + count).min(COLUMNS) * LANES];
            assert!(
                words.iter().all(|word| f32::from_bits(*word).is_nan()),
                "{name}: {count} columns of CTA {cta}"
            );
        }
    }
}

fn halves(of: u64) -> [u32; 2] {
    [of as u32, (of >> 32) as u32]
}

fn shared_descriptors(at: &mut Provocation, case: &Case) {
    let check = |at: &mut Provocation, name: &str, wrong: u32, change: &dyn Fn(u64) -> u64| {
        let values = |of: u64| [halves(of)[0], halves(of)[1], wrong];
        at.multiply(&format!("A: {name}"), case, 9, |of| of.a = change(of.a), |of| values(of.a));
        at.multiply(&format!("B: {name}"), case, 9, |of| of.b = change(of.b), |of| values(of.b));
    };
    for (bits, wrong) in BITS_OF_SHARED {
        for bit in bits {
            check(at, &format!("bit {bit}"), wrong, &|of| of ^ 1 << bit);
            let values = |of: &Instruction| [halves(of.a)[0], halves(of.a)[1], wrong];
            at.copy(&format!("scales: bit {bit}"), case, 9, |of| of.a ^= 1 << bit, values);
        }
    }
    let layout = |of: u64, layout: u64| of & !(7 << 61) | layout << 61;
    check(at, "no swizzle", 16, &|of| layout(of, 0));
    for (odd, wrong) in [(1, 8 | 64), (3, 8), (5, 8), (7, 8)] {
        check(at, &format!("layout {odd}"), wrong, &|of| layout(of, odd));
    }
    let stride = |of: u64, stride: u64| of & !(0x3FFF << 32) | (stride / 16) << 32;
    for bytes in [0, 16, 512, 1024 + 128, 1024 + 512] {
        check(at, &format!("stride {bytes}"), 64, &|of| stride(of, bytes));
    }
    for leading in [2, 64] {
        check(at, &format!("leading offset {leading}"), 32, &|of| of & !(0x3FFF << 16) | leading << 16);
    }
    let narrow = Case { width: 64, ..case.clone() };
    at.multiply(
        "stride",
        &narrow,
        9,
        |of| of.a = stride(of.a, 256),
        |of| [halves(of.a)[0], halves(of.a)[1], 64],
    );
    for (swizzle, bytes) in [(2, 1024), (4, 512), (6, 256)] {
        let change = |of: &mut Instruction| of.a = stride(layout(of.a, swizzle), bytes);
        at.copy("swizzled scales", case, 9, change, |of| [halves(of.a)[0], halves(of.a)[1], 16]);
    }
    at.copy(
        "stride of scales",
        case,
        9,
        |of| of.a = stride(of.a, 64),
        |of| [halves(of.a)[0], halves(of.a)[1], 64],
    );
}

fn instruction_descriptors(at: &mut Provocation, case: &Case) {
    let check = |at: &mut Provocation, case: &Case, name: &str, wrong: u32, change: &dyn Fn(u32) -> u32| {
        let values = |of: &Instruction| [of.descriptor, wrong, of.block];
        at.multiply(name, case, 10, |of| of.descriptor = change(of.descriptor), values);
    };
    for (bits, wrong) in BITS_OF_INSTRUCTION {
        for bit in bits {
            check(at, case, &format!("bit {bit}"), wrong, &|of| of ^ 1 << bit);
        }
    }
    let extent = |of: u32, n: u32| of & !(0x3F << 17) | (n / 8) << 17;
    let mut extents = vec![0, 264, 8 * 63];
    if case.group == 2 {
        extents.extend([8, 24, 248]);
    }
    for n in extents {
        check(at, case, &format!("N {n}"), 32, &|of| extent(of, n));
    }
    let mx = Case { format: Format::Mxfp4, ..case.clone() };
    check(at, &mx, "ue4m3 for blocks of 32", 128, &|of| of ^ 1 << 23);
    for id in [1, 3] {
        check(at, &mx, "ID of SFA", 256, &|of| of & !(3 << 29) | id << 29);
        check(at, &mx, "ID of SFB", 256, &|of| of & !(3 << 4) | id << 4);
    }
    // Blocks of 16 may have ue8m0 scales, but one ID.
    check(at, case, "ID 2", 256, &|of| of | 1 << 23 | 2 << 29);
    let bytes = Case { format: Format::W4a8, ..case.clone() };
    check(at, &bytes, "ue4m3 for bytes", 128, &|of| of ^ 1 << 23);
    for element in [2, 3, 4, 6, 7] {
        check(at, &bytes, "elements of A", 4, &|of| of & !(7 << 7) | element << 7);
        check(at, &bytes, "elements of B", 4, &|of| of & !(7 << 10) | element << 10);
    }
}

/// 4-bit codes are spread over bytes only with the 128-byte swizzle.
fn swizzles_of_codes(at: &mut Provocation, group: u32) {
    for (format, is_b) in [(Format::W4a8, true), (Format::A4w8, false)] {
        for layout in [4, 6] {
            let case = Case { format, group, ..Case::pair(format) };
            let change = |of: &mut Instruction| {
                let changed = if is_b { &mut of.b } else { &mut of.a };
                *changed = *changed & !(7 << 61) | layout << 61;
            };
            let values = |of: &Instruction| {
                let of = if is_b { of.b } else { of.a };
                [of as u32, (of >> 32) as u32, 128]
            };
            at.multiply("the swizzle of codes", &case, 9, change, values);
        }
    }
}

fn addresses(at: &mut Provocation, case: &Case) {
    for lane in [1, 32, 0x7FFF] {
        at.multiply("lane of D", case, 7, |of| of.d |= lane << 16, |of| [of.d, 0, 0]);
        at.copy("lane of scales", case, 7, |of| of.d |= lane << 16, |of| [of.d, 0, 0]);
    }
    for change in [1 << 16, 1 << 29, 1 << 30, 2 << 30] {
        let of_a = |of: &Instruction| [of.sfa, of.descriptor, 0];
        at.multiply("address of SFA", case, 11, |of| of.sfa ^= change, of_a);
        let of_b = |of: &Instruction| [of.sfb, of.descriptor, 0];
        at.multiply("address of SFB", case, 11, |of| of.sfb ^= change, of_b);
    }
    let end = COLUMNS as u32;
    let last = |of: &Instruction| [of.d, case.n, end];
    at.multiply("columns of D", case, 6, |of| of.d = end - case.n + 1, last);
    at.multiply("columns of D", case, 6, |of| of.d = end - 1, last);
    at.multiply("columns of SFA", case, 6, |of| of.sfa = end - 3, |of| [of.sfa, 4, end]);
    let of_b = case.n.div_ceil(32);
    at.multiply("columns of SFB", case, 6, |of| of.sfb = end - of_b + 1, |of| [of.sfb, of_b, end]);
    at.copy("columns of a copy", case, 6, |of| of.d = end - 3, |of| [of.d, 4, end]);
    // Half of tensor memory is allocated, and the rest stays as it was.
    let case = Case { place: 0, n: 128, ..case.clone() };
    at.load(&case);
    at.device.reset(&case.registers());
    at.device.alloc((1 << case.group) - 1, 256, case.group);
    at.fill(&case);
    let instruction = Instruction { d: 192, ..case.multiplication(case.steps[0], true) };
    case.execute(&mut at.device, &[instruction]);
    at.expect("columns that are not allocated", 6, [192, 128, 256]);
    at.expect_nan("columns that are not allocated", &case, 192, 64);
}

fn shared_memory(at: &mut Provocation, case: &Case) {
    let bytes = case.registers().shared_bytes;
    for change in [false, true] {
        let from = descriptor(bytes - 2048, 1, 1024, 2);
        at.load(case);
        let mut instruction = case.multiplication(case.steps[0], true);
        *(if change { &mut instruction.b } else { &mut instruction.a }) = from;
        case.execute(&mut at.device, &[instruction]);
        at.expect("rows beyond shared memory", 20, [bytes, bytes, 0]);
        let share = (case.n / case.group) as usize;
        for cta in 0..case.group as usize {
            let found = at.device.read_tensor(case.registers().sm[cta]);
            for column in 0..case.n as usize {
                for lane in 0..LANES {
                    let word = found[(case.columns().d as usize + column) * LANES + lane];
                    // 16 rows fit.
                    let fits = if change { column % share < 16 } else { lane < 16 };
                    assert_eq!(f32::from_bits(word).is_nan(), !fits, "column {column}, lane {lane}");
                }
            }
        }
    }
    at.load(case);
    let copy =
        Instruction { a: descriptor(bytes - 256, 1, 128, 0), d: case.columns().sfa, ..case.copies()[0] };
    at.device.write_shared(0, bytes - 256, &[0x38; 256]);
    case.execute(&mut at.device, &[copy]);
    at.expect("scales beyond shared memory", 20, [bytes, bytes, 0]);
    let found = at.device.read_tensor(case.registers().sm[0]);
    for (index, word) in found[case.columns().sfa as usize * LANES..][..4 * LANES].iter().enumerate() {
        assert_eq!(*word, if index % 32 < 16 { 0x3838_3838 } else { u32::MAX });
    }
}

fn copies_of_scales(at: &mut Provocation, case: &Case) {
    let (d, first) = (case.columns().d as usize, case.columns().sfa as usize);
    for (row, copy) in [(0, 1), (17, 2), (127, 3)] {
        at.load(case);
        let sm = case.registers().sm[0];
        let column = first + row / 32;
        let mut words = at.device.read_tensor(sm)[column * LANES..][..LANES].to_vec();
        words[copy * 32 + row % 32] ^= 0x0100;
        at.device.write_tensor(sm, column as u32, &words);
        case.execute(&mut at.device, &[case.multiplication(0, false)]);
        at.expect("copies of SFA", 19, [row as u32, column as u32, copy as u32]);
        let found = at.device.read_tensor(sm);
        for at in 0..case.n as usize * LANES {
            let is_nan = f32::from_bits(found[d * LANES + at]).is_nan();
            assert_eq!(is_nan, at % LANES == row, "row {}, column {}", at % LANES, at / LANES);
        }
    }
    // A wrong copy of SFB changes a quarter of a column of D.
    let n = 40;
    for copy in 0..4 {
        at.load(case);
        let sm = case.registers().sm[0];
        let column = case.columns().sfb as usize + n / 32;
        let mut words = at.device.read_tensor(sm)[column * LANES..][..LANES].to_vec();
        words[copy * 32 + n % 32] = u32::MAX;
        at.device.write_tensor(sm, column as u32, &words);
        case.execute(&mut at.device, &[case.multiplication(0, false)]);
        let found = at.device.read_tensor(sm);
        let of_nan: Vec<usize> = (0..case.n as usize * LANES)
            .filter(|at| f32::from_bits(found[d * LANES + at]).is_nan())
            .collect();
        let expected: Vec<usize> =
            (0..LANES).filter(|row| row % 4 == copy).map(|row| n * LANES + row).collect();
        assert_eq!(of_nan, expected, "copy {copy} of SFB");
    }
}

fn pairs(at: &mut Provocation) {
    let case = Case { path: Path::Lanes, ..Case::pair(Format::Nvfp4) };
    for is_copy in [false, true] {
        at.load(&case);
        // Only one CTA has tensor memory.
        at.device.reset(&case.registers());
        at.device.alloc(1, COLUMNS as u32, 1);
        at.fill(&case);
        let instruction = if is_copy { case.copies()[0] } else { case.multiplication(0, false) };
        case.execute(&mut at.device, &[instruction]);
        at.expect("a pair of one", 16, [1, 0, 0]);
        let single = Case { group: 1, ..case.clone() };
        let columns = if is_copy { 4 } else { case.n as usize };
        at.expect_nan("a pair of one", &single, instruction.d as usize, columns);
    }
    // The other CTA never allocates.
    at.device.reset(&case.registers());
    at.device.alloc(1, COLUMNS as u32, 2);
    at.expect("a pair of one", 16, [1, 0, 0]);
}

fn queues(at: &mut Provocation, case: &Case) {
    let case = Case { path: Path::Flush, ..case.clone() };
    let (warp, other) = (case.warp(), Threads { warp: 2, ..case.warp() });
    let (copy, flush) = (case.copies()[0], [u64::from(u32::MAX)]);
    at.load(&case);
    for _ in 0..64 {
        at.device.issue(Function::CopyScales, case.issuer(), &copy);
    }
    assert_eq!(at.device.state().fault, 0);
    at.device.issue(Function::Mma, case.issuer(), &case.multiplication(0, false));
    let state = at.expect("65 instructions", 13, [64, 0, 0]);
    assert_eq!((state.block, state.thread), ([0; 3], 32 + 7));

    at.load(&case);
    at.device.issue(Function::CopyScales, case.issuer(), &copy);
    at.device.issue(Function::Mma, other.first_lane(), &case.multiplication(0, false));
    at.expect("two warps", 14, [2, 1, 0]);
    // Another warp's elect.sync does not execute the queue, and the own one empties it.
    at.device.write_shared(0, 160 << 10, &[0x11; 512]);
    let first = case.columns().sfa as usize * LANES;
    let before = at.device.read_tensor(case.registers().sm[0]);
    at.device.call(Function::Flush, other, &flush);
    assert_eq!(at.device.read_tensor(case.registers().sm[0]), before);
    at.device.call(Function::Flush, warp, &flush);
    assert_eq!(at.device.read_tensor(case.registers().sm[0])[first..][..4 * LANES], [0x1111_1111; 4 * LANES]);
    at.device.reset(&case.registers());
    at.device.alloc(1, COLUMNS as u32, 1);
    at.device.issue(Function::Mma, other.first_lane(), &case.multiplication(0, false));
    assert_eq!(at.device.state().fault, 0);

    at.load(&case);
    at.device.issue(Function::CopyScales, case.issuer(), &copy);
    at.device.call(Function::Flush, Threads { lanes: 0xFFFF, ..warp }, &[0xFFFF]);
    at.expect("half of a warp", 12, [0xFFFF, 0, 0]);

    for group in [0, 2, 3] {
        at.load(&case);
        let instruction = Instruction { group, ..case.multiplication(0, true) };
        at.device.issue(Function::Mma, case.issuer(), &instruction);
        at.expect("the group", 17, [group, 1, 0]);
    }
    let pair = Case::pair(Format::Nvfp4);
    at.load(&pair);
    at.device.issue(Function::CopyScales, pair.issuer(), &Instruction { group: 3, ..copy });
    at.expect("the group", 17, [3, 2, 0]);

    // A later fault does not replace the first.
    at.device.issue(Function::CopyScales, pair.issuer(), &Instruction { group: 0, ..copy });
    at.expect("the group", 17, [3, 2, 0]);
}

fn allocations(at: &mut Provocation) {
    let case = Case::single(Format::Nvfp4);
    let warp = Threads::warp(0, 0);
    for columns in [0, 16, 48, 1024] {
        at.device.reset(&case.registers());
        at.device.alloc(1, columns, 1);
        at.expect("columns of an allocation", 4, [columns, 0, 0]);
    }
    at.device.reset(&case.registers());
    at.device.alloc(1, 128, 1);
    at.device.alloc(1, 128, 1);
    at.expect("two CTAs of an SM", 3, [5, 1, 0]);
    for (address, columns) in [(1, 128), (0, 256)] {
        at.device.reset(&case.registers());
        at.device.alloc(1, 128, 1);
        at.device.call(Function::Dealloc, warp, &[address, columns, 1]);
        at.expect("a deallocation", 5, [address as u32, columns as u32, 0]);
    }
    let mut registers = case.registers();
    registers.sm[0] = 192;
    at.device.reset(&registers);
    at.device.call(Function::LoadAddress, warp, &[0, 1]);
    at.expect("SMs", 1, [192, 0, 0]);
    registers = case.registers();
    registers.cluster = [1, 2, 3];
    registers.clusters = [10, 20, 30];
    at.device.reset(&registers);
    at.device.alloc(1, 128, 1);
    assert_eq!((at.device.state().fault, at.device.state().owner[5]), (0, 1 + 10 * (2 + 20 * 3) + 1));
    registers.cluster = [4, 2, 5];
    at.device.reset(&registers);
    at.device.alloc(1, 128, 1);
    at.expect("CTAs", 2, [4 + 10 * (2 + 20 * 5), 0, 0]);

    // Words that a warp may not access are not those of tensor memory.
    for function in [Function::LoadAddress, Function::StoreAddress] {
        for (address, count, warp, fault, values) in [
            (32 << 16, 4, 0, 8, [32 << 16, 0, 0]),
            (0, 4, 1, 8, [0, 1, 0]),
            (64 << 16, 4, 7, 8, [64 << 16, 7, 0]),
            (128 - 3, 4, 0, 6, [128 - 3, 4, 128]),
            (32 << 16 | 128, 1, 5, 6, [128, 1, 128]),
        ] {
            at.device.reset(&case.registers());
            at.device.alloc(1, 128, 1);
            let places = at.device.call(function, Threads::warp(0, warp), &[address, count]);
            at.expect("an access", fault, values);
            assert!(places.iter().all(|place| place >> 32 == 1), "{places:x?}");
        }
    }
}

fn waits(at: &mut Provocation) {
    let mut registers = Case::pair(Format::Nvfp4).registers();
    let thread = Threads::warp(0, 3).first_lane();
    at.device.reset(&registers);
    // The time of the first failed wait, then the same time until a wait is too long.
    let since = at.device.call(Function::Waited, thread, &[0, 4096, 1])[0];
    assert!(since > 0);
    let mut waits = 0;
    while at.device.state().fault == 0 {
        let result = at.device.call(Function::Waited, thread, &[since, 4096, 1])[0];
        assert_eq!(result, if at.device.state().fault == 0 { since } else { 0 });
        waits += 1;
        assert!(waits < 10_000, "a wait ends");
    }
    at.expect("a barrier", 15, [4096, 1, 3]);
    registers.complete = false;
    at.device.reset(&registers);
    at.device.call(Function::FinishLoad, thread, &[8192, 64, 128, 1]);
    at.expect("the barrier of a load", 15, [2048, 0, 3]);
    registers.complete = true;
    at.device.reset(&registers);
    at.device.call(Function::FinishLoad, thread, &[8192, 64, 128, 5]);
    at.expect("the mask of a load", 18, [5, 2, 2]);
    at.device.reset(&registers);
    at.device.call(Function::Commit, thread, &[128, 4, 2, 1]);
    at.expect("the mask of a commit", 18, [4, 2, 2]);
}

#[test]
fn every_fault_is_reported_with_nan_results() {
    let mut at = Provocation::start();
    let single = Case { path: Path::Thread, steps: vec![0], ..Case::single(Format::Nvfp4) };
    let pair = Case { path: Path::Lanes, steps: vec![3], ..Case::pair(Format::Nvfp4) };
    // The cases themselves are right.
    for case in [&single, &pair] {
        let problem = Problem::exact(case.format, &mut Random::new(1));
        case.check(&mut at.device, &problem).expect("the case is right");
        assert_eq!(at.problem(case.format).sums.len(), 4);
        shared_descriptors(&mut at, case);
        instruction_descriptors(&mut at, case);
        addresses(&mut at, case);
        shared_memory(&mut at, &Case { path: Path::Thread, ..case.clone() });
        swizzles_of_codes(&mut at, case.group);
    }
    copies_of_scales(&mut at, &single);
    pairs(&mut at);
    queues(&mut at, &single);
    allocations(&mut at);
    waits(&mut at);
    let numbers: BTreeSet<u32> = STATE
        .lines()
        .filter_map(|line| {
            line.trim().strip_prefix('k')?.split_once(" = ")?.1.split_once(',')?.0.parse().ok()
        })
        .collect();
    assert!(numbers.len() > 19);
    at.numbers.insert(0);
    assert_eq!(at.numbers, numbers);
}
