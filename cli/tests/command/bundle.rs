//! Bundles: replays kept in folders, replayed elsewhere, and rejected once they were changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fourfold::executor::{Sealed, SealedFormat, SealedWriter};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

/// The cache of these tests, so that they neither read nor change another one.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/bundle-cache");

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name).display().to_string()
}

fn fourfold(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    command.args(arguments).env("FOURFOLD_DEVICE", "none").env("FOURFOLD_CACHE_DIR", CACHE);
    command.env_remove("FOURFOLD_CACHE_TIERS").env_remove("FOURFOLD_CACHE_SIZE");
    command.output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("an object")
}

/// A folder to work in.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Replays into a bundle and returns the report.
    fn bundle(&self, file: &str, name: &str, more: &[&str]) -> Value {
        let output =
            fourfold(&[&["replay", file, "--json", "--bundle", self.name(name).as_str()], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        json(&output)
    }

    fn replay(&self, name: &str, more: &[&str]) -> (i32, Value) {
        let output = fourfold(&[&["replay", self.name(name).as_str(), "--json"], more].concat());
        (output.status.code().expect("an exit code"), json(&output))
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("it can be written");
        self.name(name)
    }
}

/// Removes what differs from run to run: the file, times, and the bundle's folder.
fn comparable(report: &Value) -> Value {
    let mut report = report.clone();
    let object = report.as_object_mut().expect("an object");
    // The replay of a bundle also compares with the recorded run.
    for key in ["file", "bundle", "compared"] {
        object.remove(key);
    }
    let outputs = object["outputs"].as_array_mut().expect("outputs");
    outputs.retain(|output| output["expected"] != "recorded");
    for segment in object["segments"].as_array_mut().expect("segments") {
        segment.as_object_mut().expect("an object").remove("seconds");
    }
    report
}

fn recorded(report: &Value) -> Vec<&Value> {
    let outputs = report["outputs"].as_array().expect("outputs").iter();
    outputs.filter(|output| output["expected"] == "recorded").collect()
}

/// Two kernels with ops between them that are in no kernel.
const MIXED: &str = "fir 1
; sample: exact seed=3 M=37
func @mixed(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[160, 96], f4E2M1FN>, param %sfb: tensor<[160, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 160], f4E2M1FN>, param %sfw: tensor<[72, 10], f8E4M3FN, blocked>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 160], f32>
  %mean = reduce %h {axes = [1], keep_dims = true, kind = mean} : tensor<[M, 1], f32>
  %centred = sub %h, %mean : tensor<[M, 160], f32>
  %q, %sq = block_quantize %centred, %g {block = 16} : tensor<[M, 160], f4E2M1FN>, tensor<[M, 10], f8E4M3FN, blocked>
  %d = scaled_mma %q, %sq, %w, %sfw {block = 16} : tensor<[M, 72], f32>
  return %d
}
";

#[test]
fn a_moved_bundle_is_replayed_with_the_same_report_and_the_same_bits() {
    let place = Place::new();
    let file = place.write("mixed.fir", MIXED);
    for (name, file, more) in [
        ("data", fixture("minilm_ffn.fir"), &["--target", "sm_120a"][..]),
        ("quantized", fixture("minilm_ffn_qdq.fir"), &[]),
        ("seeded", file, &["--target", "sm_121a", "--emulate", "--symbol", "M=91"]),
    ] {
        let first = place.bundle(&file, name, more);
        assert_eq!(first["bundle"]["folder"], place.name(name), "{first}");
        let moved = format!("{name}.moved");
        fs::rename(place.path(name), place.path(&moved)).expect("it can be moved");
        let (code, second) = place.replay(&moved, &[]);
        assert_eq!((code, comparable(&second)), (0, comparable(&first)), "{name}");
        assert_eq!(comparable(&read(&place.path(&moved).join("report.json"))), comparable(&first));
        assert!(!recorded(&second).is_empty());
        for output in recorded(&second) {
            assert_eq!((&output["ok"], &output["rule"]), (&true.into(), &"bit-equal".into()), "{output}");
        }
        // The outputs are the same file, bit for bit.
        let again = format!("{name}.again");
        place.bundle(&place.name(&moved), &again, &[]);
        let outputs = |name: &str| fs::read(place.path(name).join("outputs.safetensors")).expect("outputs");
        assert!(outputs(&moved) == outputs(&again), "{name}");
        let data = |name: &str| fs::read(place.path(name).join("data.safetensors")).expect("data");
        assert!(data(&moved) == data(&again), "{name}");
    }
}

