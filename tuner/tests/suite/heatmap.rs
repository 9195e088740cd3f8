//! Tests of heat-maps of synthetic matrices: contents, determinism, and escaping of names.

use expect_test::{Expect, expect};
use fourfold_tuner::heatmap::{Blank, Heatmap, HeatmapError, NARROWEST};
use fourfold_tuner::matrix::{Cell, Kernel, Matrix};
use fourfold_tuner::parameters::Parameters;
use fourfold_tuner::problem::{Problem, Weighted};
use fourfold_tuner::record::State;

const STATES: [State; 8] = [
    State::Invalid,
    State::CompileError,
    State::NoMma,
    State::Built,
    State::Refused,
    State::LaunchError,
    State::Wrong,
    State::Slow,
];

fn kernel(name: &str, id: &str) -> Kernel {
    let parameters = [("tile", "128x128x256"), ("cluster", "2x1"), ("schedule", "cooperative")];
    Kernel {
        id: id.to_owned(),
        generator: "scaled_mma.sm100".to_owned(),
        target: "sm_100a".to_owned(),
        name: name.to_owned(),
        parameters: Parameters(parameters.map(|(name, value)| (name.to_owned(), value.into())).into()),
    }
}

fn timed(median_us: f64) -> Option<Cell> {
    Some(Cell { state: State::Good, median_us: Some(median_us), noise: 0.004 })
}

fn without_time(state: State) -> Option<Cell> {
    Some(Cell { state, median_us: None, noise: 0.0 })
}

/// Reproducible pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn share(&mut self) -> f64 {
        self.below(1_000_000) as f64 / 1e6
    }
}

/// A matrix with every state. In its last row, no kernel is correct.
fn made_up(problems: usize, kernels: usize) -> (Matrix, Vec<usize>, Vec<Option<usize>>) {
    let mut numbers = Numbers(7);
    let rows: Vec<Weighted> = (0..problems)
        .map(|row| {
            let m = [1, 16, 128, 256, 1024, 4096][row * 6 / problems];
            let (n, k) = (512 * (1 + numbers.below(31)), 256 * (1 + numbers.below(63)));
            Weighted { problem: Problem::new(m, n, k), weight: 1.0 + numbers.below(40) as f64 }
        })
        .collect();
    let columns: Vec<Kernel> = (0..kernels)
        .map(|column| {
            let tile = ["128x64x256", "128x128x256", "256x128x256", "256x256x128"][column % 4];
            let cluster = ["1x1", "2x1", "2x2", "4x1", "4x2"][column / 4 % 5];
            let schedule = ["1sm", "2sm", "2sm_streamk"][column / 20 % 3];
            kernel(
                &format!("nvfp4_sm100_{tile}_{cluster}_{schedule}"),
                &format!("{column:02x}{column:02x}c0ffee"),
            )
        })
        .collect();
    let mut cells = Vec::new();
    for row in 0..problems {
        let base = 3.0 + 40.0 * numbers.share();
        for column in 0..kernels {
            // Each kernel is for either small or large problems.
            let apart = (row as f64 / problems as f64 - column as f64 / kernels as f64).abs();
            let cell = match numbers.below(14) {
                0 => without_time(STATES[numbers.below(8) as usize]),
                1 => None,
                _ => timed(base * (1.0 + 1.5 * apart * apart + 0.4 * apart * numbers.share())),
            };
            cells.push(if row + 1 == problems { without_time(STATES[column % 8]) } else { cell });
        }
    }
    let matrix = Matrix { problems: rows, kernels: columns, cells, machine: None };
    let chosen: Vec<usize> = (0..4).map(|at| kernels * (2 * at + 1) / 8).collect();
    let assignment = (0..problems)
        .map(|row| {
            let best = chosen.iter().copied().filter(|kernel| matrix.efficiency(row, *kernel).is_some());
            let best = best.max_by(|a, b| {
                let of = |kernel: usize| matrix.efficiency(row, kernel).unwrap_or(0.0);
                of(*a).total_cmp(&of(*b))
            });
            best.filter(|kernel| matrix.efficiency(row, *kernel) > Some(0.93))
        })
        .collect();
    (matrix, chosen, assignment)
}

