//! The text form: fixed points, round trips, spans, directives, and arbitrary or hostile input.

use std::time::{Duration, Instant};

use expect_test::expect;
use fourfold_ir::load;
use fourfold_ir::text::{Directive, directives, parse, print, print_op};
use fourfold_ir::{
    BinaryKind, Builder, ConstantValue, Diagnostic, Dim, ElementType, Entity, Module, Op, OpKind, Place,
    ScaleLayout, ScaledMma, ScaledMmaOptions, Span, Symbol, TensorType, UnaryKind, Value,
};
use proptest::prelude::*;

/// Every op, every attribute, every element type and layout, in canonical form.
const EVERY_OP: &str = "\
fir 1

func @layer.0(
    %x: tensor<[M, 384], bf16>,
    %fc1.input: tensor<[M, 384], f4E2M1FN>,
    %sx: tensor<[M, 24], f8E4M3FN, blocked>,
    param %w: tensor<[1536, 384], f4E2M1FN>,
    param %w_scale: tensor<[1536, 24], f8E4M3FN, linear>,
    %alpha: tensor<[], f32>,
    %beta: tensor<[1], f32>,
    %c: tensor<[M, 1536], f16>,
    %g: tensor<[], f32>,
    %mx: tensor<[4*M*B, 64], f8E5M2>,
    %smx: tensor<[4*M*B, 2], f8E8M0FNU, linear>,
    %six: tensor<[4*M*B, 64], f6E2M3FN>,
    %i: tensor<[0], i32>,
    %we: tensor<[7, 1536, 64], f4E2M1FN>,
    %swe: tensor<[7, 1536, 2], f8E8M0FNU, linear>,
    %en: tensor<[7], i32>,
    %ae: tensor<[7], f32>,
    %me: tensor<[7, M, 64], f8E5M2>,
    %sme: tensor<[7, M, 2], f8E8M0FNU, blocked>,
    %he: tensor<[7, M, 64], f16>
) {
  %sw = swizzle_scales %w_scale : tensor<[1536, 24], f8E4M3FN, blocked>
  %acc = scaled_mma %fc1.input, %sx, %w, %sw {block = 16} : tensor<[M, 1536], f32>
  %acc2 = scaled_mma %fc1.input, %sx, %w, %sw, alpha = %alpha, c = %c, beta = %beta {block = 16} : tensor<[M, 1536], f32>
  %acc4 = scaled_mma %x, %w, %sw {block = 16} : tensor<[M, 1536], bf16>
  %acc5 = scaled_mma %x, %w, %sw, alpha = %alpha, c = %c {block = 16} : tensor<[M, 1536], f32>
  %acc3 = scaled_mma %fc1.input, %sx, %w, %sw, beta = %beta {block = 16} : tensor<[M, 1536], f32>
  %acc6 = scaled_mma %six, %smx, %mx, %smx {block = 32} : tensor<[4*M*B, 4*M*B], f32>
  %gm = grouped_scaled_mma %mx, %smx, %we, %swe, %en {block = 32} : tensor<[4*M*B, 1536], f32>
  %gm2 = grouped_scaled_mma %mx, %smx, %we, %swe, %en, alpha = %ae {block = 32} : tensor<[4*M*B, 1536], bf16>
  %ep = padded_ends %en {multiple = 128} : tensor<[7], i32>
  %smp = group_scales %smx, %en, %ep : tensor<[4096, 2], f8E8M0FNU, blocked>
  %gm3 = grouped_scaled_mma %mx, %smp, %we, %swe, %en, alpha = %ae, sfa_ends = %ep {block = 32} : tensor<[4*M*B, 1536], bf16>
  %mm = masked_scaled_mma %me, %sme, %we, %swe, %en {block = 32} : tensor<[7, M, 1536], f32>
  %mm2 = masked_scaled_mma %he, %we, %swe, %en, alpha = %ae {block = 32} : tensor<[7, M, 1536], bf16>
  %six.wide = convert %six : tensor<[4*M*B, 64], f32>
  %six.other = convert %six.wide : tensor<[4*M*B, 64], f6E3M2FN>
  %m = mma %x, %x : tensor<[M, M], f32>
  %q, %s = block_quantize %acc, %g {block = 16} : tensor<[M, 1536], f4E2M1FN>, tensor<[M, 96], f8E4M3FN, linear>
  %q1, %s1 = block_quantize %acc, %g {block = 16, scale_min = 0.015625} : tensor<[M, 1536], f4E2M1FN>, tensor<[M, 96], f8E4M3FN, linear>
  %q2, %s2 = block_quantize %acc {amax = multiply, block = 16, codes = reciprocal_scale, global = multiply, guard = false, scale_min = -inf} : tensor<[M, 1536], f4E2M1FN>, tensor<[M, 96], f8E4M3FN, linear>
  %plain = swizzle_scales %s2 : tensor<[M, 96], f8E4M3FN>
  %again = swizzle_scales %plain : tensor<[M, 96], f8E4M3FN, blocked>
  %0, %1 = block_quantize %acc {block = 32, scale_rounding = ceil} : tensor<[M, 1536], f8E4M3FN>, tensor<[M, 48], f8E8M0FNU, linear>
  %2, %3 = block_quantize %acc {block = 32, scale_rounding = floor} : tensor<[M, 1536], f8E5M2>, tensor<[M, 48], f8E8M0FNU, linear>
  %4, %5 = block_quantize %acc {block = 32, infinity = exponent, least_scale = 0.25, least_step = normal, nan = infinite_step, scale_rounding = even} : tensor<[M, 1536], f8E5M2>, tensor<[M, 48], f8E8M0FNU, linear>
  %d = block_dequantize %q, %s, %g {block = 16} : tensor<[M, 1536], f32>
  %h = convert %d : tensor<[M, 1536], f16>
  %u0 = neg %d : tensor<[M, 1536], f32>
  %u1 = abs %d : tensor<[M, 1536], f32>
  %u2 = exp %d : tensor<[M, 1536], f32>
  %u3 = sqrt %d : tensor<[M, 1536], f32>
  %u4 = rsqrt %d : tensor<[M, 1536], f32>
  %u5 = reciprocal %d : tensor<[M, 1536], f32>
  %u6 = tanh %d : tensor<[M, 1536], f32>
  %u7 = sigmoid %d : tensor<[M, 1536], f32>
  %u8 = relu %d : tensor<[M, 1536], f32>
  %u9 = gelu %d : tensor<[M, 1536], f32>
  %u10 = gelu_tanh %d : tensor<[M, 1536], f32>
  %u11 = silu %d : tensor<[M, 1536], f32>
  %b0 = add %u0, %h : tensor<[M, 1536], f32>
  %b1 = sub %u0, %h : tensor<[M, 1536], f32>
  %b2 = mul %u0, %h : tensor<[M, 1536], f32>
  %b3 = div %u0, %h : tensor<[M, 1536], f32>
  %b4 = max %u0, %h : tensor<[M, 1536], f32>
  %b5 = min %u0, %h : tensor<[M, 1536], f32>
  %i0 = bitcast %b5 : tensor<[M, 1536], i32>
  %i1 = and %i0, %i0 : tensor<[M, 1536], i32>
  %i2 = or %i1, %i0 : tensor<[M, 1536], i32>
  %i3 = shift_left %i2, %i0 : tensor<[M, 1536], i32>
  %i4 = shift_right %i3, %i0 : tensor<[M, 1536], i32>
  %cl = clamp %b0 {max = inf, min = -0.5} : tensor<[M, 1536], f32>
  %p = compare %b0, %b1 {predicate = le} : tensor<[M, 1536], i1>
  %sel = select %p, %b0, %b1 : tensor<[M, 1536], f32>
  %r = reshape %sel : tensor<[M, 2, 768], f32>
  %t = transpose %r {permutation = [2, 0, 1]} : tensor<[768, M, 2], f32>
  %bc = broadcast %t : tensor<[3, 768, M, 2], f32>
  %b6 = pow %u0, %h : tensor<[M, 1536], f32>
  %sl = slice %sel {axes = [1], ends = [768], starts = [2]} : tensor<[M, 766], f32>
  %sl2 = slice %sel {axes = [0, 1], ends = [0, 768], starts = [0, 2], steps = [1, 3]} : tensor<[0, 256], f32>
  %ca = concat %sl, %sl, %sl {axis = 0} : tensor<[3*M, 766], f32>
  %ch = choose %sl, %sl {axis = 0, ends = [64]} : tensor<[M, 766], f32>
  %ga = gather %sel, %i {axis = 1} : tensor<[M, 0], f32>
  %tv, %ti = top_k %sel {k = 3} : tensor<[M, 3], f32>, tensor<[M, 3], i32>
  %gp, %gr, %ge = group_rows %ti {groups = 1536} : tensor<[3*M], i32>, tensor<[3*M], i32>, tensor<[1536], i32>
  %sa = scatter_add %sel, %gr : tensor<[7, 1536], f16>
  %pa = pad %sel {axes = [1], high = [3], low = [0], value = -0.5} : tensor<[M, 1539], f32>
  %red = reduce %bc {axes = [0, 3], keep_dims = true, kind = amax} : tensor<[1, 768, M, 1], f32>
  %red2 = reduce %bc {axes = [], kind = mean} : tensor<[3, 768, M, 2], f32>
  %sm = softmax %sel {axis = 1} : tensor<[M, 1536], f32>
  %k = constant {value = [1, 2.5, -inf, 1e-12, -0]} : tensor<[5], f32>
  %one = constant {value = 1e300} : tensor<[], f32>
  %none = constant {value = []} : tensor<[0], f32>
  %ln = layer_norm %sel, %one, %one {eps = 1e-5} : tensor<[M, 1536], f32>
  return %acc, %ln, %x, %acc
}
";

