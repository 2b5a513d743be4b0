//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // dlclose then leaves the library where it is: the runtime library, other threads and thread-exit code
    // may still call into it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Programs then look for it by this name, also when they were linked with a path.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libascend_alloc.so");
}
