//! The opcodes, by Python's names.

/// Opcodes that are read, and some of them written.
macro_rules! opcodes {
    ($($name:ident = $value:expr,)*) => {
        $(pub(super) const $name: u8 = $value;)*
    };
}

opcodes! {
    PROTO = 0x80,
    FRAME = 0x95,
    STOP = b'.',
    MARK = b'(',
    POP = b'0',
    POP_MARK = b'1',
    DUP = b'2',
    NONE = b'N',
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    INT = b'I',
    LONG = b'L',
    BININT = b'J',
    BININT1 = b'K',
    BININT2 = b'M',
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    FLOAT = b'F',
    BINFLOAT = b'G',
    STRING = b'S',
    BINSTRING = b'T',
    SHORT_BINSTRING = b'U',
    UNICODE = b'V',
    BINUNICODE = b'X',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE8 = 0x8d,
    BINBYTES = b'B',
    SHORT_BINBYTES = b'C',
    BINBYTES8 = 0x8e,
    BYTEARRAY8 = 0x96,
    EMPTY_LIST = b']',
    LIST = b'l',
    APPEND = b'a',
    APPENDS = b'e',
    EMPTY_TUPLE = b')',
    TUPLE = b't',
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    EMPTY_DICT = b'}',
    DICT = b'd',
    SETITEM = b's',
    SETITEMS = b'u',
    EMPTY_SET = 0x8f,
    ADDITEMS = 0x90,
    FROZENSET = 0x91,
    PUT = b'p',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    MEMOIZE = 0x94,
    GET = b'g',
    BINGET = b'h',
    LONG_BINGET = b'j',
    GLOBAL = b'c',
}

/// The name of an opcode that is never followed: those that find, make or call objects.
pub(super) fn refused(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        GLOBAL => "GLOBAL",
        0x93 => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => return None,
    })
}
