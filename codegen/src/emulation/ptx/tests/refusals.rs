//! Every statement that the rewriter refuses, with the message.

use super::{EXCERPTS, HEADER, LIBRARY, kernel, rewrite};
use crate::emulation::ptx::{PtxText, RewriteError, RewriteProblem};

/// Returns the message of a refused kernel.
fn refused(kernel: &str) -> String {
    match rewrite(kernel, LIBRARY) {
        Ok(_) => panic!("it is not refused: {kernel}"),
        Err(error) => error.to_string(),
    }
}

/// Checks the messages of kernels with one instruction each.
fn check(rows: &[(&str, &str)]) {
    for (instruction, problem) in rows {
        let expected = format!("kernel, line 9: {problem}: `{instruction}`");
        assert_eq!(refused(&kernel(instruction)), expected);
    }
}

#[test]
fn tensor_memory_instructions_of_other_forms() {
    check(&[
        (
            "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
            "unknown modifier .kind::f16 of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::tf32 [%r1], %rd1, %rd2, %r2, %p1;",
            "unknown modifier .kind::tf32 of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;",
            "unknown modifier .kind::i8 of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, %p1;",
            "unknown modifier .kind::f8f6f4 of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block16 [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
            "unsupported form tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block16",
        ),
        (
            "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
            "unknown modifier .ws of tcgen05.mma",
        ),
        (
            "tcgen05.mma.sp.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, [%r9], %r2, [%r3], [%r4], %p1;",
            "unknown modifier .sp of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32.collector::a::fill [%r1], %rd1, %rd2, %r2;",
            "unknown modifier .collector::a::fill of tcgen05.mma",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32 [%r1], %rd1, %rd2, %r2, [%r3], [%r4], p;",
            "unsupported form tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], [%r8], %rd2, %r2, [%r3], [%r4], %p1;",
            "unsupported operand [%r8]",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], 1;",
            "unsupported operand 1",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4];",
            "tcgen05.mma.cta_group::1.kind::mxf4.block_scale with 6 operands instead of 7",
        ),
        (
            "tcgen05.mma.cta_group::3.kind::mxf4.block_scale [%r1], p;",
            "unknown modifier .cta_group::3 of tcgen05",
        ),
        ("tcgen05.cp.cta_group::1.128x256b [%r1], %rd1;", "unknown modifier .128x256b of tcgen05.cp"),
        (
            "tcgen05.cp.cta_group::1.32x128b.warpx4.b8x16.b4x16_p64 [%r1], %rd1;",
            "unknown modifier .b8x16 of tcgen05.cp",
        ),
        ("tcgen05.shift.cta_group::1.down [%r1];", "unknown instruction tcgen05.shift.cta_group::1.down"),
        (
            "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%r1], 512;",
            "unsupported form tcgen05.alloc.cta_group::1.sync.aligned.b32",
        ),
        (
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1];",
            "unsupported form tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64",
        ),
        (
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], 3;",
            "unsupported operand 3",
        ),
        (
            "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r1, %r2, %r3, %r4}, [%r5];",
            "unknown modifier .16x256b of tcgen05.ld",
        ),
        (
            "tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%r1, %r2}, [%r3];",
            "unknown modifier .pack::16b of tcgen05.ld",
        ),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x2.f32.min {%r1, %r2}, %r4, [%r3];",
            "unknown modifier .red of tcgen05.ld",
        ),
        ("tcgen05.ld.sync.aligned.32x32b.x3.b32 {%r1, %r2, %r4}, [%r3];", "unknown modifier .x3 of tcgen05"),
        (
            "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2}, [%r3];",
            "tcgen05.ld.sync.aligned.32x32b.x4.b32 with 2 operands instead of 4",
        ),
        ("tcgen05.wait::ld.sync.aligned %r1;", "tcgen05.wait::ld.sync.aligned with 1 operands instead of 0"),
        ("tcgen05;", "unknown instruction tcgen05"),
    ]);
}

#[test]
fn guarded_replacements() {
    check(&[
        ("@%p1 elect.sync %r1|%p1, %r2;", "unsupported guard of elect.sync"),
        ("@%p1 tcgen05.wait::ld.sync.aligned;", "unsupported guard of tcgen05.wait::ld.sync.aligned"),
        (
            "@!p tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2;",
            "unsupported guard of tcgen05.dealloc.cta_group::1.sync.aligned.b32",
        ),
        (
            "@P2 mbarrier.try_wait.parity.shared::cta.b64 P1, [%r1], %r2;",
            "unsupported guard of mbarrier.try_wait.parity.shared::cta.b64",
        ),
        (
            "@p clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p1, q;",
            "unsupported guard of clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
        ),
        (
            "@p cvt.rn.satfinite.e2m1x2.f32 pair, %f1, %f2;",
            "unsupported guard of cvt.rn.satfinite.e2m1x2.f32",
        ),
    ]);
}

