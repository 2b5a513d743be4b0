//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Programs that were linked or loaded under either name find the one that is loaded already.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libascendcl.so");
        // Worker threads, thread-local destructors and handlers of exit and fork outlive `dlclose`.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