const TITLE: &str = "NVFP4 GEMM on a made-up GPU";
const CAPTION: &str = "Example GPU, driver 580.00, L2: rotating, 2026-11-22";

fn heatmap(problems: usize, kernels: usize) -> Heatmap {
    let (matrix, chosen, assignment) = made_up(problems, kernels);
    Heatmap::new(&matrix, &chosen, &assignment, TITLE, CAPTION).expect("the arguments fit each other")
}

/// A heat-map without a selection.
fn unselected(matrix: &Matrix) -> Heatmap {
    Heatmap::new(matrix, &[], &[], TITLE, CAPTION).expect("the arguments fit each other")
}

fn matrix(problems: &[Problem], names: &[&str], cells: Vec<Option<Cell>>) -> Matrix {
    Matrix {
        problems: problems.iter().map(|problem| Weighted { problem: *problem, weight: 1.0 }).collect(),
        kernels: names.iter().enumerate().map(|(at, name)| kernel(name, &format!("{at:04x}"))).collect(),
        cells,
        machine: None,
    }
}

/// A text without its colour codes.
fn bare(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |bare, part| bare + part.split_once('m').expect("only colours").1)
}

/// A page without the bundled script.
fn own_part(page: &str) -> String {
    let (head, rest) = page.split_once("<script").expect("the library");
    let (_, body) = rest.split_once("</script>").expect("its end");
    format!("{head}{body}")
}

/// The image, one element per line.
fn drawn(heatmap: &Heatmap) -> String {
    let svg = heatmap.svg().expect("an image").replace('\n', "");
    ["<rect", "<text", "<polygon", "</svg"].iter().fold(svg, |svg, tag| svg.replace(tag, &format!("\n{tag}")))
}

/// The texts of the image's cells, row by row, without the legend.
fn written(svg: &str) -> Vec<&str> {
    let cells = svg.split_once("problem M×N×K").expect("the corner label exists").1;
    cells
        .lines()
        .filter(|line| line.contains("class=\"cell"))
        .filter_map(|line| line.rsplit_once("</text>")?.0.rsplit_once('>').map(|(_, text)| text))
        .collect()
}

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(text);
}