#[test]
fn synchronization_of_other_forms() {
    check(&[
        ("elect.sync %p1, %r2;", "unsupported operand %p1"),
        ("elect.sync.aligned %r1|%p1, %r2;", "unsupported form elect.sync.aligned"),
        (
            "mbarrier.try_wait.shared::cta.b64 P1, [%r1], %rd2;",
            "unsupported form mbarrier.try_wait.shared::cta.b64",
        ),
        (
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P1, [%r1], %r2;",
            "unsupported form mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
        ),
        ("mbarrier.try_wait.parity.shared::cta.b64 fourfold_p, [%r1], %r2;", "reserved name fourfold_p"),
        (
            "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];",
            "unsupported form clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128",
        ),
        (
            "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2}, q;",
            "unsupported operand {%r1, %r2}",
        ),
        (
            "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+%r2], 32;",
            "unsupported operand [%r1+%r2]",
        ),
    ]);
}

#[test]
fn instructions_that_only_newer_architectures_have() {
    check(&[
        ("add.rn.f32x2 %rd1, %rd2, %rd3;", "unknown modifier .f32x2 of add"),
        ("add.rn.f32.bf16 %f1, %rs1, %f2;", "unsupported form add.rn.f32.bf16"),
        ("max.f32 %f1, %f2, %f3, %f4;", "unsupported form max.f32"),
        ("redux.sync.min.f32 %f1, %f2, -1;", "unknown modifier .f32 of redux"),
        ("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1];", "unknown modifier .v8 of ld"),
        ("ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd5];", "unsupported form ld.global.v4.b64"),
        ("st.global.L2::evict_first.v2.b64 [%rd1], {%rd2, %rd3};", "unknown modifier .L2::evict_first of st"),
        ("st.bulk.weak.shared::cta [%r1], 16, 0;", "unknown modifier .bulk of st"),
        ("cvt.rn.satfinite.ue8m0x2.f32 %rs1, %f1, %f2;", "unknown modifier .ue8m0x2 of cvt"),
        ("cvt.rn.satfinite.relu.e2m1x2.f32 %r1, %f1, %f2;", "unknown modifier .e2m1x2 of cvt"),
        ("cvt.rn.f16x2.e2m1x2 %r1, pair;", "unknown modifier .e2m1x2 of cvt"),
        ("cvt.rn.satfinite.e2m3x2.f32 %rs1, %f1, %f2;", "unknown modifier .e2m3x2 of cvt"),
        ("cvt.rn.satfinite.e3m2x2.f32 %rs1, %f1, %f2;", "unknown modifier .e3m2x2 of cvt"),
        ("cvt.rs.bf16x2.f32 %r1, %f1, %f2, %r2;", "unknown modifier .rs of cvt"),
        ("cvt.rn.satfinite.tf32.f32 %r1, %f1;", "unsupported form cvt.rn.satfinite.tf32.f32"),
        (
            "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1];",
            "unknown modifier .cta_group::2 of cp",
        ),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w [%r1];",
            "unknown modifier .im2col::w of cp",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4 [%r1];",
            "unknown modifier .tile::gather4 of cp",
        ),
        (
            "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4 [%r1];",
            "unknown modifier .tile::scatter4 of cp",
        ),
        (
            "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1}, [%r2];",
            "unknown modifier .m16n16 of ldmatrix",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0 {%f1};",
            "unknown modifier .kind::mxf4 of mma",
        ),
        (
            "tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r1], 0;",
            "unknown modifier .swizzle_atomicity of tensormap",
        ),
        ("nothing.of.this 1;", "unknown instruction nothing.of.this"),
    ]);
}

#[test]
fn other_directives() {
    check(&[
        (".texref .b32 t;", "unknown directive .texref"),
        (".reg .b256 %q;", "unknown directive .b256"),
        (".version 9.1", "a header other than .version, .target, .address_size 64"),
    ]);
    let message = refused(&format!("{HEADER}.entry k() .newer 1 {{ ret; }}"));
    assert_eq!(message, "kernel, line 4: unknown directive .newer: `.entry k() .newer 1`");
}

