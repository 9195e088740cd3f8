//! The input sizes of a kernel, from its own description. A call with less is refused.

use fourfold_ir::ElementType;

use crate::kernel::{Extents, MAX_OPERANDS, MAX_SCALARS, Metadata, Requirements};

/// The bytes that a kernel reads in each role, operands before scalars.
///
/// # Errors
/// The reason that a size is unknown, as a sentence without its period.
pub(super) fn reads(
    metadata: &Metadata,
    extents: &Extents,
    requirements: &Requirements,
) -> Result<Vec<(String, u64)>, String> {
    for (what, count, most) in [
        ("operands", metadata.operands.len(), MAX_OPERANDS),
        ("scalars", metadata.scalars.len(), MAX_SCALARS),
    ] {
        if count > most {
            return Err(format!("the kernel reads {count} {what}, but the kernel ABI allows {most}"));
        }
    }
    let mut found = Vec::new();
    for (role, required) in metadata.operands.iter().zip(requirements.operands) {
        let name = &role.role;
        let element = ElementType::from_name(&role.element).ok_or_else(|| {
            format!("the kernel reads `{name}` of the unknown element type {}", role.element)
        })?;
        let bytes = match role.extents {
            None => Some(required),
            Some(_) => metadata
                .elements(role, extents)
                .and_then(|elements| elements.checked_mul(element.storage_bits() as u64))
                .map(|bits| bits.div_ceil(8)),
        };
        let bytes =
            bytes.ok_or_else(|| format!("the extents of `{name}` are negative, unknown or too large"))?;
        found.push((name.clone(), bytes));
    }
    found.extend(metadata.scalars.iter().map(|name| (name.clone(), 4)));
    if found.is_empty() {
        return Err("the metadata of the kernel lists no operands".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Role;

    fn role(name: &str, element: &str, extents: Option<&[&str]>) -> Role {
        let extents = extents.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Role { role: name.to_owned(), element: element.to_owned(), extents }
    }

    fn metadata(operands: Vec<Role>, scalars: &[&str]) -> Metadata {
        let text = r#"{"abi":6,"target":"sm_100a","kernel":"k","tile":[1,1,1],"cluster":[1,1,1],"shared_memory":0,
            "threads":1,"emulated":false,"extents":["L","M","N","K"],"operands":[],"scalars":[],"outputs":[]}"#;
        let scalars = scalars.iter().map(|name| (*name).to_owned()).collect();
        Metadata { operands, scalars, ..serde_json::from_str(text).unwrap() }
    }

    const EVERY_EXTENT: [i64; 4] = [2, 3, 8, 64];

    fn scales() -> Requirements {
        let mut scales = Requirements::default();
        (scales.operands[1], scales.operands[3]) = (1024, 2048);
        scales
    }

    #[test]
    fn every_role_has_its_size() {
        let operands = vec![
            role("a", "f4E2M1FN", Some(&["L", "M", "K"])),
            role("sfa", "f8E4M3FN", None),
            role("b", "f8E4M3FN", Some(&["L", "N", "K"])),
            role("sfb", "f8E4M3FN", None),
            role("c", "bf16", Some(&["L", "M", "N"])),
            role("x0", "f16", Some(&["N"])),
            role("x1", "f32", Some(&["L", "M"])),
            role("x2", "f32", Some(&[])),
        ];
        let expected = [
            ("a", 192),
            ("sfa", 1024),
            ("b", 1024),
            ("sfb", 2048),
            ("c", 96),
            ("x0", 16),
            ("x1", 24),
            ("x2", 4),
            ("alpha", 4),
            ("beta", 4),
        ];
        let found = reads(&metadata(operands, &["alpha", "beta"]), &Extents::new(&EVERY_EXTENT), &scales());
        let expected: Vec<_> = expected.map(|(role, bytes)| (role.to_owned(), bytes)).to_vec();
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn a_role_that_is_not_understood_is_not_guessed() {
        let error = |operands: Vec<Role>, extents: [i64; 4]| {
            reads(&metadata(operands, &[]), &Extents::new(&extents), &scales()).unwrap_err()
        };
        assert_eq!(
            error(vec![role("x0", "f12", Some(&["N"]))], EVERY_EXTENT),
            "the kernel reads `x0` of the unknown element type f12"
        );
        assert_eq!(error(Vec::new(), EVERY_EXTENT), "the metadata of the kernel lists no operands");
        let unknown = |role: &str| format!("the extents of `{role}` are negative, unknown or too large");
        assert_eq!(error(vec![role("x0", "f32", Some(&["H"]))], EVERY_EXTENT), unknown("x0"));
        for m in [-1, i64::MAX] {
            let a = role("a", "f4E2M1FN", Some(&["L", "M", "K"]));
            assert_eq!(error(vec![a], [2, m, 8, 64]), unknown("a"));
        }
        let rows =
            |count| (0..count).map(|x| role(&format!("x{x}"), "f32", Some(&["N"]))).collect::<Vec<_>>();
        let room = "the kernel reads 33 operands, but the kernel ABI allows 32";
        assert_eq!(error(rows(MAX_OPERANDS + 1), EVERY_EXTENT), room);
        let scalars = ["s"; MAX_SCALARS + 1];
        let many = reads(&metadata(rows(1), &scalars), &Extents::new(&EVERY_EXTENT), &scales());
        assert_eq!(many.unwrap_err(), "the kernel reads 9 scalars, but the kernel ABI allows 8");
        let most = reads(&metadata(rows(MAX_OPERANDS), &["alpha"]), &Extents::new(&EVERY_EXTENT), &scales());
        assert_eq!(most.unwrap().len(), MAX_OPERANDS + 1);
    }
}
