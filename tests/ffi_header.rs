//! The generated header: valid C99 and C++11, with the types that frameworks ask for, on this machine and on
//! 64-bit Arm.

mod c_library;

use c_library::headers::Header;

const HEADER: Header = Header {
    name: "ascend_alloc.h",
    folder: "ffi/include",
    source: "tests/c_library/header.c",
    wrong: "WRONG",
    complaint: "wrong",
};

#[test]
fn the_header_is_c_and_cpp() {
    HEADER.holds_here();
}

#[test]
fn a_wrong_size_does_not_compile() {
    HEADER.refuses_what_is_wrong();
}

#[test]
fn the_header_is_c_and_cpp_on_arm() {
    HEADER.holds_on_arm();
}
