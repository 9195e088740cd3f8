//! `fourfold bench`: its suites, its errors, and its measurements on stand-ins.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use super::commands::{exit_code, fourfold, json, text};
use super::machine::Machine;

/// A suite of a standalone quantization, whose kernel the stand-in compiler builds.
const QUANTIZE: &str = r#"
[[suite]]
name = "quantize"
about = "Quantization to NVFP4"

[[suite.case]]
name = "nvfp4"
rows = "M"
types = ["f32"]
constants = { g = 0.5 }
sizes = [{ M = 40, K = 64 }, { M = 130, K = 64 }]
program = '''
fir 1
func @quantize(%x: tensor<[M, {K}], {type}>, %g: tensor<[], f32>) {
  %q, %s = block_quantize %x, %g {block = 16} : tensor<[M, {K}], f4E2M1FN>, tensor<[M, {K/16}], f8E4M3FN, blocked>
  return %q, %s
}
'''
peer = "return x * g"
"#;

/// A process that answers like the one of torch: eager takes 40 us, and compile fails.
const PEER: &str = r#"
echo '{"python":"3.12.0","torch":"2.9.0","triton":null,"cuda":"13.0","gpu":"stand-in"}'
while read -r line; do
  echo "$line" >> "$(dirname "$0")/requests"
  case "$line" in
    *'"op":"close"'*) echo '{}' ;;
    *) echo '{"eager":{"samples":[40.0,41.0,39.0]},"compile":{"error":"RuntimeError: no compiler"}}' ;;
  esac
done
"#;

/// A product, whose operands have blocked scales.
const PRODUCT: &str = r#"
[[suite]]
name = "product"

[[suite.case]]
name = "nvfp4"
rows = "M"
rule = "exact"
symbols = { M = [150] }
program = '''
fir 1
func @product(
    %x: tensor<[M, 64], f4E2M1FN>, %sx: tensor<[M, 4], f8E4M3FN, blocked>,
    param %w: tensor<[16, 64], f4E2M1FN>, param %sw: tensor<[16, 4], f8E4M3FN, blocked>
) {
  %y = scaled_mma %x, %sx, %w, %sw {block = 16} : tensor<[M, 16], f32>
  return %y
}
'''
"#;

/// The L2 cache of these machines in bytes. It is small, because the stand-in kernels compute every call.
const L2: u32 = 16 << 10;

fn machine(defines: &str) -> Machine {
    let machine = Machine::with_cache(defines, L2);
    machine.write("mine.toml", QUANTIZE);
    machine.script("python", PEER);
    let converts = "echo '        /*0010*/  F2FP.SATFINITE.E2M1 R1, R2, R3 ;'";
    machine.script("cuobjdump", converts);
    machine
}

fn bench(machine: &Machine, options: &[&str]) -> Output {
    let (file, python) = (machine.name("mine.toml"), machine.name("python"));
    let arguments = ["bench", "--suites", &file, "--suite", "quantize", "--quick", "--python", &python];
    machine.run("0", &[&arguments[..], options].concat())
}

