//! Each replaced instruction, and its replacement.

use super::rewritten;

/// Returns the call of a function: its parameters with their values, and the result's register.
fn call(function: &str, arguments: &[(&str, &str)], result: Option<(&str, &str)>) -> String {
    let mut text = String::new();
    for (index, (kind, value)) in arguments.iter().enumerate() {
        text += &format!("\t.param .{kind} fourfold_argument{index};\n");
        text += &format!("\tst.param.{kind} [fourfold_argument{index}], {value};\n");
    }
    if let Some((kind, _)) = result {
        text += &format!("\t.param .{kind} fourfold_result;\n");
    }
    let names: Vec<String> = (0..arguments.len()).map(|index| format!("fourfold_argument{index}")).collect();
    let result_name = if result.is_some() { "(fourfold_result), " } else { "" };
    text += &format!("\tcall {result_name}{function}, ({});\n", names.join(", "));
    if let Some((kind, register)) = result {
        text += &format!("\tld.param.{kind} {register}, [fourfold_result];\n");
    }
    text
}

/// Checks that an instruction becomes a scope with these lines.
fn check(instruction: &str, lines: &str) {
    let expected = format!("{{ // fourfold: {instruction}\n{lines}\t}}");
    assert_eq!(rewritten(instruction).0, expected);
}

/// Checks that an instruction becomes a call.
fn check_call(instruction: &str, function: &str, arguments: &[(&str, &str)]) {
    check(instruction, &call(function, arguments, None));
}

#[test]
fn elections_flush_deferred_instructions() {
    for instruction in ["elect.sync %r1|%p1, %r2;", "elect.sync _|%p1, -1;"] {
        let mask = instruction.split_once(", ").map_or("", |(_, mask)| mask.trim_end_matches(';'));
        let lines = format!(
            "\t.reg .b32 fourfold_mask;\n\tmov.b32 fourfold_mask, {mask};\n\t{instruction}\n{}",
            call("fourfold_flush", &[("b32", "fourfold_mask")], None)
        );
        check(instruction, &lines);
    }
}

#[test]
fn allocations_pass_the_group() {
    for group in ["1", "2"] {
        check_call(
            &format!("tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r1], 512;"),
            "fourfold_alloc",
            &[("b32", "%r1"), ("b32", "512"), ("b32", group)],
        );
        check_call(
            &format!("tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r1, %r2;"),
            "fourfold_dealloc",
            &[("b32", "%r1"), ("b32", "%r2"), ("b32", group)],
        );
    }
}

#[test]
fn addresses_with_an_offset_are_added_first() {
    for (address, base, offset) in [
        ("[%r1+16]", "%r1", Some("16")),
        ("[%r1 + -0x10]", "%r1", Some("-0x10")),
        ("[%r1-16]", "%r1", Some("-16")),
        ("[symbol+320]", "symbol", Some("320")),
        ("[symbol]", "symbol", None),
    ] {
        let mut lines = format!("\t.reg .b32 fourfold_address0;\n\tmov.b32 fourfold_address0, {base};\n");
        if let Some(offset) = offset {
            lines += &format!("\tadd.s32 fourfold_address0, fourfold_address0, {offset};\n");
        }
        let arguments = [("b32", "fourfold_address0"), ("b32", "%r2"), ("b32", "1")];
        lines += &call("fourfold_alloc", &arguments, None);
        check(&format!("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 {address}, %r2;"), &lines);
    }
}

#[test]
fn instructions_that_order_become_comments() {
    for instruction in [
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;",
        "tcgen05.wait::ld.sync.aligned;",
        "tcgen05.wait::st.sync.aligned;",
        "tcgen05.fence::before_thread_sync;",
        "tcgen05.fence::after_thread_sync;",
    ] {
        let found = rewritten(&format!("{{ {instruction} }}")).0;
        assert_eq!(found, format!("{{ // fourfold: {instruction}\n }}"));
    }
}

#[test]
fn copies_of_scales_pass_the_descriptor() {
    check_call(
        "tcgen05.cp.cta_group::2.32x128b.warpx4 [%r1], %rd2;",
        "fourfold_copy_scales",
        &[("b32", "%r1"), ("b64", "%rd2"), ("b32", "2")],
    );
}

#[test]
fn multiplications_pass_the_block_size_and_whether_they_accumulate() {
    for (form, size) in [
        ("cta_group::1.kind::mxf4nvf4.block_scale.block16", "16"),
        ("cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X", "16"),
        ("cta_group::2.kind::mxf4.block_scale.block32", "32"),
        ("cta_group::2.kind::mxf4.block_scale.scale_vec::2X", "32"),
        ("cta_group::2.kind::mxf4.block_scale", "32"),
        ("cta_group::1.kind::mxf8f6f4.block_scale.block32", "1"),
        ("cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X", "1"),
        ("cta_group::2.kind::mxf8f6f4.block_scale", "1"),
    ] {
        for (predicate, values) in [("%p1", "1, 0"), ("!%p1", "0, 1")] {
            let arguments = [
                ("b32", "%r1"),
                ("b64", "%rd2"),
                ("b64", "%rd3"),
                ("b32", "%r4"),
                ("b32", "%r5"),
                ("b32", "%r6"),
                ("b32", "fourfold_accumulate"),
                ("b32", size),
                ("b32", if form.contains("::1") { "1" } else { "2" }),
            ];
            let lines = format!(
                "\t.reg .b32 fourfold_accumulate;\n\tselp.b32 fourfold_accumulate, {values}, %p1;\n{}",
                call("fourfold_mma", &arguments, None)
            );
            check(&format!("tcgen05.mma.{form} [%r1], %rd2, %rd3, %r4, [%r5], [%r6], {predicate};"), &lines);
        }
    }
}

