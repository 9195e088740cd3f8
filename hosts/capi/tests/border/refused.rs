//! Wrong calls: each is an error that says what is wrong, and changes nothing.

use std::ptr;

use fourfold::ir::Tensor;
use fourfold_capi::abi::*;

use super::api::{Backing, Host, Module, View, Wrong, api, args, call, call_const, fixture, text};
use super::expected;

fn check(found: Result<impl Sized, Wrong>, code: i32, reason: &str, says: &str) {
    let Err(wrong) = found else { panic!("{says}: no error") };
    assert!(
        wrong.code == code && wrong.reason == reason && wrong.message.contains(says),
        "{wrong:?}\n{says}"
    );
}

fn argument(found: Result<impl Sized, Wrong>, says: &str) {
    check(found, 3, "invalid_argument", says);
}

#[test]
fn options_are_checked() {
    argument(
        Host::create(&[("devise", "none")]),
        "no option is named `devise`; the options are target, device",
    );
    argument(Host::create(&[("device", "first")]), "expected the number of a GPU or `none`");
    argument(Host::create(&[("claim", "all")]), "the option `claim` is `all`");
    argument(Host::create(&[("contract", "yes")]), "expected `true` or `false`");
    argument(Host::create(&[("jobs", "0")]), "expected a number above 0");
    argument(Host::create(&[("build", "never")]), "`always` or `needed`");
    check(
        Host::create(&[("target", "sm_1a"), ("device", "none")]),
        12,
        "unsupported",
        "unknown target `sm_1a`",
    );
    argument(Host::create(&[("cache", "none"), ("tiers", "pack")]), "but `cache` is `none`");
    argument(Host::create(&[("tiers", "what://is this")]), "cannot use the cache tier");
    argument(
        Host::create(&[("dispatch", "/none/tables.toml")]),
        "the dispatch tables: cannot read `/none/tables.toml`",
    );
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables.toml");
    std::fs::write(&tables, "schema = 1\n[[table]]\ntargets = [\"sm_1a\"]\n").unwrap();
    let at = tables.to_str().unwrap();
    argument(Host::create(&[("dispatch", at)]), "tables.toml: ");
    let known = fixture("../codegen/src/select/sm90.toml");
    std::fs::write(&tables, known).unwrap();
    Host::new(&[("device", "none"), ("dispatch", at)]);
    for options in [
        &[
            ("device", "none"),
            ("cache", "none"),
            ("jobs", "2"),
            ("provision", "false"),
            ("known_bad", "true"),
        ][..],
        &[("device", "none"), ("cache", "/tmp/none"), ("build", "needed"), ("emulate", "true")][..],
        &[("device", "none"), ("tiers", "model.kernels, /shared/kernels"), ("claim", "device")][..],
    ] {
        Host::new(options);
    }
}

#[test]
fn structs_are_checked() {
    let mut create: BackendCreateArgs = args();
    create.struct_size = size_of::<BackendCreateArgs>() - 1;
    let short = call(api().backend_create, &mut create);
    argument(short, "fourfold_backend_create_args.struct_size is 55, which is less than 56");
    assert!(create.backend.is_null());
    let missing = call(api().backend_create, ptr::null_mut());
    argument(missing, "the fourfold_backend_create_args is NULL");
    let (mut create, options) = (args::<BackendCreateArgs>(), 1);
    create.option_count = options;
    let nothing = call(api().backend_create, &mut create);
    argument(nothing, "options is NULL, but its count is 1");
    let bytes = [0xFFu8, 0xFE];
    let entry = OptionEntry { key: Str { ptr: bytes.as_ptr().cast(), len: 2 }, value: text("") };
    (create.options, create.option_count) = (&entry, 1);
    argument(call(api().backend_create, &mut create), "the key of an option is not UTF-8");

    let mut compile: CompileArgs = args();
    compile.ir = text("fir 1\n");
    argument(call(api().compile, &mut compile), "the backend is NULL");
    let host = Host::new(&[("device", "none")]);
    (compile.backend, compile.flags) = (host.0, 4);
    compile.ir = text("fir 1\nfunc @f(%x: tensor<[2], f32>) {\n  return %x\n}\n");
    argument(call(api().compile, &mut compile), "the flags 0x4 are unknown");
    assert!(compile.module.is_null());

    let mut prepare: PrepareArgs = args();
    argument(call(api().prepare, &mut prepare), "give either a module or a session");
    let launch: LaunchArgs = args();
    argument(call_const(api().launch, &launch), "the prepared program is NULL");
    argument(call(api().prepared_fault, ptr::null_mut()), "the prepared program is NULL");
    let module = host.compile(&fixture("minilm_ffn.fir"), 0).expect("a module");
    argument(module.wait(-2), "timeout_ms is -2");
}