#[test]
fn every_suite_runs_on_the_device_as_planned() {
    let output = fourfold(&["bench", "--dry-run", "--target", "sm_90a", "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["target"]), (&true.into(), &"sm_90a".into()));
    let programs = report["programs"].as_array().expect("programs");
    let names = ["smoke", "reduce_long", "softmax", "transpose", "norm_quant", "blocks", "formats"];
    for name in names {
        assert!(programs.iter().any(|program| program["suite"] == name), "{name}");
    }
    for program in programs {
        assert_eq!(program["fallback"], json!([]), "{program}");
        for segment in program["segments"].as_array().expect("segments") {
            let Some(source) = segment["source"].as_str() else {
                // A view has no kernel.
                assert_eq!(segment["name"], "view", "{segment}");
                continue;
            };
            assert!(report["sources"][source].as_str().is_some_and(|text| text.contains("fourfold_launch")));
        }
    }
    let listed = fourfold(&["bench", "--list", "--suite", "blocks"]);
    assert_eq!(exit_code(&listed), 0);
    let expected = "\
blocks  Blocks of models with NVFP4 linears, against the same blocks in bf16
  minilm_ffn: M=91
  llama_mlp: M=1, M=16, M=128, M=2048
";
    assert_eq!(text(&listed.stdout), expected);
    let listed = json(&fourfold(&["bench", "--list", "--json"]));
    let suites = listed["suites"].as_array().expect("suites");
    let found: Vec<&str> = suites.iter().filter_map(|suite| suite["suite"].as_str()).collect();
    let all =
        ["smoke", "reduce_short", "reduce_long", "softmax", "transpose", "norm_quant", "blocks", "formats"];
    assert_eq!(found, all);
    let quick = json(&fourfold(&["bench", "--list", "--quick", "--suite", "reduce_short", "--json"]));
    let sizes = &quick["suites"][0]["cases"][0]["sizes"];
    assert_eq!(*sizes, json!(["f16 M=128 N=1024", "f16 M=8192 N=8192"]));
}

#[test]
fn without_a_gpu_it_names_the_remedy() {
    let output = fourfold(&["bench", "--suite", "smoke", "--json"]);
    assert_eq!(exit_code(&output), 3);
    let object = json(&output);
    assert_eq!((&object["ok"], &object["fault"]), (&false.into(), &"environment".into()));
    assert!(object["help"].as_str().is_some_and(|help| help.contains("--dry-run")), "{object}");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("error: nothing can be measured: ") && !stderr.contains("ran on"), "{stderr}");
}

#[test]
fn a_wrong_file_of_suites_is_refused_with_its_place_and_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    let shown = file.display().to_string();
    let refused = |text_of_file: &str| {
        fs::write(&file, text_of_file).expect("a file");
        let output = fourfold(&["bench", "--list", "--suites", &shown, "--json"]);
        assert_eq!(exit_code(&output), 2, "{text_of_file}");
        let object = json(&output);
        let (error, help) = (object["error"].as_str(), object["help"].as_str());
        (error.unwrap_or_default().to_owned(), help.unwrap_or_default().to_owned())
    };
    let place = format!("{shown}, suite `quantize`, case `nvfp4`, key ");
    for (from, to, at, reason, remedy) in [
        ("name = \"nvfp4\"", "name = \"a b\"", "`name`", "is not a name", "letters, digits"),
        ("rows = \"M\"", "rows = \"L\"", "`rows`", "no symbol L", "name a symbol"),
        ("{ g = 0.5 }", "{ h = 0.5 }", "`constants`", "no input %h", "inputs of the program"),
        ("[\"f32\"]", "[]", "`types`", "lists no types", "list `types`"),
        ("K = 64 }]", "K = 72 }]", "`program`", "{K/16} is not whole for K = 72", "divides the extent"),
        ("{ M = 40, K", "{ K", "`sizes`", "different symbols", "the same symbols"),
        ("K = 64 }]", "K = 64, Z = 1 }]", "`sizes`", "different symbols", "the same symbols"),
        ("rows = \"M\"", "rule = \"odd\"", "`rule`", "no rule `odd`", "use `normal`"),
        ("peer = ", "peer_setup = ", "`peer_setup`", "there is no `peer`", "add `peer`"),
        ("types = ", "symbols = { M = [1] }\ntypes = ", "`sizes`", "`symbols` and `sizes`", "keep `symbols`"),
    ] {
        let (error, help) = refused(&QUANTIZE.replacen(from, to, 1));
        let place = place.replace("nvfp4", if at == "`name`" { "a b" } else { "nvfp4" });
        assert!(error.starts_with(&format!("{place}{at}: ")) && error.contains(reason), "{error}");
        assert!(help.contains(remedy), "{help}");
    }
    let (error, help) = refused(&QUANTIZE.replace("rows = ", "row = "));
    assert!(error.starts_with(&format!("{shown}, line 8: unknown field `row`")), "{error}");
    assert!(help.contains("bench/README.md"), "{help}");
    let (error, _) = refused(&QUANTIZE.replace("%x, %g {", "%x, %y {"));
    assert!(error.contains("(quantize/nvfp4) is not a valid program"), "{error}");
    let (error, _) = refused(&QUANTIZE.replace("program = '''", "program = 'none.fir'\nextra = '''"));
    assert!(error.contains("unknown field `extra`"), "{error}");
    let output = fourfold(&["bench", "--list", "--suite", "nope"]);
    assert_eq!(exit_code(&output), 2);
    assert!(text(&output.stderr).contains("there is no suite `nope`; there are smoke, "));
}