fn module(source: &str) -> Module {
    parse(source).unwrap_or_else(|errors| panic!("{}", render(source, &errors))).module
}

fn render(source: &str, errors: &[Diagnostic]) -> String {
    errors.iter().map(|error| error.render("test.fir", source)).collect()
}

#[test]
fn every_unary_op_is_a_fixed_point() {
    for kind in UnaryKind::ALL {
        let source = format!(
            "fir 1\n\nfunc @f(%x: tensor<[5], f32>) {{\n  %y = {kind} %x : tensor<[5], f32>\n  return %y\n}}\n"
        );
        assert_eq!(print(&module(&source)), source);
    }
}

#[test]
fn a_file_with_every_op_is_a_fixed_point() {
    let module = module(EVERY_OP);
    assert_eq!(print(&module), EVERY_OP);
    let used: Vec<&str> = module.ops.values().map(|operation| operation.kind.mnemonic()).collect();
    for mnemonic in OpKind::mnemonics().filter(|mnemonic| UnaryKind::from_name(mnemonic).is_none()) {
        assert!(used.contains(&mnemonic), "{mnemonic} is not covered");
    }
    for mnemonic in used {
        assert!(OpKind::mnemonics().any(|known| known == mnemonic), "{mnemonic} is not listed");
    }
}

