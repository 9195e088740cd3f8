//! Which tile of sm_90a a call gets, and how many blocks share it: what a source does with the table of `codegen`.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fourfold::codegen::configuration::CutlassVersion;
use fourfold::codegen::hopper::{ANY, CHOICES, Configuration, TARGET, TILE_K, TILE_N};
use fourfold::codegen::{Design, KernelSpec, emit};
use fourfold::ir::text;
use fourfold::kernels::planned_kernels;
use fourfold_tests::backend;
use fourfold_tests::random::Random;

const HARNESS: &str = include_str!("tiles/plan.cc");

const PROGRAM: &str = "fir 1
func @main(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 72], f32>
  return %d
}
";

/// L, M, N, K and the SMs of a device.
type Case = [u64; 5];

/// What a source says to each case: the tile's rows of A, the cluster, and the grid.
fn plans(name: &str, spec: &KernelSpec, cases: &[Case]) -> Vec<[u64; 5]> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiles");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let source = emit(spec).text;
    let plan =
        source.split_once("// Rows of A in a tile of each variant.\n").expect("the source has tiles").1;
    let plan = plan.split_once("// What makes the descriptors").expect("the plan ends").0;
    let text = HARNESS.replace("TILE_N", &TILE_N.to_string()).replace("TILE_K", &TILE_K.to_string());
    let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
    std::fs::write(&file, text.replace("PLAN", plan)).expect("it is written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-Wall", "-Werror", "-o"]).args([&program, &file]);
    let compiled = compiler.output().expect("g++ starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let line = |case: &Case| case.map(|extent| extent.to_string()).join(" ");
    let input: Vec<String> = cases.iter().map(line).collect();
    child.stdin.take().expect("it is a pipe").write_all(input.join("\n").as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("the program ends");
    let lines = String::from_utf8(output.stdout).expect("numbers");
    let plan = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        <[u64; 5]>::try_from(numbers).expect("five numbers")
    };
    let plans: Vec<_> = lines.lines().map(plan).collect();
    assert_eq!(plans.len(), cases.len());
    plans
}

fn cases() -> Vec<Case> {
    let mut random = Random::new(0x711E);
    let bounds = CHOICES.iter().flat_map(|choice| [choice.max_m, choice.max_n, choice.max_k]);
    let mut extents: Vec<u64> = bounds.filter(|bound| *bound != ANY).map(u64::from).collect();
    extents.extend(extents.clone().iter().map(|bound| bound + 1));
    extents.extend([1, 7, 16, 100, 128, 129, 256, 257, 2048, 4096, 8192, 28672]);
    let mut cases = vec![[1, 1, 8192, 8192, 132], [1, 128, 7168, 16384, 132], [1, 8192, 8192, 8192, 132]];
    cases.extend((0..2000).map(|_| {
        let k = 32 * random.pick(&[1, 3, 4, 5, 7, 8, 9, 16, 31, 32, 64, 224, 512]);
        let sms = random.pick(&[78, 114, 132]);
        [random.pick(&[1, 1, 1, 2, 5]), random.pick(&extents), random.pick(&extents), k, sms]
    }));
    cases
}

/// The specification of the program's kernel, and the same with one tile only.
fn specs() -> [KernelSpec; 2] {
    let (program, _) = text::load(PROGRAM).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let planned = backend(TARGET).expect("a target").plan(program);
    let mut kernels = planned_kernels(&planned, CutlassVersion::PINNED, false);
    let all = kernels.remove(0).spec;
    let Design::Hopper(configuration) = &all.configuration else { panic!("{:?}", all.configuration) };
    let variants = vec![CHOICES[0].tokens];
    let one = Configuration { variants, ..configuration.clone() };
    [all.clone(), KernelSpec { configuration: one.into(), ..all }]
}

#[test]
fn a_call_gets_the_first_line_that_it_meets_and_as_many_blocks_as_there_is_room_for() {
    let [spec, _] = specs();
    let cases = cases();
    for (case, plan) in cases.iter().zip(plans("all", &spec, &cases)) {
        let [l, m, n, k, sms] = *case;
        let meets = |(extent, most): (u64, u32)| extent <= u64::from(most);
        let choice = CHOICES
            .iter()
            .find(|it| [(m, it.max_m), (n, it.max_n), (k, it.max_k)].into_iter().all(meets))
            .expect("the last line is met by all");
        let [tokens, cluster, x, y, z] = plan;
        assert_eq!(tokens, u64::from(choice.tokens), "{case:?}");
        let tiles = l * m.div_ceil(tokens) * n.div_ceil(u64::from(TILE_N));
        assert_eq!([x, y, z], [tiles * cluster, 1, 1], "{case:?}");
        let stages = k.div_ceil(u64::from(TILE_K));
        assert!([1, 2, 4, 8].contains(&cluster) && cluster <= stages, "{case:?}: {plan:?}");
        if choice.cluster == 0 {
            let fits = |cluster: u64| tiles * cluster <= sms && 2 * cluster <= stages;
            let most = [8, 4, 2].into_iter().find(|cluster| fits(*cluster)).unwrap_or(1);
            assert_eq!(cluster, most, "{case:?}");
        } else {
            assert!(cluster <= u64::from(choice.cluster), "{case:?}: {plan:?}");
        }
    }
}

/// A kernel was made for some extents, and its interface takes all.
#[test]
fn a_source_without_the_best_tile_takes_one_that_it_has() {
    let [_, spec] = specs();
    let cases = cases();
    for (case, plan) in cases.iter().zip(plans("one", &spec, &cases)) {
        assert_eq!(plan[0], u64::from(CHOICES[0].tokens), "{case:?}");
        assert!(plan[2] > 0, "{case:?}");
    }
}
