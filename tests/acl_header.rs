//! The own-written header of ACL: valid C99 and C++11, with the layouts of the vendor's library, on this
//! machine and on 64-bit Arm.

mod c_library;

use c_library::headers::Header;

const HEADER: Header = Header {
    name: "acl_runtime.h",
    folder: "ffi/acl",
    source: "tests/stand_ins/layout.c",
    wrong: "STAND_IN_WRONG",
    complaint: "differs_in_line_",
};

#[test]
fn layouts_hold_in_c_and_cpp() {
    HEADER.holds_here();
}

#[test]
fn a_wrong_layout_does_not_compile() {
    HEADER.refuses_what_is_wrong();
}

#[test]
fn layouts_hold_on_arm() {
    HEADER.holds_on_arm();
}