#[test]
fn unbalanced_and_unterminated_text() {
    for (tail, message) in [
        ("ret;", "line 4: misplaced statement or brace: `ret;`"),
        ("{ }", "line 4: misplaced statement or brace: `{`"),
        ("}", "line 4: misplaced statement or brace: `}`"),
        (".entry k() {", "line 4: misplaced statement or brace: ``"),
        (".entry k() { ret; } }", "line 4: misplaced statement or brace: `}`"),
        (".entry k() {\n.entry j() { } }", "line 5: misplaced statement or brace: `.entry j()`"),
        (".entry k() { ret }", "line 4: misplaced statement or brace: `ret }`"),
        (".entry k() {\n@ bra x; }", "line 5: unknown instruction x: `@ bra x;`"),
        (".entry k() {\nret", "line 5: unterminated text: `ret`"),
        (".entry k(", "line 4: unterminated text: `.entry k(`"),
        ("/* open", "line 4: unterminated text: `/* open`"),
        (".pragma \"open", "line 4: unterminated text: `.pragma \"open`"),
    ] {
        assert_eq!(refused(&format!("{HEADER}{tail}")), format!("kernel, {message}"));
    }
}

#[test]
fn other_headers() {
    let header = "a header other than .version, .target, .address_size 64";
    for (kernel, message) in [
        ("", format!("line 1: {header}: ``")),
        (".target sm_100a\n.version 9.1\n.address_size 64", format!("line 1: {header}: `.target sm_100a`")),
        (".version 9.1\n.target sm_100a\n.address_size 32", format!("line 3: {header}: `.address_size 32`")),
        (
            ".version 9.0\n.target sm_100a\n.address_size 64",
            "line 1: the library has PTX version 9.1: `.version 9.0`".to_owned(),
        ),
        (
            ".version 9.1\n.target sm_120a\n.address_size 64",
            "line 2: unsupported target sm_120a: `.target sm_120a`".to_owned(),
        ),
        (
            ".version 9.1\n.target sm_100a, map_f64_to_f32\n.address_size 64",
            "line 2: unsupported target map_f64_to_f32: `.target sm_100a, map_f64_to_f32`".to_owned(),
        ),
    ] {
        assert_eq!(refused(kernel), format!("kernel, {message}"));
    }
}

#[test]
fn libraries_for_another_target_or_with_unknown_statements() {
    let library = |header: &str, tail: &str| match rewrite(EXCERPTS, &format!("{header}{tail}")) {
        Ok(_) => panic!("it is not refused: {tail}"),
        Err(error) => error.to_string(),
    };
    let header = HEADER.replace("100a", "90a");
    for (tail, message) in [
        (
            ".func f() { tcgen05.wait::ld.sync.aligned; }",
            "unknown instruction tcgen05.wait::ld.sync.aligned: `tcgen05.wait::ld.sync.aligned;`",
        ),
        (".entry k() { ret; }", "unknown directive .entry: `.entry k()`"),
        ("ret;", "misplaced statement or brace: `ret;`"),
        (".func f() {", "misplaced statement or brace: ``"),
    ] {
        assert_eq!(library(&header, tail), format!("library, line 4: {message}"));
    }
    assert_eq!(library(HEADER, ""), "library, line 2: unsupported target sm_100a: `.target sm_100a`");
}

#[test]
fn functions_that_the_library_does_not_define() {
    let library = HEADER.replace("100a", "90a") + ".func fourfold_flush(.param .b32 mask);";
    let error = rewrite(&kernel("elect.sync %r1|%p1, -1;"), &library).err();
    assert_eq!(
        error,
        Some(RewriteError {
            text: PtxText::Kernel,
            line: 9,
            statement: "elect.sync %r1|%p1, -1;".to_owned(),
            problem: RewriteProblem::Undefined("fourfold_flush".to_owned()),
        })
    );
    let message = refused(&format!("{HEADER}.extern .func other();"));
    assert_eq!(message, "kernel, line 4: the library does not define other: `.extern .func other();`");
    let cancel = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128";
    let message = refused(&format!("{HEADER}.func f() {{ {cancel} [%r1], [%r2]; }}"));
    let problem = format!("unsupported form {cancel} outside of a kernel");
    assert_eq!(message, format!("kernel, line 4: {problem}: `{cancel} [%r1], [%r2];`"));
}

#[test]
fn long_statements_are_truncated() {
    let error =
        rewrite(&kernel(&format!("unknown {};", "é".repeat(300))), LIBRARY).expect_err("it is unknown");
    assert_eq!(error.statement, format!("unknown {}...", "é".repeat(192)));
}
