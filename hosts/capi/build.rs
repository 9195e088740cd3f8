//! Names the library `libfourfold.so.1`, so that programs linked to it load any library of this major ABI version.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // cargo-c sets the name itself.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfourfold.so.1");
    }
}