#[test]
fn commits_pass_the_mask() {
    check_call(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r1];",
        "fourfold_commit",
        &[("b32", "%r1"), ("b32", "0"), ("b32", "2"), ("b32", "0")],
    );
    let arguments = [("b32", "%r1"), ("b32", "fourfold_mask"), ("b32", "1"), ("b32", "1")];
    let lines = format!(
        "\t.reg .b32 fourfold_mask;\n\tcvt.u32.u16 fourfold_mask, %rs2;\n{}",
        call("fourfold_commit", &arguments, None)
    );
    let form = "cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64";
    check(&format!("tcgen05.commit.{form} [%r1], %rs2;"), &lines);
}

#[test]
fn tensor_memory_is_loaded_and_stored_in_global_memory() {
    for count in [1, 2, 4, 8, 16, 32, 64, 128] {
        let list: Vec<String> = (0..count).map(|register| format!("%r{register}")).collect();
        let list = format!("{{{}}}", list.join(", "));
        // The address register is one of the list.
        check_memory(&format!("tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {list}, [%r0];"), "load", count);
        check_memory(&format!("tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r0], {list};"), "store", count);
    }
    check_memory("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%r0];", "load", 1);
    check_memory("tcgen05.ld.sync.aligned.32x32b.x2.b32{%r0,%r1},[%r0];", "load", 2);
}

fn check_memory(instruction: &str, access: &str, count: usize) {
    let arguments = [("b32", "%r0"), ("b32", &*count.to_string())];
    let function = format!("fourfold_{access}_address");
    let mut lines = "\t.reg .b64 fourfold_memory;\n".to_owned();
    lines += &call(&function, &arguments, Some(("b64", "fourfold_memory")));
    for register in 0..count {
        let address = format!("[fourfold_memory+{}]", 512 * register);
        lines += &match access {
            "load" => format!("\tld.volatile.global.b32 %r{register}, {address};\n"),
            _ => format!("\tst.volatile.global.b32 {address}, %r{register};\n"),
        };
    }
    check(instruction, &lines);
}

#[test]
fn waits_call_only_after_a_failed_attempt() {
    for operands in ["P1, [%r1], %r2", "P1, [%r1], %r2, %r3"] {
        let instruction = format!("mbarrier.try_wait.parity.shared::cta.b64 {operands};");
        let arguments = [("b64", "%fourfold_since"), ("b32", "%r1"), ("b32", "%r2")];
        let lines = format!(
            "\t{instruction}\n\t@P1 mov.b64 %fourfold_since, 0;\n\t@P1 bra fourfold_done;\n{}\tfourfold_done:\n",
            call("fourfold_waited", &arguments, Some(("b64", "%fourfold_since")))
        );
        check(&instruction, &lines);
    }
}

#[test]
fn cancellations_pass_the_multicast() {
    for (form, multicast) in [("", "0"), (".multicast::cluster::all", "1")] {
        check_call(
            &format!(
                "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{form}.b128 \
                 [%r1], [%r2];"
            ),
            "fourfold_try_cancel",
            &[("b32", "%r1"), ("b32", "%r2"), ("b32", multicast)],
        );
    }
}

const RESPONSE: &str = "\t.reg .b64 fourfold_low, fourfold_high;\n\
                        \tmov.b128 {fourfold_low, fourfold_high}, q;\n";

#[test]
fn responses_are_read_with_moves() {
    let lines = "\tshr.u64 fourfold_high, fourfold_high, 32;\n\tsetp.ne.b64 p1, fourfold_high, 0;\n";
    check("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p1, q;", &format!("{RESPONSE}{lines}"));
    let words = "\t.reg .b32 fourfold_x, fourfold_y, fourfold_z, fourfold_w;\n\
                 \tmov.b64 {fourfold_x, fourfold_y}, fourfold_low;\n\
                 \tmov.b64 {fourfold_z, fourfold_w}, fourfold_high;\n";
    for (form, moves) in [
        (
            ".v4.b32.b128 {%r1, %r2, %r3, %r4}",
            &[("%r1", "fourfold_x"), ("%r2", "fourfold_y"), ("%r3", "fourfold_z"), ("%r4", "0")][..],
        ),
        (".v4.b32.b128 {_, %r2, _, _}", &[("%r2", "fourfold_y")]),
        ("::x.b32.b128 %r1", &[("%r1", "fourfold_x")]),
        ("::y.b32.b128 %r1", &[("%r1", "fourfold_y")]),
        ("::z.b32.b128 %r1", &[("%r1", "fourfold_z")]),
    ] {
        for guard in ["", "@p1 ", "@!p1 "] {
            let lines: Vec<String> =
                moves.iter().map(|(to, from)| format!("\t{guard}mov.b32 {to}, {from};\n")).collect();
            check(
                &format!("{guard}clusterlaunchcontrol.query_cancel.get_first_ctaid{form}, q;"),
                &format!("{RESPONSE}{words}{}", lines.concat()),
            );
        }
    }
}

#[test]
fn conversions_to_e2m1_become_calls() {
    let arguments = [("f32", "%f1"), ("f32", "0f3F800000")];
    let lines = format!(
        "\t.reg .b32 fourfold_byte;\n{}\tcvt.u8.u32 pair, fourfold_byte;\n",
        call("fourfold_e2m1x2", &arguments, Some(("b32", "fourfold_byte")))
    );
    check("cvt.rn.satfinite.e2m1x2.f32 pair, %f1, 0f3F800000;", &lines);
}