#[test]
fn parsing_a_printed_program_gives_an_equal_module() {
    let module = module(EVERY_OP);
    assert_eq!(parse(&print(&module)).unwrap().module, module);
    assert_eq!(module.name, "layer.0");
    let outputs: Vec<&str> = module.outputs.iter().map(|value| module.name_of(*value)).collect();
    assert_eq!(outputs, ["acc", "ln", "x", "acc"]);
}

#[test]
fn another_spelling_of_a_program_prints_canonically() {
    let source = "\u{feff}; a comment first\r\n\tfir 1 ; and behind\r
func @f(%x: tensor<[B*4*S,M],f32>,param %y:tensor<[S*B*4, M], f32>, %z: tensor<[0*Q], f32>,
   %e: tensor<[2*3*7], f32>) { %r = reduce
      %x { kind=sum , keep_dims = false,
  axes = [ 1 ]
  } : tensor<[S*S*B], f32> %v = scaled_mma %x, %x, %y, %y, beta = %x, alpha = %y {block = 1.6e1} : tensor<[], i1>
  return }";
    let module = module(source);
    expect![[r#"
        fir 1

        func @f(
            %x: tensor<[4*B*S, M], f32>,
            param %y: tensor<[4*B*S, M], f32>,
            %z: tensor<[0], f32>,
            %e: tensor<[42], f32>
        ) {
          %r = reduce %x {axes = [1], kind = sum} : tensor<[B*S*S], f32>
          %v = scaled_mma %x, %x, %y, %y, alpha = %y, beta = %x {block = 16} : tensor<[], i1>
          return
        }
    "#]]
    .assert_eq(&print(&module));
    let symbols: Vec<&String> = module.symbols.values().collect();
    assert_eq!(
        symbols,
        ["B", "S", "M"],
        "symbols are numbered as they first appear, and only if they remain"
    );
}

#[test]
fn a_short_signature_stays_on_one_line_and_a_long_one_does_not() {
    let of_width = |width: usize| {
        let head = "func @f(%: tensor<[], f32>) {".len();
        let mut builder = Builder::new("f");
        builder.input(&"x".repeat(width - head), TensorType::new(vec![], ElementType::F32));
        print(&builder.finish(&[]))
    };
    assert_eq!(of_width(100).lines().nth(2).unwrap().len(), 100);
    assert_eq!(of_width(101).lines().nth(2).unwrap(), "func @f(");
    assert_eq!(print(&Module::new("empty")), "fir 1\n\nfunc @empty() {\n  return\n}\n");
}

#[test]
fn symbols_of_a_builder_in_any_order_print_to_a_fixed_point() {
    let mut builder = Builder::new("f");
    let [unused, b, s, t] = ["unused", "B", "S", "T"].map(|name| builder.symbol(name));
    assert_eq!(unused.symbols()[0].index(), 0);
    let [bs, tsb] = [b.times(&s).unwrap(), t.times(&s).unwrap().times(&b).unwrap()];
    let x = builder.input("x", TensorType::new(vec![s, Dim::fixed(3)], ElementType::F32));
    let y = builder.unary("y", UnaryKind::Relu, x);
    let z = builder.op(OpKind::Reshape, &[y], &[("", TensorType::new(vec![bs, tsb], ElementType::F32))])[0];
    let text = print(&builder.finish(&[z]));
    expect![[r#"
        fir 1

        func @f(%x: tensor<[S, 3], f32>) {
          %y = relu %x : tensor<[S, 3], f32>
          %2 = reshape %y : tensor<[S*B, S*B*T], f32>
          return %2
        }
    "#]]
    .assert_eq(&text);
    let read = module(&text);
    assert_eq!(print(&read), text);
    assert_eq!(parse(&print(&read)).unwrap().module, read);
}

#[test]
fn a_builders_module_whose_symbols_appear_in_order_is_read_back_equal() {
    let mut builder = Builder::new("main");
    let m = builder.symbol("M");
    let ty = |columns, element| TensorType::new(vec![m.clone(), Dim::fixed(columns)], element);
    let scales =
        |rows| TensorType::scales(vec![rows, Dim::fixed(4)], ElementType::F8E4M3FN, ScaleLayout::Linear);
    let a = builder.input("a", ty(64, ElementType::F4E2M1FN));
    let sfa = builder.input("a.scale", scales(m.clone()));
    let b = builder.param("b", TensorType::new(vec![Dim::fixed(37), Dim::fixed(64)], ElementType::F4E2M1FN));
    let sfb = builder.param("b.scale", scales(Dim::fixed(37)));
    let c = builder.input("c", ty(37, ElementType::BF16));
    let options = ScaledMmaOptions { c: Some(c), ..Default::default() };
    let d = builder.scaled_mma("d", a, sfa, b, sfb, 16, ElementType::F32, options);
    let e = builder.binary("", BinaryKind::Max, d, c);
    let built = builder.finish(&[e, d]);
    assert_eq!(module(&print(&built)), built);
}

#[test]
fn an_op_prints_as_its_line_in_the_program() {
    let module = module(EVERY_OP);
    let text = print(&module);
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let ops = lines.into_iter().filter(|line| line.starts_with('%'));
    assert_eq!(ops.clone().count(), module.ops.len());
    for (op, line) in module.ops.keys().zip(ops) {
        assert_eq!(print_op(&module, op), line);
    }
}

#[test]
fn printing_is_total_for_broken_modules() {
    let mut module = Module::new("broken");
    let missing = Value::from_index(7);
    let shape = vec![Dim::symbol(Symbol::from_index(3)), Dim::fixed(u64::MAX)];
    let kind =
        OpKind::ScaledMma(ScaledMma { block: 16, weight_only: false, alpha: true, c: true, beta: false });
    let results = vec![("d".to_owned(), TensorType::new(shape, ElementType::F32))];
    let op = module.push_op(kind, vec![missing], results);
    let silent = module.push_op(OpKind::Mma, vec![], vec![]);
    assert_eq!(print_op(&module, silent), "mma");
    module.ops[silent].results.push(missing);
    module.inputs.push(missing);
    module.outputs.push(missing);
    expect!["%d = scaled_mma alpha = value7 {block = 16} : tensor<[?, 18446744073709551615], f32>"]
        .assert_eq(&print_op(&module, op));
    expect!["value7 = mma : ?"].assert_eq(&print_op(&module, silent));
    expect!["op9"].assert_eq(&print_op(&module, Op::from_index(9)));
    assert!(print(&module).contains("func @broken(value7: ?) {"));
    assert!(print(&module).ends_with("  return value7\n}\n"));
}

#[test]
fn spans_cover_the_parts_of_the_program() {
    let source = "; größe\nfir 1\nfunc @f(param %a: tensor<[2], f32>, %b: tensor<[], f32>) {
  %c = add %a,\n     %b : tensor<[2], f32>  ; comment\n  return %c, %a ; done\n}\n";
    let (_, spans) = load(source).unwrap();
    let text = |place| {
        let Span { start, end } = spans.of(place).unwrap();
        &source[start as usize..end as usize]
    };
    assert_eq!(text(Place::Module), "@f");
    assert_eq!(text(Place::Input(0)), "param %a: tensor<[2], f32>");
    assert_eq!(text(Place::Input(1)), "%b: tensor<[], f32>");
    assert_eq!(text(Place::Op(Op::from_index(0))), "%c = add %a,\n     %b : tensor<[2], f32>");
    assert_eq!(text(Place::Output(0)), "%c");
    assert_eq!(text(Place::Output(1)), "%a");
    assert_eq!(spans.of(Place::Output(2)), None);
}

#[test]
fn directives_are_the_key_value_comments_before_the_function() {
    let source = "; data: a.safetensors\nfir 1\n  ;no_space:  b: c \r\n; Prose: no\n; two words: no\n;:\n; é: x\n\
        ; empty:\nfunc @f() { ; inside: no\n; after: no\n  return\n}\n";
    let found = directives(source);
    let text = |directive: &Directive| &source[directive.span.start as usize..directive.span.end as usize];
    let rows: Vec<_> = found.iter().map(|d| (d.key.as_str(), d.value.as_str(), d.line, text(d))).collect();
    let expected = [
        ("data", "a.safetensors", 1, "data: a.safetensors"),
        ("no_space", "b: c", 3, "no_space:  b: c"),
        ("empty", "", 8, "empty:"),
    ];
    assert_eq!(rows, expected);
    assert_eq!(directives("; functions: x\nfunctions\n; b: y").len(), 2);
}

#[test]
fn the_largest_extent_is_accepted() {
    let module = module("fir 1\nfunc @f(%x: tensor<[18446744073709551615*M, 0*M], f32>) { return }");
    assert_eq!(module.ty(module.inputs[0]).shape[0].constant(), u64::MAX);
}

/// Hostile texts of 10 MB. None may take more than a few times the time of reading it.
#[test]
fn hostile_texts_take_linear_time() {
    const SIZE: usize = 10_000_000;
    let repeated = |piece: &str| piece.repeat(SIZE / piece.len());
    let head = "fir 1\nfunc @f(%x: tensor<[M], f32>) {\n";
    let body = |piece: &str| format!("{head}{}", repeated(piece));
    let texts: [&dyn Fn() -> String; 27] = [
        &|| repeated("("),
        &|| repeated("\n"),
        &|| repeated("; comment\n"),
        &|| repeated("é"),
        &|| format!("fir 1\nfunc @f{}", repeated("(")),
        &|| format!("fir 1\nfunc @f({}", repeated("%x,")),
        &|| format!("fir 1\nfunc @f({}", repeated(") ")),
        &|| format!("fir 1\nfunc @f(%x: tensor<[M{}", repeated("*M")),
        &|| format!("fir 1\nfunc @f(%x: tensor<[1{}", repeated(", 1")),
        &|| body("{"),
        &|| body("}"),
        &|| body("\n}"),
        &|| body("%"),
        &|| body("%y,\n"),
        &|| body("%y =\n"),
        &|| body("%y\n"),
        &|| body("\n%a, %b"),
        &|| body("return\n"),
        &|| format!("{head}%y = relu {}", repeated("%x, ")),
        &|| format!("{head}%y = relu {}", repeated("%nothing,\n")),
        &|| format!("{head}%y = relu {}", repeated("a = %x, ")),
        &|| format!("{head}%y = constant {{value = [{}", repeated("1,\n")),
        &|| format!("{head}%y = constant {{{}", repeated("a = 1,")),
        &|| format!("{head}%{} = relu %{}", repeated("n"), repeated("m")),
        &|| format!("{head}%y = {} %x : tensor<[], f32>\n return\n}}", repeated("n")),
        &|| format!("{head}%y = constant {{value = {}}} : tensor<[], f32>", repeated("1")),
        &|| format!("{head}%y = clamp {{max = [{}1]}} : tensor<[], f32>", repeated("1, ")),
    ];
    for text in texts {
        let text = text();
        let start = Instant::now();
        let errors = parse(&text).unwrap_err();
        let took = start.elapsed();
        let longest = errors.iter().map(|error| error.message.len()).max().unwrap_or(0);
        assert!(longest < 2000, "a message of {longest} bytes");
        // Generous against a slow or busy machine, and far below what quadratic time would take.
        let beginning: String = text.chars().take(60).collect();
        assert!(took < Duration::from_secs(5), "{took:?} for {beginning:?}");
    }
}

fn property_tests(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Parses a text and checks the invariants of every result.
fn check_any_text(source: &str) {
    match parse(source) {
        Ok(parsed) => {
            let text = print(&parsed.module);
            let again = parse(&text).unwrap_or_else(|errors| panic!("{}", render(&text, &errors)));
            assert_eq!(print(&again.module), text);
            assert_eq!(parsed.spans.ops.len(), parsed.module.ops.len());
            assert_eq!(parsed.spans.inputs.len(), parsed.module.inputs.len());
            assert_eq!(parsed.spans.outputs.len(), parsed.module.outputs.len());
            for span in parsed.spans.ops.iter().chain(&parsed.spans.inputs).chain(&parsed.spans.outputs) {
                assert!(source.get(span.start as usize..span.end as usize).is_some());
            }
        }
        Err(errors) => {
            assert!((1..=20).contains(&errors.len()));
            for error in errors {
                let span = error.span.expect("every error of the parser has a place");
                assert!(source.get(span.start as usize..span.end as usize).is_some(), "{error:?}");
                assert!(!error.render("test.fir", source).is_empty());
                assert!(!error.message.ends_with('.'));
            }
        }
    }
    for directive in directives(source) {
        assert!(source.get(directive.span.start as usize..directive.span.end as usize).is_some());
    }
}

/// A piece of text, with or without meaning to the parser.
fn piece() -> impl Strategy<Value = String> {
    const PIECES: [&str; 36] = [
        "fir", "1", "func", "@f", "(", ")", "{", "}", "[", "]", "<", ">", ",", ":", "=", "*", "%x", "%y",
        "%", "@", "-", "return", "param", "tensor", "f32", "linear", "M", "relu", "block", "inf", "1e-",
        "\n", ";", "é", "\0", "\u{feff}",
    ];
    prop_oneof![4 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #![proptest_config(property_tests(1000))]

    #[test]
    fn any_text_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        check_any_text(&text);
        check_any_text(&format!("fir 1\nfunc @f(%x: tensor<[M], f32>) {{\n{text}\nreturn %x\n}}\n"));
    }

    #[test]
    fn any_sequence_of_pieces_is_read_or_refused(pieces in prop::collection::vec(piece(), 0..40)) {
        check_any_text(&pieces.concat());
        check_any_text(&format!("fir 1\nfunc @f({}", pieces.join(" ")));
        check_any_text(&format!("fir 1\nfunc @f(%x: tensor<[M], f32>) {{\n%y = {}\n}}", pieces.join(" ")));
    }

    #[test]
    fn a_mutated_program_is_read_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, piece()), 1..4),
    ) {
        let mut text = EVERY_OP.to_owned();
        for (at, removed, inserted) in edits {
            // EVERY_OP is ASCII, but an earlier edit may have inserted other characters.
            let mut start = at.index(text.len());
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            let mut end = (start + removed).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text.replace_range(start..end, &inserted);
        }
        check_any_text(&text);
    }

    #[test]
    fn every_number_is_read_back_bit_for_bit(bits in any::<u64>(), whole in -100_000i64..100_000) {
        for number in [f64::from_bits(bits), whole as f64, whole as f64 / 8.0] {
            let text = print(&constant(ConstantValue::Dense(vec![number, 1.0])));
            let OpKind::Constant(ConstantValue::Dense(read)) = &module(&text).ops[Op::from_index(0)].kind else {
                panic!("{text}")
            };
            if number.is_nan() {
                prop_assert!(read[0].is_nan());
            } else {
                prop_assert_eq!(read[0].to_bits(), number.to_bits());
            }
        }
    }

    #[test]
    fn any_module_prints_to_a_fixed_point(
        inputs in prop::collection::vec(tensor_type(), 0..6),
        results in prop::collection::vec((tensor_type(), any::<prop::sample::Index>()), 0..6),
    ) {
        let mut builder = Builder::new("f");
        for name in SYMBOLS {
            builder.symbol(name);
        }
        let mut values: Vec<Value> = inputs
            .into_iter()
            .enumerate()
            .map(|(index, ty)| builder.input(&format!("in.{index}"), ty))
            .collect();
        for (ty, operand) in results {
            let operands = if values.is_empty() { vec![] } else { vec![values[operand.index(values.len())]] };
            values.extend(builder.op(OpKind::Reshape, &operands, &[("", ty.clone()), ("", ty)]).first());
        }
        let text = print(&builder.finish(&values));
        let read = module(&text);
        prop_assert_eq!(print(&read), text.clone());
        prop_assert_eq!(parse(&text).unwrap().module, read);
    }
}

const SYMBOLS: [&str; 4] = ["M", "B", "S.1", "_n"];

/// Types over the symbols of [`SYMBOLS`].
fn tensor_type() -> impl Strategy<Value = TensorType> {
    let symbol = (0..SYMBOLS.len()).prop_map(Symbol::from_index);
    let dim = (prop_oneof![0u64..5, any::<u64>()], prop::collection::vec(symbol, 0..4));
    let shape =
        prop::collection::vec(dim.prop_map(|(constant, symbols)| Dim::product(constant, symbols)), 0..4);
    let layouts = vec![None, Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)];
    (shape, prop::sample::select(&ElementType::ALL[..]), prop::sample::select(layouts))
        .prop_map(|(shape, element, layout)| TensorType { shape, element, layout })
}

fn constant(value: ConstantValue) -> Module {
    let mut builder = Builder::new("f");
    builder.op(
        OpKind::Constant(value),
        &[],
        &[("k", TensorType::new(vec![Dim::fixed(2)], ElementType::F32))],
    );
    builder.finish(&[])
}
