//! The simulated device: a process that executes commands.

use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// The lanes and columns of tensor memory.
pub(super) const LANES: usize = 128;
pub(super) const COLUMNS: usize = 512;

/// The word that fills memory.
pub(super) const POISON: u32 = 0xFFFF_FFFF;

const SIMULATION: &str = include_str!("simulate.cc");
pub(super) const STATE: &str = include_str!("../../../../codegen/src/emulation/tensor_memory/state.cuh");
const FUNCTIONS: [&str; 4] = [
    include_str!("../../../../codegen/src/emulation/elements.cuh"),
    include_str!("../../../../codegen/src/emulation/tensor_memory/device.cuh"),
    include_str!("../../../../codegen/src/emulation/tensor_memory/mma.cuh"),
    include_str!("../../../../codegen/src/emulation/tensor_memory/functions.cuh"),
];

/// Returns the text of the device functions.
pub(super) fn functions() -> String {
    FUNCTIONS.concat()
}

/// Compiles the simulation of these device functions.
pub(super) fn compile(name: &str, functions: &str, optimization: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tensor_memory");
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let (source, program) = (folder.join(format!("{name}.cc")), folder.join(name));
    let text = SIMULATION.replace("\nSTATE\n", &format!("\n{STATE}\n"));
    let text = text.replace("\nDEVICE\n", &format!("\n{functions}\n"));
    std::fs::write(&source, text).expect("the file can be written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", optimization, "-ffp-contract=off", "-w", "-o"]).args([&program, &source]);
    let compiled = compiler.output().expect("g++ starts");
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// The special registers, and two choices of the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    /// The SM of each CTA.
    pub sm: [u32; 2],
    pub sm_count: u32,
    pub cluster_size: u32,
    pub shared_bytes: u32,
    pub cluster: [u32; 3],
    pub clusters: [u32; 3],
    pub cluster_extents: [u32; 3],
    /// Waits for a barrier succeed.
    pub complete: bool,
    /// Higher lanes run first.
    pub descending: bool,
}

impl Registers {
    /// Returns the registers of the only cluster of one or two CTAs.
    pub fn new(cluster_size: u32) -> Registers {
        Registers {
            sm: [5, 9],
            sm_count: 132,
            cluster_size,
            shared_bytes: 228 << 10,
            cluster: [0; 3],
            clusters: [1; 3],
            cluster_extents: [cluster_size, 1, 1],
            complete: true,
            descending: false,
        }
    }
}

/// The functions of the device that a call can name, with the numbers that `simulate.cc` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// One lane executes an instruction.
    ExecuteMma = 0,
    /// All lanes of a warp execute an instruction, one after the other.
    ExecuteMmaByLanes = 1,
    ExecuteCopy = 2,
    ExecuteCopyByLanes = 3,
    Mma = 4,
    CopyScales = 5,
    Flush = 6,
    Commit = 7,
    Alloc = 8,
    Dealloc = 9,
    LoadAddress = 10,
    StoreAddress = 11,
    Enter = 12,
    TryCancel = 13,
    Waited = 14,
    BeginLoad = 15,
    FinishLoad = 16,
    /// The values are bits of f32.
    E2m1x2 = 17,
}

/// The threads that execute a call: lanes of one warp of each CTA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads {
    /// A mask of CTAs.
    pub ctas: u32,
    pub warp: u32,
    /// A mask of lanes.
    pub lanes: u32,
}

impl Threads {
    /// Returns a warp of one CTA.
    pub fn warp(cta: u32, warp: u32) -> Threads {
        Threads { ctas: 1 << cta, warp, lanes: u32::MAX }
    }

    /// Returns the first lane of the warp.
    pub fn first_lane(self) -> Threads {
        Threads { lanes: 1, ..self }
    }
}

/// A `tcgen05.mma`, or a `tcgen05.cp` where `block` is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Instruction {
    pub block: u32,
    pub group: u32,
    pub d: u32,
    pub descriptor: u32,
    pub sfa: u32,
    pub sfb: u32,
    pub accumulates: u32,
    pub a: u64,
    pub b: u64,
}

impl Instruction {
    fn arguments(&self) -> [u64; 9] {
        let words = [self.block, self.group, self.d, self.descriptor, self.sfa, self.sfb, self.accumulates];
        let mut arguments = [0; 9];
        for (argument, word) in arguments.iter_mut().zip(words) {
            *argument = u64::from(word);
        }
        arguments[7..].copy_from_slice(&[self.a, self.b]);
        arguments
    }
}

/// The records of the device.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub fault: u32,
    pub values: [u32; 3],
    pub block: [u32; 3],
    pub thread: u32,
    pub handed_out: u32,
    pub done: u32,
    pub owner: Vec<u32>,
    pub columns: Vec<u32>,
    pub sm_of: Vec<u32>,
    /// Reads of shared memory that nothing wrote.
    pub unwritten: u32,
    /// Accesses of shared memory in the wrong state space.
    pub misused: u32,
    /// Operations of barriers, and fences: the kind, the address, a value.
    pub events: Vec<[u32; 3]>,
}