#[test]
fn null_is_taken_by_destructors_and_queries_of_errors() {
    // SAFETY: the header allows it.
    unsafe {
        (api().error_destroy)(ptr::null_mut());
        (api().backend_destroy)(ptr::null_mut());
        (api().report_destroy)(ptr::null_mut());
        (api().module_destroy)(ptr::null_mut());
        (api().info_destroy)(ptr::null_mut());
        (api().session_destroy)(ptr::null_mut());
        (api().prepared_destroy)(ptr::null_mut());
        (api().module_cancel)(ptr::null_mut());
        assert_eq!((api().error_code)(ptr::null()), 0);
        assert_eq!((api().error_message)(ptr::null()).len, 0);
        assert_eq!((api().backend_target)(ptr::null()).len, 0);
    }
}

#[test]
fn errors_of_programs_have_their_place() {
    let host = Host::new(&[("device", "none")]);
    let source =
        "fir 1\nfunc @f(%x: tensor<[2], f32>) {\n  %y = relu %z : tensor<[2], f32>\n  return %y\n}\n";
    for found in [host.query(source).map(drop), host.compile(source, 0).map(drop)] {
        let wrong = found.expect_err("an unknown value");
        assert_eq!(wrong.code, 3);
        assert!(!wrong.reason.is_empty() && wrong.reason != "invalid_argument", "{wrong:?}");
        assert!(wrong.message.contains("program:3:") && wrong.message.contains("%z"), "{}", wrong.message);
    }
    let nothing = host.query("").map(drop).expect_err("no program");
    assert_eq!(nothing.code, 3);
}