#[test]
fn a_program_may_be_a_file_beside_its_suites() {
    let folder = tempfile::tempdir().expect("a folder");
    let (head, tail) = QUANTIZE.split_once("program = '''\n").expect("a program");
    let (program, tail) = tail.split_once("'''").expect("its end");
    fs::create_dir(folder.path().join("programs")).expect("a folder");
    fs::write(folder.path().join("programs/quantize.fir"), program).expect("a file");
    let file = folder.path().join("mine.toml");
    fs::write(&file, format!("{head}program = \"programs/quantize.fir\"{tail}")).expect("a file");
    let shown = file.display().to_string();
    let output = fourfold(&["bench", "--list", "--suites", &shown, "--suite", "quantize"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let expected = "quantize  Quantization to NVFP4\n  nvfp4: f32 K=64 M=40, f32 K=64 M=130\n";
    assert_eq!(text(&output.stdout), expected);
    fs::remove_file(folder.path().join("programs/quantize.fir")).expect("it is there");
    let output = fourfold(&["bench", "--list", "--suites", &shown]);
    assert_eq!(exit_code(&output), 2);
    assert!(text(&output.stderr).contains("programs/quantize.fir"), "{}", text(&output.stderr));
}

fn cases(report: &Value) -> &[Value] {
    report["cases"].as_array().expect("cases")
}

#[test]
fn a_suite_is_timed_checked_and_compared_with_its_peers() {
    let machine = machine("");
    let output = bench(&machine, &["--json"]);
    let report = json(&output);
    assert_eq!((exit_code(&output), &report["ok"]), (0, &true.into()), "{report}\n{}", text(&output.stderr));
    assert_eq!(report["machine"]["peers"]["torch"], "2.9.0");
    assert!(report["machine"]["nvcc"].as_str().is_some_and(|nvcc| nvcc.starts_with("13.1")), "{report}");
    let found = cases(&report);
    assert_eq!(found.len(), 2);
    for (case, rows, elements, bytes) in [
        // Codes and scales of 40 rows; and of 64 of 130 rows. Blocked scales take whole tiles of 512 bytes.
        (&found[0], Value::Null, 40 * 64 + 40 * 4, 40 * 64 * 4 + 4 + 40 * 32 + 512),
        (&found[1], 64.into(), 64 * 64 + 64 * 4, 130 * 64 * 4 + 4 + 130 * 32 + 1024),
    ] {
        assert_eq!((&case["state"], &case["kernels"]), (&"ok".into(), &1.into()), "{case}");
        let checked = json!({ "ok": true, "rows": rows, "elements": elements, "mismatches": 0, "wrong": [] });
        assert_eq!((&case["checked"], &case["bytes"]), (&checked, &bytes.into()), "{case}");
        let samples = case["times"]["samples_us"].as_array().expect("samples");
        assert!(case["copy"]["samples_us"].as_array().is_some_and(|samples| samples.len() >= 10), "{case}");
        assert!(samples.len() >= 10 && case["times"]["median_us"].as_f64().expect("a number") > 0.0);
        let (sets, calls) = (case["sets"].as_u64().expect("sets"), case["calls"].as_u64().expect("calls"));
        assert!(sets * case["bytes"].as_u64().expect("bytes") > 3 * u64::from(L2), "{case}");
        assert!(calls >= 20 && calls.is_multiple_of(sets) && case["rotating"] == true, "{case}");
        let eager = &case["peers"]["eager"];
        assert_eq!(eager["times"]["rounds_us"], json!([40.0, 40.0]), "{case}");
        assert_eq!(case["peers"]["compile"], json!({ "error": "RuntimeError: no compiler" }));
    }
    let requests = fs::read_to_string(machine.path("requests")).expect("requests");
    let requests: Vec<Value> =
        requests.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let ops: Vec<&str> = requests.iter().filter_map(|request| request["op"].as_str()).collect();
    assert_eq!(ops, ["open", "again", "close", "open", "again", "close"]);
    assert_eq!(
        (&requests[0]["sizes"], &requests[0]["sets"]),
        (&json!({ "K": 64, "M": 40 }), &found[0]["sets"])
    );
    let inputs = json!([
        { "name": "x", "type": "f32", "dims": [40, 64], "rotates": true, "value": null },
        { "name": "g", "type": "f32", "dims": [], "rotates": true, "value": 0.5 },
    ]);
    assert_eq!(requests[0]["inputs"], inputs);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("[1/2] quantize/nvfp4 f32 K=64 M=40: "), "{stderr}");
    assert!(stderr.contains("compile failed"), "{stderr}");
}

#[test]
fn a_product_is_compared_by_rows_and_drawn() {
    let machine = Machine::with_cache("", L2);
    machine.write("product.toml", PRODUCT);
    let (file, svg) = (machine.name("product.toml"), machine.name("product.svg"));
    let arguments =
        ["bench", "--suites", &file, "--suite", "product", "--quick", "--peers", "none", "--json"];
    let output = machine.run("0", &[&arguments[..], &["--svg", &svg]].concat());
    let report = json(&output);
    assert_eq!(exit_code(&output), 0, "{report}\n{}", text(&output.stderr));
    let case = &cases(&report)[0];
    let checked = json!({ "ok": true, "rows": 64, "elements": 64 * 16, "mismatches": 0, "wrong": [] });
    assert_eq!((&case["kernels"], &case["checked"]), (&1.into(), &checked), "{case}");
    let image = fs::read_to_string(&svg).expect("an image");
    assert!(image.contains("<svg") && image.contains("nvfp4 M=150"), "{image}");
}

#[test]
fn wrong_outputs_give_exit_1_and_are_named() {
    for (defines, words) in [("-DWRITES_NOTHING", "%q: "), ("-DSPOIL=0", "%s: ")] {
        let output = bench(&machine(defines), &["--json", "--peers", "none"]);
        let report = json(&output);
        assert_eq!((exit_code(&output), &report["ok"]), (1, &false.into()), "{report}");
        assert_eq!(report["notes"], json!(["no peer was measured: none was asked for"]));
        for case in cases(&report) {
            assert_eq!(case["state"], "wrong", "{case}");
            let reasons = case["reasons"].as_array().expect("reasons");
            assert!(
                reasons.iter().any(|reason| reason.as_str().is_some_and(|it| it.starts_with(words))),
                "{case}"
            );
        }
    }
}

#[test]
fn what_is_not_on_the_device_gives_exit_3_with_the_reason() {
    let output = bench(&machine("-DPREPARE_STATUS=1"), &["--json"]);
    let report = json(&output);
    assert_eq!((exit_code(&output), &report["ok"]), (3, &false.into()), "{report}");
    for case in cases(&report) {
        assert_eq!((&case["state"], &case["times"]), (&"not_on_the_device".into(), &Value::Null), "{case}");
        assert!(case["reasons"].to_string().contains("segment 0: "), "{case}");
    }
    // A dry run measures nothing to draw.
    if cfg!(feature = "tune") {
        let output = fourfold(&["bench", "--dry-run", "--suite", "smoke", "--svg", "absent/out.svg"]);
        assert_eq!(exit_code(&output), 2);
        assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
    }
    // The target `cpu` has no kernels.
    let output = fourfold(&["bench", "--dry-run", "--suite", "smoke", "--target", "cpu"]);
    assert_eq!(exit_code(&output), 3);
    let shown = text(&output.stdout);
    assert!(shown.contains("segment 0 is on the fallback: %y = transpose: "), "{shown}");
}

#[test]
fn a_peer_that_ends_or_is_missing_is_named() {
    let machine = machine("");
    machine.script("python", "echo 'ModuleNotFoundError: no torch' >&2; exit 1");
    let output = bench(&machine, &["--json"]);
    let report = json(&output);
    assert_eq!(exit_code(&output), 0, "{report}");
    let notes = report["notes"][0].as_str().expect("a note");
    assert!(notes.starts_with("no peer was measured: ") && notes.ends_with("ModuleNotFoundError: no torch"));
    let output = bench(&machine, &["--json", "--peers", "torch"]);
    assert_eq!(exit_code(&output), 3);
    assert!(
        json(&output)["help"].as_str().is_some_and(|help| help.contains("--python")),
        "{}",
        text(&output.stdout)
    );
    // A process that ends in the middle is started again.
    machine.script("python", &PEER.replace("do\n", "do\n  echo 'Killed by the system' >&2; exit 9\n"));
    let report = json(&bench(&machine, &["--json"]));
    for case in cases(&report) {
        let error = case["peers"]["eager"]["error"].as_str().expect("an error");
        assert_eq!(error, "the process ended: Killed by the system", "{case}");
    }
}