/// A running simulation.
pub(super) struct Device {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Device {
    fn drop(&mut self) {
        // A process that has ended cannot be killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Device {
    /// Starts the simulation of the unchanged device functions, compiled once for all tests.
    pub fn start() -> Device {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        Device::run(PROGRAM.get_or_init(|| compile("simulate", &functions(), "-O2")))
    }

    /// Starts a compiled simulation.
    pub fn run(program: &Path) -> Device {
        let mut command = Command::new(program);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = BufWriter::new(child.stdin.take().expect("the stream is piped"));
        let output = BufReader::new(child.stdout.take().expect("the stream is piped"));
        Device { child, input, output }
    }

    fn command(&mut self, words: &[u32], bytes: &[u8]) {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.input.write_all(&words).expect("the program reads");
        self.input.write_all(bytes).expect("the program reads");
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.input.flush().expect("the program reads");
        let mut bytes = vec![0; count];
        self.output.read_exact(&mut bytes).expect("the program writes");
        bytes
    }

    fn words(&mut self, count: usize) -> Vec<u32> {
        self.bytes(4 * count).as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }

    /// Sets the special registers.
    pub fn set(&mut self, of: &Registers) {
        let mut words = vec![0];
        words.extend(of.sm);
        words.extend([of.sm_count, of.cluster_size, of.shared_bytes]);
        words.extend([of.cluster, of.clusters, of.cluster_extents].concat());
        words.extend([u32::from(of.complete), u32::from(of.descending)]);
        self.command(&words, &[]);
    }

    /// Sets the special registers, clears the state, and fills memory with poison.
    pub fn reset(&mut self, of: &Registers) {
        self.set(of);
        self.command(&[1], &[]);
    }

    /// Writes shared memory of a CTA.
    pub fn write_shared(&mut self, cta: u32, offset: u32, bytes: &[u8]) {
        self.command(&[2, offset, cta, bytes.len() as u32], bytes);
    }

    /// Reads shared memory of a CTA.
    pub fn read_shared(&mut self, cta: u32, offset: u32, count: u32) -> Vec<u8> {
        self.command(&[3, offset, cta, count], &[]);
        self.bytes(count as usize)
    }

    /// Writes whole columns of the tensor memory of an SM.
    pub fn write_tensor(&mut self, sm: u32, column: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.command(&[4, sm, column, (words.len() / LANES) as u32], &bytes);
    }

    /// Reads the tensor memory of an SM: the word of a lane and column is at `column * LANES + lane`.
    pub fn read_tensor(&mut self, sm: u32) -> Vec<u32> {
        self.command(&[5, sm, 0, COLUMNS as u32], &[]);
        self.words(COLUMNS * LANES)
    }

    fn call_with(&mut self, function: Function, threads: Threads, arguments: [u64; 9]) -> Vec<u64> {
        let bytes: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_ne_bytes()).collect();
        self.command(&[6, function as u32, threads.ctas, threads.warp, threads.lanes], &bytes);
        let count = (threads.ctas.count_ones() * threads.lanes.count_ones()) as usize;
        self.bytes(8 * count).as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// Calls a function in some threads, and returns the result of each.
    pub fn call(&mut self, function: Function, threads: Threads, arguments: &[u64]) -> Vec<u64> {
        let mut all = [0; 9];
        all[..arguments.len()].copy_from_slice(arguments);
        self.call_with(function, threads, all)
    }

    /// Issues or executes an instruction.
    pub fn issue(&mut self, function: Function, threads: Threads, instruction: &Instruction) {
        self.call_with(function, threads, instruction.arguments());
    }

    /// Allocates columns of tensor memory in some CTAs.
    pub fn alloc(&mut self, ctas: u32, columns: u32, group: u32) {
        self.call(
            Function::Alloc,
            Threads { ctas, warp: 0, lanes: u32::MAX },
            &[64, columns.into(), group.into()],
        );
    }

    /// Reads what the device has recorded.
    pub fn state(&mut self) -> State {
        self.command(&[7], &[]);
        // A state of another size would leave both sides waiting.
        let bytes = self.words(1)[0];
        assert_eq!(bytes, 4 * (10 + 192 + 192 + 1024), "the fields of State in state.cuh have changed");
        let head = self.words(10);
        let (owner, columns, sm_of) = (self.words(192), self.words(192), self.words(1024));
        let counts = self.words(3);
        let events = self.words(3 * counts[2] as usize);
        State {
            fault: head[0],
            values: [head[1], head[2], head[3]],
            block: [head[4], head[5], head[6]],
            thread: head[7],
            handed_out: head[8],
            done: head[9],
            owner,
            columns,
            sm_of,
            unwritten: counts[0],
            misused: counts[1],
            events: events.as_chunks().0.to_vec(),
        }
    }

    /// Converts pairs of numbers to pairs of e2m1 codes.
    pub fn e2m1x2(&mut self, pairs: &[[f32; 2]]) -> Vec<u32> {
        // The program writes while it reads, so that both streams must fit their pipes.
        let parts = pairs.chunks(1024).map(|pairs| {
            let bytes: Vec<u8> = pairs.iter().flatten().flat_map(|x| x.to_ne_bytes()).collect();
            self.command(&[8, pairs.len() as u32], &bytes);
            self.words(pairs.len())
        });
        parts.collect::<Vec<_>>().concat()
    }
}
