//! The rewriter on excerpts of a real kernel, and on each instruction alone.

mod properties;
mod refusals;
mod rows;

use super::rewrite;

/// Stubs of the device functions, as nvcc declares them.
const LIBRARY: &str = include_str!("library.ptx");

/// Excerpts of an sm_100a kernel, with short names.
const EXCERPTS: &str = include_str!("excerpts.ptx");

/// The rewritten excerpts.
const GOLDEN: &str = "src/emulation/ptx/tests/rewritten.ptx";

const HEADER: &str = ".version 9.1\n.target sm_100a\n.address_size 64\n";

/// Returns a kernel with these statements.
fn kernel(statements: &str) -> String {
    format!(
        "{HEADER}\n.visible .entry kernel()\n{{\n\t.reg .pred %p<4>;\n\t// begin\n{statements}\n// end\n}}\n"
    )
}

/// Returns the library as it is inserted.
fn inserted_library() -> String {
    let (_, library) = LIBRARY.split_once(".address_size 64").expect("the library has a header");
    let kept = library.replace(".visible .global", ".kept .global");
    let library =
        kept.replace(".visible ", "").replace(".weak ", "").replace(".kept .global", ".visible .global");
    format!("\n\n// Stubs of the device functions, as nvcc declares them.\n\n\n\n{}\n", library.trim())
}

/// Returns the rewritten statements of a kernel, and the text from its entry to them.
fn rewritten(statements: &str) -> (String, String) {
    let text = rewrite(&kernel(statements), LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let (_, kernel) = text.split_once(".entry kernel()\n").expect("the kernel is there");
    let (before, statements) = kernel.split_once("\t// begin\n").expect("it begins");
    let (statements, _) = statements.split_once("\n// end\n").expect("it ends");
    (statements.to_owned(), before.to_owned())
}

#[test]
fn excerpts_are_rewritten() {
    let found = rewrite(EXCERPTS, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(GOLDEN, &found).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("the file can be read");
    assert!(found == golden, "{GOLDEN} is out of date; run FOURFOLD_BLESS=1 cargo test");
}

#[test]
fn other_statements_are_passed_on_byte_for_byte() {
    let statements = "
	.reg .b32 \t%r<4>;  // registers
/* a
   comment; */ .loc\t1 2 3, function_name $L__info_string0, inlined_at 1 2 3
	{	 // begin inline asm
	LAB: mul.wide.s32 %rd1, %r1, -4;add.f32\t%f1, %f2, 0fBF800000;;
	@!%p1 bra.uni LAB;
	}
	call.uni (retval0), helper, (param0, param1);
	ld.shared::cluster.v4.u32 {%r1, %r2, %r3, %r4}, [%r5+-16];
	mov.b128 \t {%rd1, %rd2}, q;
	.pragma \"nounroll; // not a comment\";
	ret;";
    let tail = "
	.file	1 \"a \\\" b.cu\"
	.section	.debug_str
	{
$L__info_string0:
.b8 95
.b8 0
	}
";
    let kernel = kernel(statements) + tail;
    let found = rewrite(&kernel, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let header = format!("{}{}", HEADER.trim_end().replace("100a", "90a"), inserted_library());
    assert_eq!(found, kernel.replacen(HEADER.trim_end(), &header, 1));
}

#[test]
fn text_before_the_header_stays_and_options_of_the_target_do_not() {
    let kernel =
        "// first\n.version 9.1 // a\n.target sm_103a, debug /* b */\n.address_size 64 // c\n// last";
    let found = rewrite(kernel, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let (before, rest) = found.split_once(&inserted_library()).expect("the library is there");
    assert_eq!(before, "// first\n.version 9.1 // a\n.target sm_90a /* b */\n.address_size 64");
    assert_eq!(rest, " // c\n// last");
}

#[test]
fn external_functions_of_the_library_and_the_runtime_may_be_declared() {
    let declaration = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n";
    let kernel = format!("{HEADER}.extern .func fourfold_flush(.param .b32 mask);\n{declaration}");
    let found = rewrite(&kernel, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    assert!(found.ends_with(&format!("\n\n{declaration}")), "{found}");
    assert!(!found.contains(".extern .func fourfold_flush"));
}

#[test]
fn waits_and_cancellations_add_code_behind_the_declarations() {
    let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;";
    let cancel =
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];";
    let since = "\t.reg .b64 %fourfold_since;\n\tmov.b64 %fourfold_since, 0;\n";
    let enter = "\t{ // fourfold: enter
\t.reg .b32 fourfold_entered;
\t.reg .pred fourfold_leave;
\t.param .b32 fourfold_result;
\tcall (fourfold_result), fourfold_enter;
\tld.param.b32 fourfold_entered, [fourfold_result];
\tsetp.eq.b32 fourfold_leave, fourfold_entered, 0;
\t@fourfold_leave ret;
\t}\n";
    let declarations = "{\n\t.reg .pred %p<4>;\n";
    assert_eq!(rewritten("ret;").1, declarations);
    assert_eq!(rewritten(wait).1, format!("{declarations}{since}"));
    assert_eq!(rewritten(cancel).1, format!("{declarations}{enter}"));
    assert_eq!(rewritten(&format!("{wait} {cancel}")).1, format!("{declarations}{since}{enter}"));
}

#[test]
fn code_is_added_to_the_function_that_needs_it() {
    let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;";
    let kernel = format!("{HEADER}.func f()\n{{\n\t{{ {wait} }}\n}}\n.entry k()\n{{\n\tret;\n}}\n");
    let found = rewrite(&kernel, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let (_, found) = found.split_once(".func f()").expect("the function is there");
    assert!(
        found.starts_with("\n{\n\t.reg .b64 %fourfold_since;\n\tmov.b64 %fourfold_since, 0;\n\t{ {"),
        "{found}"
    );
    assert!(found.ends_with(".entry k()\n{\n\tret;\n}\n"), "{found}");
}