#[test]
fn a_bundle_of_a_rewritten_kernel_has_the_command_that_compiles_its_ptx() {
    let place = Place::new();
    let output = Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(["replay", &fixture("shapes/exact_m1.fir"), "--emulate", "--target", "sm_100a"])
        .args(["--bundle", &place.name("bundle")])
        .env("FOURFOLD_DEVICE", "none")
        .env("FOURFOLD_CACHE_DIR", place.path("cache"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let command = fs::read_to_string(place.path("bundle/kernels/0/command.txt")).expect("it is there");
    for word in
        ["no single command", "-ptx", "compute_100a", "-include prelude.cuh", "-o kernel.ptx kernel.cu"]
    {
        assert!(command.contains(word), "{word}: {command}");
    }
    assert!(!command.contains("translate="), "{command}");
}

#[test]
fn a_bundle_has_what_it_takes_and_no_secret() {
    let place = Place::new();
    // An entry that would be rejected if it were verified.
    let entry = place.path("cache/kernels/entries").join("7".repeat(64));
    fs::create_dir_all(&entry).expect("a folder");
    fs::write(entry.join("kernel.so"), "no library").expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    let output = command
        .args([
            "replay",
            &fixture("epilogue/epilogue_full.fir"),
            "--emulate",
            "--bundle",
            &place.name("bundle"),
        ])
        .env("FOURFOLD_DEVICE", "none")
        .env("FOURFOLD_CACHE_DIR", place.path("cache"))
        .env("FOURFOLD_CACHE_TIERS", "gopher://me:hunter2@host/kernels?sig=hunter2")
        .env("SOME_TOKEN", "hunter2")
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let bundle = place.path("bundle");
    assert!(said(&output).contains("the bundle lacks kernels/0/build.log"), "{}", said(&output));
    let source = fs::read_to_string(bundle.join("program.fir")).expect("the program");
    assert_eq!(source, fs::read_to_string(fixture("epilogue/epilogue_full.fir")).expect("the fixture"));
    let readme = fs::read_to_string(bundle.join("README.txt")).expect("it is there");
    assert!(readme.contains("fourfold replay DIR") && readme.contains("kernels/0/build.log"), "{readme}");
    let kernel = bundle.join("kernels/0");
    let text =
        |name: &str| fs::read_to_string(kernel.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(text("kernel.cu").contains("fourfold_prepare") && !text("prelude.cuh").is_empty());
    let command = text("command.txt");
    assert!(
        command.contains("sm_90a") && command.contains("prelude.cuh") && command.contains("kernel.cu"),
        "{command}"
    );
    let object = read(&kernel.join("kernel.json"));
    assert_eq!((&object["target"], &object["built"]), (&"sm_120a".into(), &false.into()), "{object}");
    let environment = read(&bundle.join("environment.json"));
    assert_eq!(environment["fourfold"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(environment["findings"].is_array() && environment["targets"].is_array());
    // The report on the cache has counts and sizes only: verification would read all of it.
    let cache = &environment["cache"];
    assert_eq!(
        (&cache["entries"], &cache["bytes"], &cache["verified"]),
        (&1.into(), &10.into(), &false.into())
    );
    assert_eq!(cache["refused"], serde_json::json!([]));
    let manifest = read(&bundle.join("manifest.json"));
    let files = manifest["files"].as_object().expect("files");
    for name in files.keys() {
        let bytes = fs::read(bundle.join(name)).expect(name);
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{name}");
    }
    let options = &manifest["about"]["options"];
    assert_eq!((&options["target"], &options["emulate"]), (&"sm_120a".into(), &true.into()));
}

#[test]
fn other_inputs_do_not_give_what_was_recorded() {
    let place = Place::new();
    let file = place.write("mixed.fir", MIXED);
    place.bundle(&file, "bundle", &["--target", "sm_120a"]);
    let bytes = fs::read(place.path("bundle/data.safetensors")).expect("the data");
    let tensors = SafeTensors::deserialize(&bytes).expect("they are well-formed");
    let mut edited: Vec<_> = tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    // The sign of one element of the weight of the last product.
    let weight = edited.iter_mut().find(|(name, ..)| name == "w").expect("the weight");
    let position = weight.3.iter().position(|byte| byte & 0x07 != 0).expect("it is not all zeros");
    weight.3[position] ^= 0x08;
    let views = edited.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("the size is right"))
    });
    let other = place.path("other.safetensors");
    fs::write(&other, safetensors::serialize(views, None).expect("it serializes")).expect("it is written");
    let (code, report) = place.replay("bundle", &["--data", &other.display().to_string()]);
    assert_eq!((code, &report["ok"]), (1, &false.into()));
    let wrong = recorded(&report);
    assert_eq!(wrong.len(), 1);
    let mismatches = wrong[0]["mismatches"].as_u64().expect("a count");
    assert!((1..=37).contains(&mismatches), "one column of d at most: {mismatches}");
    // Compared with the interpreter on the same inputs, it is right.
    let others = report["outputs"].as_array().expect("outputs").iter();
    assert!(others.filter(|output| output["expected"] != "recorded").all(|output| output["ok"] == true));
    assert_eq!(place.replay("bundle", &[]).0, 0);
}

#[test]
fn a_segment_becomes_a_program_of_its_own() {
    let place = Place::new();
    let file = place.write("mixed.fir", MIXED);
    let ops = [&["scaled_mma"][..], &["reduce", "sub", "block_quantize"], &["scaled_mma"]];
    for (segment, ops) in ops.iter().enumerate() {
        let name = format!("segment{segment}");
        place.bundle(&file, &name, &["--target", "sm_120a", "--segment", &segment.to_string()]);
        let source = fs::read_to_string(place.path(&name).join("program.fir")).expect("a program");
        for op in ["scaled_mma", "reduce", "sub", "block_quantize"] {
            assert_eq!(source.contains(&format!("= {op} ")), ops.contains(&op), "{op} in {source}");
        }
        let (code, report) = place.replay(&name, &[]);
        assert_eq!((code, &report["segments"].as_array().map(Vec::len)), (0, &Some(1)), "{report}");
        assert_eq!(report["symbols"]["M"], 37);
        assert!(recorded(&report).iter().all(|output| output["rule"] == "bit-equal" && output["ok"] == true));
        let whole = read(&place.path(&name).join("whole/report.json"));
        assert_eq!(whole["segments"].as_array().map(Vec::len), Some(3));
        let is_generated = ops.contains(&"scaled_mma") || ops.contains(&"block_quantize");
        assert_eq!(place.path(&name).join("kernels/0/kernel.cu").exists(), is_generated);
    }
    // The input of the last product is the output of the segment before it.
    let read = |name: &str| fs::read(place.path(name)).expect("tensors");
    let (inputs, outputs) = (read("segment2/data.safetensors"), read("segment1/outputs.safetensors"));
    let tensors = [&inputs, &outputs].map(|bytes| SafeTensors::deserialize(bytes).expect("well-formed"));
    for name in ["q", "sq"] {
        let [got, gave] = [0, 1].map(|of| tensors[of].tensor(name).expect(name).data().to_vec());
        assert!(got == gave, "{name}");
    }
    let output = fourfold(&[
        "replay",
        &file,
        "--target",
        "sm_120a",
        "--bundle",
        &place.name("none"),
        "--segment",
        "4",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("the program has no segment 4; its 3 segments"), "{}", said(&output));
    assert!(output.stdout.is_empty() && !place.path("none").exists(), "nothing was run");
    assert_eq!(fourfold(&["replay", &file, "--segment", "1"]).status.code(), Some(2), "needs --bundle");
}

#[test]
fn a_bundle_that_is_not_what_it_was_is_refused() {
    let place = Place::new();
    place.bundle(&fixture("shapes/exact_m1.fir"), "bundle", &[]);
    let refused = |file: &str, change: &dyn Fn(&Path), words: &str| {
        let path = place.path("bundle").join(file);
        let bytes = fs::read(&path).expect(file);
        change(&path);
        let (code, object) = place.replay("bundle", &[]);
        assert_eq!((code, &object["fault"]), (2, &"invalid_input".into()), "{file}");
        let error = object["error"].as_str().expect("a message");
        assert!(error.contains(words) && error.contains(file), "{error}");
        fs::write(&path, bytes).expect("it can be put back");
        assert_eq!(place.replay("bundle", &[]).0, 0, "{file} is as it was");
    };
    for file in ["program.fir", "data.safetensors", "outputs.safetensors", "report.json", "manifest.json"] {
        let remove = |path: &Path| fs::remove_file(path).expect("it can be removed");
        refused(file, &remove, if file == "manifest.json" { "has no" } else { "is missing" });
        let flip = |path: &Path| {
            let mut bytes = fs::read(path).expect(file);
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).expect("it can be changed");
        };
        if file != "manifest.json" {
            refused(file, &flip, "was changed");
        }
        let cut = |path: &Path| fs::write(path, &fs::read(path).expect(file)[1..]).expect("it can be cut");
        refused(file, &cut, if file == "manifest.json" { "is corrupt" } else { "was changed" });
    }
    let output = fourfold(&["replay", env!("CARGO_MANIFEST_DIR")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("is not a Fourfold bundle"), "{}", said(&output));
}

#[test]
fn a_folder_of_somebody_s_is_left_alone_and_an_old_bundle_is_replaced() {
    let place = Place::new();
    let file = fixture("shapes/exact_m1.fir");
    fs::create_dir(place.path("thesis")).expect("a folder");
    place.write("thesis/chapter1.txt", "years of work");
    let output = fourfold(&["replay", &file, "--bundle", &place.name("thesis")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("is not empty and not a Fourfold bundle"), "{}", said(&output));
    assert!(output.stdout.is_empty(), "nothing was run");
    assert_eq!(fs::read_dir(place.path("thesis")).expect("the folder").count(), 1);

    place.bundle(&file, "bundle", &[]);
    place.write("bundle/notes.txt", "years of work");
    let output = fourfold(&["replay", &file, "--bundle", &place.name("bundle")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("with the added file `notes.txt`"), "{}", said(&output));
    fs::remove_file(place.path("bundle/notes.txt")).expect("it is still there");
    place.bundle(&fixture("shapes/exact_m91.fir"), "bundle", &[]);
    let (code, report) = place.replay("bundle", &[]);
    assert_eq!((code, &report["segments"][0]["kind"]), (0, &"kernel".into()));
    let manifest = read(&place.path("bundle/manifest.json"));
    assert!(manifest["about"]["file"].as_str().expect("a name").ends_with("exact_m91.fir"));
    // A bundle may be replaced by its own replay.
    place.bundle(&place.name("bundle"), "bundle", &[]);
    assert_eq!(place.replay("bundle", &[]).0, 0);
    let names: Vec<_> = fs::read_dir(place.folder.path()).expect("the folder").collect();
    assert_eq!(names.len(), 2, "nothing else is left: {names:?}");
}

#[test]
fn a_replay_that_is_wrong_or_fails_is_kept_too() {
    let place = Place::new();
    // A tolerance that an inexact sum does not meet.
    let strict = "fir 1
; sample: normal seed=1
; tolerance: 0
func @f(%a: tensor<[256, 512], bf16>, %b: tensor<[264, 512], bf16>) {
  %d = mma %a, %b : tensor<[256, 264], bf16>
  %wide = mma %a, %b : tensor<[256, 264], f32>
  %narrow = convert %wide : tensor<[256, 264], bf16>
  return %d, %narrow
}
";
    let file = place.write("strict.fir", strict);
    let output = fourfold(&["replay", &file, "--bundle", &place.name("wrong")]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let (code, report) = place.replay("wrong", &[]);
    assert_eq!((code, recorded(&report).len()), (1, 0), "what was wrong is not demanded");
    let notes = report["notes"].as_array().expect("notes").iter().filter_map(Value::as_str);
    assert_eq!(
        notes.filter(|note| note.contains("equals the result of the recorded run")).count(),
        2,
        "{report}"
    );

    // Data that lack a tensor, and a file that is no data.
    let data = place.write("damaged.safetensors", "not tensors");
    let layer = fixture("minilm_ffn.fir");
    let output = fourfold(&["replay", &layer, "--data", &data, "--bundle", &place.name("failed")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("the bundle lacks outputs.safetensors: the run failed"),
        "{}",
        said(&output)
    );
    let error = read(&place.path("failed/error.json"));
    assert!(error["error"].as_str().expect("a message").contains("not a safetensors file"), "{error}");
    fs::remove_file(&data).expect("it is not needed any more");
    let (code, again) = place.replay("failed", &[]);
    assert_eq!((code, &again["fault"]), (2, &"invalid_input".into()));
    assert!(again["error"].as_str().expect("a message").contains("not a safetensors file"), "{again}");

    // A text that is not a program.
    let broken = place.write("broken.fir", "fir 1\nfunc @broken(");
    let output = fourfold(&["replay", &broken, "--bundle", &place.name("invalid"), "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let (code, again) = place.replay("invalid", &[]);
    assert_eq!((code, &again["diagnostics"]), (2, &json(&output)["diagnostics"]));
    // Without a program, no bundle is written.
    let output = fourfold(&["replay", &place.name("absent.fir"), "--bundle", &place.name("nothing")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("no bundle was written") && !place.path("nothing").exists());
}

#[test]
fn why_there_is_no_bundle_is_in_the_report_or_known_before_the_run() {
    let place = Place::new();
    let file = fixture("shapes/exact_m1.fir");
    let bundled = |file: &str, folder: &str| {
        let output = fourfold(&["replay", file, "--json", "--bundle", folder]);
        (output.status.code(), json(&output))
    };
    // A folder that cannot be created is the machine's fault.
    let (code, object) = bundled(&file, "/proc/none");
    assert_eq!((code, &object["fault"]), (Some(3), &"environment".into()), "{object}");
    // Paths are compared after `..` and links are resolved.
    place.write("thesis.txt", "years of work");
    let (code, object) = bundled(&file, &place.name("new/.."));
    let error = object["error"].as_str().expect("a message");
    assert!(code == Some(2) && error.contains("is not empty and not a Fourfold bundle"), "{object}");
    assert!(!place.path("new").exists());
    let (code, object) = bundled(&file, &place.name("new/../found"));
    assert_eq!((code, &object["bundle"]["folder"]), (Some(0), &place.name("found").into()), "{object}");
    assert_eq!(object["bundle_error"], Value::Null);
    // A run that fails names its bundle, or the reason why none was written.
    let data = place.write("damaged.safetensors", "not tensors");
    let failed = fourfold(&["replay", &file, "--data", &data, "--json", "--bundle", &place.name("failed")]);
    let object = json(&failed);
    assert_eq!((failed.status.code(), &object["bundle"]["folder"]), (Some(2), &place.name("failed").into()));
    let (code, object) = bundled(&place.name("absent.fir"), &place.name("nothing"));
    assert_eq!((code, &object["bundle"]), (Some(2), &Value::Null), "{object}");
    assert!(object["bundle_error"].as_str().is_some_and(|why| why.contains("could not be read")), "{object}");
}

/// Rewrites a bundle with its description and outputs changed.
fn rewrite(folder: &Path, to: &Path, about: impl Fn(&mut Value), outputs: impl Fn(&mut Vec<u8>)) {
    let format = SealedFormat { name: "Fourfold bundle", version: 1 };
    let sealed = Sealed::open(folder, format).expect("a bundle");
    let mut writer = SealedWriter::begin(to, format).expect("a folder");
    for name in sealed.names() {
        let mut bytes = fs::read(folder.join(name)).expect(name);
        if name == "outputs.safetensors" {
            outputs(&mut bytes);
        }
        writer.write(name, &bytes).expect(name);
    }
    let mut said = sealed.about().clone();
    about(&mut said);
    writer.seal(said).expect("a bundle");
}

#[test]
fn on_another_processor_outputs_are_held_within_what_roundings_allow() {
    let place = Place::new();
    let program = "fir 1
; sample: normal seed=1
func @f(%a: tensor<[37, 512], bf16>, %b: tensor<[264, 512], bf16>) {
  %d = mma %a, %b : tensor<[37, 264], f32>
  return %d
}
";
    place.bundle(&place.write("product.fir", program), "here", &[]);
    // The last bit of the last element.
    let off_by_one_bit = |bytes: &mut Vec<u8>| {
        let last = bytes.len() - 4;
        bytes[last] ^= 1;
    };
    let here = |_: &mut Value| {};
    let elsewhere = |about: &mut Value| {
        let processor = &mut about["recorded"]["processor"];
        assert!(processor.is_string(), "the processor is recorded");
        *processor = "Another 9000".into();
    };
    rewrite(&place.path("here"), &place.path("changed"), here, off_by_one_bit);
    let (code, report) = place.replay("changed", &[]);
    assert_eq!((code, &recorded(&report)[0]["mismatches"]), (1, &1.into()), "{report}");
    rewrite(&place.path("here"), &place.path("elsewhere"), elsewhere, off_by_one_bit);
    let (code, report) = place.replay("elsewhere", &[]);
    assert_eq!((code, &recorded(&report)[0]["ok"]), (0, &true.into()), "{report}");
    assert_ne!(recorded(&report)[0]["rule"], "bit-equal");
    assert!(
        report["notes"].to_string().contains("another processor")
            && report["notes"].to_string().contains("Another 9000")
    );
    // A wrong result is still found there.
    rewrite(&place.path("here"), &place.path("wrong"), elsewhere, |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 0x80;
    });
    let (code, report) = place.replay("wrong", &[]);
    assert_eq!((code, &recorded(&report)[0]["ok"]), (1, &false.into()), "{report}");
}

#[test]
fn a_bundle_with_an_option_that_is_no_more_is_replayed() {
    let place = Place::new();
    place.bundle(&fixture("shapes/exact_m1.fir"), "bundle", &["--target", "sm_90a"]);
    let former = |about: &mut Value| about["options"]["a_former_option"] = true.into();
    rewrite(&place.path("bundle"), &place.path("former"), former, |_| {});
    for name in ["bundle", "former"] {
        let (code, report) = place.replay(name, &[]);
        assert_eq!(
            (code, &report["target"], &report["kernels"]),
            (0, &"sm_90a".into(), &1.into()),
            "{report}"
        );
    }
}

#[test]
fn another_target_replaces_that_of_the_bundle() {
    let place = Place::new();
    place.bundle(&fixture("shapes/exact_m91.fir"), "bundle", &["--emulate"]);
    let (code, report) = place.replay("bundle", &[]);
    assert_eq!((code, &report["target"]), (0, &"sm_120a".into()));
    let (code, report) = place.replay("bundle", &["--target", "cpu"]);
    assert_eq!((code, &report["target"], &report["kernels"]), (0, &"cpu".into(), &0.into()));
    assert!(recorded(&report).iter().all(|output| output["ok"] == true));
}

#[test]
fn a_bundle_has_the_dispatch_table_of_its_run() {
    let place = Place::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("table.toml");
    let table = "schema = 1\n\n[[table]]\ntargets = [\"sm_100a\"]\nformats = [\"nvfp4\"]\n\n[table.default]\n\
                 kernel = { tile = [128, 192, 256] }\nwhy = \"measured\"\n";
    std::fs::write(&file, table).expect("it can be written");
    let given = ["--target", "sm_100a", "--dispatch", file.to_str().expect("a name")];
    place.bundle(&fixture("shapes/exact_m91.fir"), "bundle", &given);
    std::fs::remove_file(&file).expect("it is there");
    let (code, report) = place.replay("bundle", &[]);
    assert_eq!(code, 0);
    assert!(report.to_string().contains("sm100_128x192x256_1sm_c1x1"), "{report}");
}