#[test]
fn a_small_one_as_text() {
    let problems = [Problem::new(128, 7168, 2048), Problem::new(16, 512, 512), Problem::new(128, 4096, 7168)];
    let names = ["gemm_128x64_1sm", "gemm_128x128_1sm", "gemm_256x128_2sm"];
    let cells = vec![
        timed(10.0),
        timed(8.0),
        without_time(State::Refused),
        timed(4.0),
        None,
        without_time(State::Wrong),
        without_time(State::Slow),
        timed(20.0),
        timed(12.5),
    ];
    let matrix = matrix(&problems, &names, cells);
    let heatmap = Heatmap::new(&matrix, &[1, 2], &[Some(1), None, Some(2)], TITLE, CAPTION)
        .expect("the arguments fit each other");
    check(
        &heatmap.terminal(80, false),
        expect![[r#"
            NVFP4 GEMM on a made-up GPU
            Example GPU, driver 580.00, L2: rotating, 2026-11-22
            3 problems, 3 kernels. 2 selected: 2 of 3 problems covered, mean efficiency
            100.0 %, worst 100.0 %.
            On 1 problem a kernel is correct, but no selected kernel supports it.
            All kernel names begin with gemm_

                              a   b   c
            !   16x512x512    .   W| 100   4.000 µs uncovered
             128x4096x7168   62>100|   S   12.50 µs b 100.0%
             128x7168x2048 >100   R|  80   8.000 µs a 100.0%

            Cells: efficiency (best known time / time) in %, rounded down; 100 is the best
            kernel.
            After the cells: best known time, and the assigned kernel.
            Left of | and * in the list: selected; >: assigned; !: problem not covered.
              . no record
              R problem not supported
              S correct, too slow to time
              W wrong result
            Kernels, with their mean efficiency over the timed problems:
            * a gemm_128x128_1sm 81.2 % of 2, assigned 1
            * b gemm_256x128_2sm 100.0 % of 1, assigned 1
              c gemm_128x64_1sm 90.0 % of 2
        "#]],
    );
    check(
        &heatmap.terminal(40, false),
        expect![[r#"
            NVFP4 GEMM on a made-up GPU
            Example GPU, driver 580.00, L2:
            rotating, 2026-11-22
            3 problems, 3 kernels. 2 selected: 2 of
            3 problems covered, mean efficiency
            100.0 %, worst 100.0 %.
            On 1 problem a kernel is correct, but no
            selected kernel supports it.
            All kernel names begin with gemm_

                              a   b   c
            !   16x512x512    .   W| 100
             128x4096x7168   62>100|   S
             128x7168x2048 >100   R|  80

            Cells: efficiency (best known time /
            time) in %, rounded down; 100 is the
            best kernel.
            Left of | and * in the list: selected;
            >: assigned; !: problem not covered.
              . no record
              R problem not supported
              S correct, too slow to time
              W wrong result
            Kernels, with their mean efficiency over
            the timed problems:
            * a gemm_128x128_1sm 81.2 % of 2,
                   assigned 1
            * b gemm_256x128_2sm 100.0 % of 1,
                   assigned 1
              c gemm_128x64_1sm 90.0 % of 2
        "#]],
    );
}

#[test]
fn the_same_values_give_the_same_bytes() {
    for (problems, kernels) in [(12, 24), (24, 12), (200, 60)] {
        let (one, other) = (heatmap(problems, kernels), heatmap(problems, kernels));
        assert_eq!(one.html().expect("a page"), other.html().expect("a page"));
        assert_eq!(one.svg().expect("an image"), other.svg().expect("an image"));
        assert_eq!(one.terminal(120, true), other.terminal(120, true));
    }
    let (one, other) = (heatmap(12, 24).png().expect("an image"), heatmap(12, 24).png().expect("an image"));
    assert!(one.starts_with(b"\x89PNG\r\n"));
    assert_eq!(one, other);
}

#[test]
fn each_cell_is_there() {
    for (problems, kernels) in [(12, 24), (24, 12), (200, 60)] {
        let (matrix, ..) = made_up(problems, kernels);
        let heatmap = heatmap(problems, kernels);
        let svg = drawn(&heatmap);
        let cells = written(&svg);
        assert_eq!(cells.len(), problems * kernels);
        assert_eq!(svg.matches("<title>").count(), problems * kernels, "a text under the pointer");
        let page = own_part(&heatmap.html().expect("a page"));
        for kernel in &matrix.kernels {
            assert!(svg.contains(&kernel.name) && page.contains(&kernel.name), "{}", kernel.name);
        }
        for row in &matrix.problems {
            let label = row.problem.to_string();
            assert!(svg.contains(&label) && page.contains(&label), "{label}");
            assert!(heatmap.terminal(100, false).contains(&label), "{label}");
        }
        // The number of each letter is the number of cells of its state.
        for (state, letter) in STATES.into_iter().zip(["I", "C", "N", "U", "R", "L", "W", "S"]) {
            let known = matrix.cells.iter().flatten().filter(|cell| cell.state == state).count();
            assert_eq!(cells.iter().filter(|cell| **cell == letter).count(), known, "{state:?}");
        }
        let unknown = matrix.cells.iter().filter(|cell| cell.is_none()).count();
        assert_eq!(cells.iter().filter(|cell| **cell == ".").count(), unknown);
    }
}

#[test]
fn no_state_looks_like_another_or_like_a_time() {
    let names: Vec<String> = (0..13).map(|at| format!("k{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cells: Vec<Option<Cell>> = STATES.into_iter().map(without_time).collect();
    cells.extend([without_time(State::Deferred), None, timed(1.0), timed(2.0), timed(1e6)]);
    let heatmap = unselected(&matrix(&[Problem::new(1, 512, 512)], &names, cells));

    let svg = drawn(&heatmap);
    let fill = |line: &str| {
        line.split_once("fill=\"").expect("a fill").1.split('"').next().expect("a colour").to_owned()
    };
    let mut fills: Vec<String> = svg.lines().filter(|line| line.contains("<title>")).map(fill).collect();
    assert_eq!(fills.len(), 13);
    fills.sort();
    fills.dedup();
    assert_eq!(fills.len(), 13, "blank cells have distinct colours: {fills:?}");

    let mut letters = written(&svg);
    letters.sort_unstable();
    assert_eq!(letters, [".", "0", "100", "50", "C", "D", "I", "L", "N", "R", "S", "U", "W"]);
    for blank in Blank::ALL {
        assert!(svg.contains(blank.words()), "{blank:?} is in the legend of the image");
        assert!(
            heatmap.html().expect("a page").contains(blank.words()),
            "{blank:?} is in the legend of the page"
        );
        assert!(heatmap.terminal(80, false).contains(&format!("  {} {}\n", blank.letter(), blank.words())));
    }
}

#[test]
fn a_legend_has_what_is_there_only() {
    let heatmap =
        unselected(&matrix(&[Problem::new(1, 512, 512)], &["a", "b"], vec![timed(1.0), timed(2.0)]));
    for text in [
        heatmap.svg().expect("an image"),
        own_part(&heatmap.html().expect("a page")),
        heatmap.terminal(80, false),
    ] {
        for blank in Blank::ALL {
            assert!(!text.contains(blank.words()), "{blank:?} in {text}");
        }
        assert!(!text.contains("uncovered") && !text.contains("not covered"), "{text}");
    }
}

#[test]
fn a_wrong_kernel_with_a_time_is_wrong() {
    let wrong = Some(Cell { state: State::Wrong, median_us: Some(1.0), noise: 0.0 });
    let odd = [0.0, -3.0, f64::NAN, f64::INFINITY].map(timed);
    for cell in odd.into_iter().chain([wrong]) {
        let heatmap = unselected(&matrix(&[Problem::new(1, 512, 512)], &["a", "b"], vec![timed(5.0), cell]));
        let svg = drawn(&heatmap);
        let letter = if cell == wrong { "W" } else { "U" };
        assert!(written(&svg).contains(&letter), "{cell:?}: {:?}", written(&svg));
        assert!(!heatmap.terminal(80, false).contains("NaN"));
    }
}

#[test]
fn only_the_best_has_100() {
    let heatmap = unselected(&matrix(
        &[Problem::new(1, 512, 512)],
        &["a", "b", "c", "d"],
        vec![timed(10.0), timed(10.001), timed(10.0), timed(10.2)],
    ));
    let mut cells = written(&drawn(&heatmap)).into_iter().map(str::to_owned).collect::<Vec<_>>();
    cells.sort();
    assert_eq!(cells, ["100", "100", "98", "99"]);
    assert_eq!(drawn(&heatmap).matches("<polygon").count(), 2 + 1, "two cells, and the legend");
}

#[test]
fn chosen_come_first_then_the_best_and_problems_go_up() {
    let problems = [Problem::new(256, 512, 512), Problem::new(16, 1024, 512), Problem::new(16, 512, 2048)];
    let names = ["middling", "best", "chosen_slow", "once_best", "chosen_fast"];
    let row = [2.0, 1.5, 4.0, 1e3, 3.0];
    let mut cells: Vec<Option<Cell>> = problems.iter().flat_map(|_| row.map(timed)).collect();
    for at in [3, 8] {
        cells[at] = None;
    }
    cells[13] = timed(1.0);
    let matrix = matrix(&problems, &names, cells);
    let heatmap =
        Heatmap::new(&matrix, &[2, 4], &[Some(4); 3], TITLE, CAPTION).expect("the arguments fit each other");
    let text = heatmap.terminal(80, false);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    let order = ["16x512x2048", "16x1024x512", "256x512x512"].map(at);
    assert!(order.is_sorted(), "{text}");
    let order = ["* a chosen_fast", "* b chosen_slow", "  c best", "  d middling", "  e once_best"].map(at);
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn what_no_kernel_serves_is_marked_and_says_why() {
    let problems = [Problem::new(1, 512, 512), Problem::new(2, 512, 512), Problem::new(3, 512, 512)];
    let wrong = without_time(State::Wrong);
    let matrix = matrix(&problems, &["a", "b"], vec![timed(1.0), timed(1.2), timed(2.0), wrong, wrong, None]);
    let heatmap = Heatmap::new(&matrix, &[1], &[Some(1), None, None], TITLE, CAPTION)
        .expect("the arguments fit each other");
    let text = heatmap.terminal(80, false);
    let line = |problem: &str| text.lines().find(|line| line.contains(problem)).expect("its line").to_owned();
    assert!(!line("1x512x512").starts_with('!') && line("1x512x512").contains("a 83.3%"), "{text}");
    assert!(line("2x512x512").starts_with('!') && line("2x512x512").ends_with("uncovered"), "{text}");
    assert!(line("3x512x512").starts_with('!') && line("3x512x512").ends_with("none correct"), "{text}");
    assert!(text.contains("1 selected: 1 of 3 problems covered, mean efficiency"), "{text}");
    let svg = drawn(&heatmap);
    assert!(
        svg.contains(">! 2x512x512<") && svg.contains(">uncovered<") && svg.contains(">no correct kernel<")
    );
    let page = own_part(&heatmap.html().expect("a page"));
    assert!(page.contains("2x512x512: no selected kernel supports it"), "{page}");
    assert!(page.contains("3x512x512: no kernel is correct and timed"), "{page}");
}

#[test]
fn names_lose_what_all_have_and_stay_apart() {
    let long = format!("gemm_{}_end", "x".repeat(90));
    let names = ["gemm_tile_128", "gemm_tile_256", "gemm_tile_256", long.as_str()];
    let cells = (0..4).map(|_| timed(1.0)).collect();
    let svg = drawn(&unselected(&matrix(&[Problem::new(1, 512, 512)], &names, cells)));
    assert!(svg.contains("All kernel names begin with gemm_<"), "{svg}");
    for label in [">tile_128<", ">tile_256 #0001<", ">tile_256 #0002<"] {
        assert!(svg.contains(label), "{label} in {svg}");
    }
    let short = svg.lines().find(|line| line.contains('…')).expect("a shortened name");
    assert!(short.contains("xx…xx") && short.contains("_end<"), "{short}");
    assert!(svg.contains(&long), "the tooltip shows the whole name");

    // The prefix ends between words, and no label is empty.
    let three = matrix(&[Problem::new(1, 512, 512)], &["a_1", "a_12", "a_"], vec![None, None, None]);
    let svg = drawn(&unselected(&three));
    assert!(
        !svg.contains("begin with")
            && svg.contains(">a_1<")
            && svg.contains(">a_12<")
            && svg.contains(">a_<"),
        "{svg}"
    );
}

#[test]
fn names_are_never_taken_for_anything_else() {
    let names = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "</script><b>&amp;",
        "{{ 7 * 7 }}{% for %}",
        "%{x}$\\href{javascript:alert(1)}{x}$",
        "red\x1b[31m\u{9b}0m\u{202e}\0\u{ffff}\u{200b}",
        "<a href='javascript:alert(1)'>x</a>",
    ];
    let mut matrix =
        matrix(&[Problem::new(1, 512, 512)], &names, (0..7).map(|at| timed(1.0 + f64::from(at))).collect());
    for kernel in &mut matrix.kernels {
        kernel.parameters.0.insert(kernel.name.clone(), kernel.name.as_str().into());
        kernel.generator.clone_from(&kernel.name);
        kernel.target.clone_from(&kernel.name);
        kernel.id.clone_from(&kernel.name);
    }
    for shown in names {
        let heatmap =
            Heatmap::new(&matrix, &[0], &[Some(0)], shown, shown).expect("the arguments fit each other");
        let page = heatmap.html().expect("a page");
        let own = own_part(&page);
        for harmful in ["<script>alert", "<img", "<b>&amp;", "<a href", "&amp;lt;script&amp;gt;", " 49"] {
            assert!(!own.contains(harmful), "{harmful} in {own}");
        }
        assert_eq!(own.matches("</script>").count(), 1, "the plot's script is complete");
        // The name as it is displayed.
        assert!(own.contains("&lt;script&gt;alert(1)&lt;"), "{own}");

        // Rendering a PNG fails if the image is not XML.
        heatmap.png().expect("an image");
        let svg = drawn(&heatmap);
        assert!(!svg.contains("<script") && !svg.contains("<img") && !svg.contains("<a "), "{svg}");

        for text in [heatmap.terminal(80, false), bare(&heatmap.terminal(80, true)), svg, own] {
            let steers = |c: char| (c.is_control() && c != '\n') || ('\u{200b}'..='\u{202e}').contains(&c);
            assert_eq!(text.chars().find(|c| steers(*c)), None);
        }
    }
}

#[test]
fn a_page_loads_nothing() {
    let page = heatmap(12, 24).html().expect("a page");
    assert!(page.contains("content=\"default-src 'none'; script-src 'unsafe-inline';"));
    assert!(page.contains("plotly.js v"), "the page contains the plotly script");
    assert!(!page.contains("MathJax-script"), "the page does not contain MathJax");
    assert!(page.len() < 5_500_000, "{}", page.len());
    let own = own_part(&page);
    for loads in ["src=", "href=", "http:", "https:", "@import", "url("] {
        assert!(!own.contains(loads), "{loads} in {own}");
    }
    // Without cells there is nothing to draw.
    let empty = unselected(&Matrix::default()).html().expect("a page");
    assert!(!empty.contains("<script"), "{empty}");
}

#[test]
fn a_text_fits_and_says_the_same_without_colours() {
    for (problems, kernels) in [(12, 24), (24, 12), (200, 60), (3, 1), (1, 800)] {
        let heatmap = heatmap(problems, kernels.max(8));
        for width in [0, 40, 41, 57, 72, 80, 120, 200] {
            let text = heatmap.terminal(width, false);
            for line in text.lines() {
                assert!(line.chars().count() <= width.max(NARROWEST), "{width}: {line}");
                assert_eq!(line, line.trim_end());
            }
            assert_eq!(bare(&heatmap.terminal(width, true)), text, "{width}");
            assert_eq!(text.lines().filter(|line| line.starts_with('*')).count(), 4, "{text}");
        }
    }
}

#[test]
fn with_little_to_show_it_says_so() {
    let problem = [Problem::new(1, 512, 512)];
    let all_wrong = vec![without_time(State::Wrong), without_time(State::LaunchError)];
    for (matrix, says) in [
        (Matrix::default(), "The heat-map is empty: 0 problems and 0 kernels."),
        (matrix(&problem, &[], Vec::new()), "The heat-map is empty: 1 problem and 0 kernels."),
        (matrix(&[], &["a"], Vec::new()), "The heat-map is empty: 0 problems and 1 kernel."),
        (matrix(&problem, &["a"], vec![timed(1.0)]), "1 problem, 1 kernel. No kernel is selected."),
        (matrix(&problem, &["a"], vec![None]), "No kernel is correct and timed on any problem."),
        (matrix(&problem, &["a", "b"], all_wrong), "No kernel is correct and timed on any problem."),
    ] {
        let heatmap = unselected(&matrix);
        assert!(heatmap.html().expect("a page").contains(says), "{says}");
        assert!(heatmap.svg().expect("an image").contains(says), "{says}");
        assert!(heatmap.png().expect("an image").starts_with(b"\x89PNG"));
        let text = heatmap.terminal(80, true);
        assert!(text.contains(says), "{says}: {text}");
        assert!(text.starts_with(TITLE) && text.contains(CAPTION), "{text}");
    }
}

#[test]
fn what_does_not_belong_together_is_an_error() {
    let whole = matrix(&[Problem::new(1, 512, 512)], &["a", "b"], vec![timed(1.0), timed(2.0)]);
    let cut = Matrix { cells: vec![timed(1.0)], ..whole.clone() };
    let new = |matrix: &Matrix, chosen: &[usize], assignment: &[Option<usize>]| {
        Heatmap::new(matrix, chosen, assignment, TITLE, CAPTION).map(|_| ()).expect_err("an error")
    };
    assert!(matches!(new(&cut, &[], &[]), HeatmapError::Cells { found: 1, needed: 2, .. }));
    assert!(matches!(new(&whole, &[2], &[None]), HeatmapError::Chosen { kernel: 2, kernels: 2 }));
    assert!(matches!(new(&whole, &[0], &[]), HeatmapError::Assignments { found: 0, problems: 1 }));
    assert!(matches!(new(&whole, &[0], &[Some(1)]), HeatmapError::Assigned { problem: 0, kernel: 1 }));
    assert!(matches!(new(&whole, &[], &[Some(1)]), HeatmapError::Assigned { problem: 0, kernel: 1 }));
    assert_eq!(
        new(&whole, &[5], &[None]).to_string(),
        "kernel 5 is selected, but the matrix has 2 kernels; use a selection from this matrix"
    );
}