/// A module with its tensors, each of which a test may spoil.
struct Call {
    module: Module,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Call {
    fn new() -> Call {
        let source = fixture("minilm_ffn.fir");
        let module = Host::new(&[("device", "none")]).compile(&source, 0).expect("a module");
        let (tensors, outputs) = expected(&source, &[("M", 3)], 5);
        let ports = module.ports(&[]).expect("ports");
        let inputs = ports.iter().filter_map(|port| tensors.get(&port.name).cloned()).collect();
        Call { module, inputs, outputs }
    }

    /// Spoils the views and runs.
    fn with(&mut self, spoil: impl FnOnce(&mut Vec<View>, &mut Vec<View>)) -> Result<(), Wrong> {
        let before = self.outputs.clone();
        let own = |tensor| View::of(tensor, Backing::Own);
        let mut inputs: Vec<View> = self.inputs.iter_mut().map(own).collect();
        let mut outputs: Vec<View> = self.outputs.iter_mut().map(own).collect();
        spoil(&mut inputs, &mut outputs);
        let found = self.module.execute_views(&inputs, &outputs, &[]);
        assert_eq!(self.outputs, before, "a refused call writes nothing, and another writes the same");
        found
    }
}

#[test]
fn tensors_are_checked() {
    let mut run = Call::new();
    run.with(|_, _| ()).expect("a run");
    argument(run.with(|inputs, _| drop(inputs.pop())), "`@main` has 15 inputs, not 14");
    argument(run.with(|_, outputs| drop(outputs.pop())), "`@main` has 2 outputs, not 1");
    argument(run.with(|inputs, _| inputs[0].view.data = ptr::null_mut()), "has no memory: data is NULL");
    argument(run.with(|inputs, _| inputs[0].view.dtype.code = 2), "which is not its type");
    argument(run.with(|inputs, _| inputs[1].view.dtype.lanes = 3), "has the DLPack type (17, 4, 3)");
    argument(run.with(|inputs, _| inputs[0].view.ndim = 3), "has 3 axes; expected 2");
    argument(run.with(|inputs, _| inputs[0].view.ndim = -1), "has -1 axes");
    argument(run.with(|inputs, _| inputs[0].view.shape = ptr::null_mut()), "a shape is NULL");
    argument(run.with(|inputs, _| inputs[0].shape[0] = -3), "has the extent -3");
    check(run.with(|inputs, _| inputs[0].shape[1] = 383), 3, "invalid_input", "`%x`");
    // Disagreeing extents of one symbol.
    check(run.with(|inputs, _| inputs[0].shape[0] = 2), 3, "invalid_input", "with M = 2");
    argument(run.with(|_, outputs| outputs[1].shape[0] = 2), "has the shape [2, 384]; expected [3, 384]");
    argument(run.with(|inputs, _| inputs[0].view.byte_offset = u64::MAX), "exceeds the address space");
    argument(run.with(|inputs, _| inputs[0].view.device.kind = 4), "is on DLPack device (4, 0)");
    argument(run.with(|inputs, _| inputs[0].view.device.kind = DEVICE_CUDA), "some tensors are on the host");
    let on_device = run.with(|inputs, outputs| {
        inputs.iter_mut().chain(outputs).for_each(|view| view.view.device.kind = DEVICE_CUDA);
    });
    check(on_device, 9, "no_device", "no GPU of target");
    let huge = run.with(|inputs, _| inputs[0].shape[0] = i64::MAX);
    check(huge, 8, "tensor", "exceeds the address space");
}

#[test]
fn strides_must_be_compact() {
    let mut run = Call::new();
    let mut strides = [384i64, 1];
    run.with(|inputs, _| inputs[0].view.strides = strides.as_mut_ptr()).expect("compact strides");
    let mut transposed = [1i64, 3];
    argument(
        run.with(|inputs, _| inputs[0].view.strides = transposed.as_mut_ptr()),
        "has the strides [1, 3] for the shape [3, 384]; expected compact row-major memory",
    );
    // The stride of an axis of extent 1 does not matter.
    let mut any = [77i64];
    run.with(|inputs, _| inputs[5].view.strides = any.as_mut_ptr()).expect("an axis of extent 1");
}

#[test]
fn sessions_and_preparations_are_checked() {
    let mut run = Call::new();
    let params = run.module.ports(&[]).expect("ports");
    let is_param: Vec<bool> = params.iter().map(|port| port.flags & PORT_PARAM != 0).collect();
    let mut params: Vec<Tensor> =
        run.inputs.iter().zip(&is_param).filter(|(_, is)| **is).map(|(tensor, _)| tensor.clone()).collect();
    let views = |params: &mut Vec<Tensor>| -> Vec<View> {
        params.iter_mut().map(|tensor| View::of(tensor, Backing::Own)).collect()
    };
    argument(run.module.session_of(&views(&mut params)[1..]), "has 10 params, not 9");
    let mut on_device = views(&mut params);
    on_device[0].view.device.kind = DEVICE_CUDA;
    check(run.module.session_of(&on_device), 12, "device_param", "sessions take params on the host");
    let mut wrong = views(&mut params);
    wrong[0].shape[0] = 7;
    check(run.module.session_of(&wrong), 3, "invalid_input", "fc1.weight");

    let session = run.module.session_of(&views(&mut params)).expect("a session");
    let addresses = [ptr::without_provenance_mut(256); 15];
    let m = SymbolExtent { name: text("M"), extent: 3 };
    let prepare = |by_session: bool, symbols: usize, inputs: usize| {
        let mut prepare: PrepareArgs = args();
        if by_session {
            prepare.session = session.0
        } else {
            prepare.module = run.module.0
        }
        (prepare.symbols, prepare.symbol_count) = (&m, symbols);
        (prepare.inputs, prepare.input_count) = (addresses.as_ptr(), inputs);
        (prepare.outputs, prepare.output_count) = (addresses.as_ptr(), 2);
        call(api().prepare, &mut prepare)
    };
    argument(prepare(false, 1, 14), "has 15 inputs to bind, not 14");
    argument(prepare(true, 1, 15), "has 5 inputs to bind, not 15");
    check(prepare(false, 0, 15), 3, "invalid_input", "no given shape determines the symbol `M`");
    check(prepare(false, 1, 15), 9, "no_device", "no GPU of target");
    check(prepare(true, 1, 5), 9, "no_device", "no device");
    // The module still runs.
    run.with(|_, _| ()).expect("a run");
}
