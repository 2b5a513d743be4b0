//! The calls that rows may name: their symbols and arguments, and the names of numbers.
//!
//! One entry is all a new call needs, unless it makes, uses or ends something that later rows name: that is
//! the part of the player's `setup` and `effect`.

/// What a name in a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A reservation.
    Range,
    /// A physical chunk.
    Chunk,
    /// A block of `aclrtMalloc`.
    Block,
    /// A block of `aclrtMallocHost`.
    Pinned,
    /// Memory of this process.
    Own,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A context.
    Context,
    /// A captured graph.
    Graph,
}

impl What {
    /// Whether ACL follows it without looking, so that an invented one can end the process.
    #[must_use]
    pub fn is_handle(self) -> bool {
        matches!(self, Self::Chunk | Self::Stream | Self::Event | Self::Graph)
    }
}

/// How an argument is read and passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A place for what is made; the name given is known from then on.
    Out(What),
    /// A place for an answer that is not looked at.
    Place,
    /// Something named before, or any address.
    In(What),
    /// A number of the domain.
    Number(Domain),
    /// A text in quotes, or NULL.
    Text,
    /// A description of physical memory.
    Prop,
    /// One location.
    Location,
    /// Descriptions of access.
    Access,
    /// A configuration of an allocation; only NULL is understood.
    Config,
}

/// Which names a number may be written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// None.
    Plain,
    /// `aclrtMemAttr`.
    Attr,
    /// `aclrtMemMallocPolicy`.
    Policy,
    /// `aclrtMemGranularityOptions`.
    Option,
    /// `aclrtHostRegisterType`.
    Register,
    /// Flags of `aclrtHostRegisterV2`.
    RegisterV2,
    /// Flags of events.
    Event,
    /// Flags of streams.
    Stream,
    /// `aclrtMemcpyKind`.
    Copy,
    /// `aclmdlRICaptureMode`.
    Capture,
    /// `aclrtMemHandleType`.
    Handle,
    /// `aclrtMemLocationType`.
    Location,
    /// `aclrtMemAccessFlags`.
    Access,
}

/// One argument of a call.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Its name, for `key=value`.
    pub key: &'static str,
    /// How it is read.
    pub kind: Kind,
    /// What it is where a row leaves it out. Empty: a place, a description, or something fresh.
    pub default: &'static str,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name without the prefix.
    pub name: &'static str,
    /// The shorter name in rows, if there is one.
    pub short: &'static str,
    /// The symbol.
    pub symbol: &'static str,
    /// Its arguments.
    pub slots: &'static [Slot],
}

/// The call of that name; the prefix is off already.
#[must_use]
pub fn find(name: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.name == name || (!call.short.is_empty() && call.short == name))
}

impl Domain {
    /// The number of a name, with or without its prefix.
    #[must_use]
    pub fn number(self, name: &str) -> Option<u64> {
        let bare = ["ACL_MEM_MALLOC_", "ACL_MEMCPY_", "ACL_MEM_HANDLE_TYPE_", "ACL_MEM_LOCATION_TYPE_"]
            .iter()
            .chain(&["ACL_RT_MEM_ALLOC_GRANULARITY_", "ACL_RT_MEM_ACCESS_FLAGS_", "ACL_HOST_REGISTER_"])
            .chain(&["ACL_HOST_REG_", "ACL_EVENT_", "ACL_STREAM_", "ACL_MODEL_RI_CAPTURE_MODE_", "ACL_"])
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        self.names().iter().find(|(known, _)| *known == bare).map(|(_, number)| *number)
    }

    fn names(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Plain => &[],
            Self::Attr => ATTRIBUTES,
            Self::Policy => POLICIES,
            Self::Option => &[("MINIMUM", 0), ("RECOMMENDED", 1), ("UNDEF", 0xffff)],
            Self::Register => &[("MAPPED", 0), ("IOMEMORY", 4), ("READONLY", 8)],
            Self::RegisterV2 => &[("MAPPED", 2), ("IOMEMORY", 4), ("READONLY", 8), ("PINNED", 0x1000_0000)],
            Self::Event => EVENT_FLAGS,
            Self::Stream => STREAM_FLAGS,
            Self::Copy => COPIES,
            Self::Capture => &[("GLOBAL", 0), ("THREAD_LOCAL", 1), ("RELAXED", 2)],
            Self::Handle => &[("NONE", 0), ("POSIX", 2)],
            Self::Location => LOCATIONS,
            Self::Access => &[("NONE", 0), ("READ", 1), ("RW", 3), ("READWRITE", 3)],
        }
    }
}

const ATTRIBUTES: &[(&str, u64)] = &[
    ("DDR_MEM", 0),
    ("HBM_MEM", 1),
    ("HBM", 1),
    ("DDR_MEM_HUGE", 2),
    ("DDR_HUGE", 2),
    ("DDR_MEM_NORMAL", 3),
    ("DDR_NORMAL", 3),
    ("HBM_MEM_HUGE", 4),
    ("HBM_HUGE", 4),
    ("HBM_MEM_NORMAL", 5),
    ("HBM_NORMAL", 5),
    ("DDR_MEM_P2P_HUGE", 6),
    ("DDR_MEM_P2P_NORMAL", 7),
    ("HBM_MEM_P2P_HUGE", 8),
    ("HBM_MEM_P2P_NORMAL", 9),
    ("HBM_MEM_HUGE1G", 10),
    ("HUGE1G", 10),
    ("HBM_MEM_P2P_HUGE1G", 11),
    ("MEM_NORMAL", 12),
    ("MEM_HUGE", 13),
    ("MEM_HUGE1G", 14),
    ("MEM_P2P_NORMAL", 15),
    ("MEM_P2P_HUGE", 16),
    ("MEM_P2P_HUGE1G", 17),
];

const POLICIES: &[(&str, u64)] = &[
    ("HUGE_FIRST", 0),
    ("HUGE_ONLY", 1),
    ("NORMAL_ONLY", 2),
    ("HUGE_FIRST_P2P", 3),
    ("HUGE_ONLY_P2P", 4),
    ("NORMAL_ONLY_P2P", 5),
    ("HUGE1G_ONLY", 6),
    ("HUGE1G_ONLY_P2P", 7),
];

const EVENT_FLAGS: &[(&str, u64)] = &[
    ("SYNC", 1),
    ("CAPTURE_STREAM_PROGRESS", 2),
    ("TIME_LINE", 8),
    ("DEVICE_USE_ONLY", 0x10),
    ("EXTERNAL", 0x20),
    ("IPC", 0x40),
];

const STREAM_FLAGS: &[(&str, u64)] = &[
    ("FAST_LAUNCH", 1),
    ("FAST_SYNC", 2),
    ("PERSISTENT", 4),
    ("HUGE", 8),
    ("CPU_SCHEDULE", 0x10),
    ("DEVICE_USE_ONLY", 0x20),
];

const COPIES: &[(&str, u64)] = &[
    ("H2H", 0),
    ("HOST_TO_HOST", 0),
    ("H2D", 1),
    ("HOST_TO_DEVICE", 1),
    ("D2H", 2),
    ("DEVICE_TO_HOST", 2),
    ("D2D", 3),
    ("DEVICE_TO_DEVICE", 3),
    ("DEFAULT", 4),
];

const LOCATIONS: &[(&str, u64)] =
    &[("HOST", 0), ("DEVICE", 1), ("UNREGISTERED", 2), ("MANAGED", 3), ("HOST_NUMA", 4)];

const fn slot(key: &'static str, kind: Kind, default: &'static str) -> Slot {
    Slot { key, kind, default }
}

const fn named(key: &'static str, what: What) -> Slot {
    slot(key, Kind::In(what), "")
}

const fn made(key: &'static str, what: What) -> Slot {
    slot(key, Kind::Out(what), "")
}

const fn place(key: &'static str) -> Slot {
    slot(key, Kind::Place, "")
}

const fn plain(key: &'static str, default: &'static str) -> Slot {
    slot(key, Kind::Number(Domain::Plain), default)
}

const fn of(key: &'static str, domain: Domain, default: &'static str) -> Slot {
    slot(key, Kind::Number(domain), default)
}

/// `CALLS`, one line a call: name, symbol, shorter name, arguments.
macro_rules! calls {
    ($($name:literal $symbol:literal $short:literal [$($slot:expr),* $(,)?];)*) => {
        const CALLS: &[Call] = &[$(Call { name: $name, short: $short, symbol: $symbol, slots: &[$($slot),*] }),*];
    };
}

use What::{Block, Chunk, Context, Event, Graph, Own, Pinned, Range, Stream};

calls! {
    "Init" "aclInit" "" [slot("path", Kind::Text, "NULL")];
    "Finalize" "aclFinalize" "" [];
    "FinalizeReference" "aclFinalizeReference" "" [place("count")];
    "GetVersion" "aclrtGetVersion" "" [place("major"), place("minor"), place("patch")];
    "GetDeviceCount" "aclrtGetDeviceCount" "" [place("count")];
    "SetDevice" "aclrtSetDevice" "" [plain("device", "0")];
    "ResetDevice" "aclrtResetDevice" "" [plain("device", "0")];
    "ResetDeviceForce" "aclrtResetDeviceForce" "" [plain("device", "0")];
    "GetDevice" "aclrtGetDevice" "" [place("device")];
    "SynchronizeDevice" "aclrtSynchronizeDevice" "" [];
    "SynchronizeDeviceWithTimeout" "aclrtSynchronizeDeviceWithTimeout" "" [plain("timeout", "100")];
    "CreateContext" "aclrtCreateContext" "" [made("context", Context), plain("device", "0")];
    "DestroyContext" "aclrtDestroyContext" "" [named("context", Context)];
    "SetCurrentContext" "aclrtSetCurrentContext" "" [named("context", Context)];
    "GetCurrentContext" "aclrtGetCurrentContext" "" [place("context")];
    "CtxGetCurrentDefaultStream" "aclrtCtxGetCurrentDefaultStream" "" [made("stream", Stream)];
    "GetPrimaryCtxState" "aclrtGetPrimaryCtxState" "" [plain("device", "0"), place("flags"), place("active")];
    "DeviceGetBareTgid" "aclrtDeviceGetBareTgid" "" [place("pid")];
    "DeviceCanAccessPeer" "aclrtDeviceCanAccessPeer" "" [place("can"), plain("device", "0"), plain("peer", "1")];
    "DeviceEnablePeerAccess" "aclrtDeviceEnablePeerAccess" "" [plain("peer", "1"), plain("flags", "0")];
    "DeviceDisablePeerAccess" "aclrtDeviceDisablePeerAccess" "" [plain("peer", "1")];
    "DevicePeerAccessStatus" "aclrtDevicePeerAccessStatus" "" [
        plain("device", "0"), plain("peer", "1"), place("status"),
    ];
    "GetDeviceInfo" "aclrtGetDeviceInfo" "" [plain("device", "0"), plain("attr", "301"), place("value")];
    "GetMemInfo" "aclrtGetMemInfo" "" [of("attr", Domain::Attr, "1"), place("free"), place("total")];

    "ReserveMemAddress" "aclrtReserveMemAddress" "Reserve" [
        made("virPtr", Range), plain("size", "64M"), plain("alignment", "0"),
        slot("expect", Kind::In(Range), "NULL"), plain("flags", "1"),
    ];
    "ReserveMemAddressNoUCMemory" "aclrtReserveMemAddressNoUCMemory" "" [
        made("virPtr", Range), plain("size", "1G"), plain("alignment", "0"),
        slot("expect", Kind::In(Range), "NULL"), plain("flags", "0"),
    ];
    "ReleaseMemAddress" "aclrtReleaseMemAddress" "Release" [named("virPtr", Range)];
    "MemGetAllocationGranularity" "aclrtMemGetAllocationGranularity" "Granularity" [
        slot("prop", Kind::Prop, ""), of("option", Domain::Option, "0"), place("granularity"),
    ];
    "MallocPhysical" "aclrtMallocPhysical" "" [
        made("handle", Chunk), plain("size", "2M"), slot("prop", Kind::Prop, ""), plain("flags", "0"),
    ];
    "FreePhysical" "aclrtFreePhysical" "" [named("handle", Chunk)];
    "MapMem" "aclrtMapMem" "Map" [
        named("virPtr", Range), plain("size", "2M"), plain("offset", "0"), named("handle", Chunk), plain("flags", "0"),
    ];
    "MemMapNoAccess" "aclrtMemMapNoAccess" "MapNoAccess" [
        named("virPtr", Range), plain("size", "2M"), plain("offset", "0"), named("handle", Chunk), plain("flags", "0"),
    ];
    "UnmapMem" "aclrtUnmapMem" "Unmap" [named("virPtr", Range)];
    "MemSetAccess" "aclrtMemSetAccess" "SetAccess" [
        named("virPtr", Range), plain("size", "2M"), slot("desc", Kind::Access, ""), plain("count", "1"),
    ];
    "MemGetAccess" "aclrtMemGetAccess" "GetAccess" [
        named("virPtr", Range), slot("location", Kind::Location, ""), place("flag"),
    ];
    "MemRetainAllocationHandle" "aclrtMemRetainAllocationHandle" "Retain" [named("virPtr", Range), made("handle", Chunk)];
    "MemGetAllocationPropertiesFromHandle" "aclrtMemGetAllocationPropertiesFromHandle" "Properties" [
        named("handle", Chunk), place("prop"),
    ];
    "MemExportToShareableHandle" "aclrtMemExportToShareableHandle" "" [
        named("handle", Chunk), of("type", Domain::Handle, "0"), plain("flags", "0"), place("shared"),
    ];
    "MemGetAddressRange" "aclrtMemGetAddressRange" "AddressRange" [
        named("ptr", Range), place("base"), place("size"),
    ];
    "PointerGetAttributes" "aclrtPointerGetAttributes" "" [named("ptr", Block), place("attributes")];

    "Malloc" "aclrtMalloc" "" [made("devPtr", Block), plain("size", "2M"), of("policy", Domain::Policy, "0")];
    "MallocAlign32" "aclrtMallocAlign32" "" [
        made("devPtr", Block), plain("size", "2M"), of("policy", Domain::Policy, "0"),
    ];
    "MallocCached" "aclrtMallocCached" "" [
        made("devPtr", Block), plain("size", "2M"), of("policy", Domain::Policy, "0"),
    ];
    "MallocWithCfg" "aclrtMallocWithCfg" "" [
        made("devPtr", Block), plain("size", "2M"), of("policy", Domain::Policy, "0"),
        slot("cfg", Kind::Config, "NULL"),
    ];
    "Free" "aclrtFree" "" [named("devPtr", Block)];
    "FreeWithDevSync" "aclrtFreeWithDevSync" "" [named("devPtr", Block)];
    "Memcpy" "aclrtMemcpy" "" [
        named("dst", Block), plain("destMax", "4096"), named("src", Own), plain("count", "64"),
        of("kind", Domain::Copy, "1"),
    ];
    "MemcpyAsync" "aclrtMemcpyAsync" "" [
        named("dst", Block), plain("destMax", "4096"), named("src", Own), plain("count", "64"),
        of("kind", Domain::Copy, "1"), named("stream", Stream),
    ];
    "Memset" "aclrtMemset" "" [
        named("devPtr", Block), plain("maxCount", "4096"), plain("value", "0"), plain("count", "64"),
    ];
    "MemsetAsync" "aclrtMemsetAsync" "" [
        named("devPtr", Block), plain("maxCount", "4096"), plain("value", "0"), plain("count", "64"),
        named("stream", Stream),
    ];

    "MemsetD32" "aclrtMemsetD32" "" [
        named("devPtr", Block), plain("maxCount", "4096"), plain("value", "0"), plain("count", "64"),
    ];

    "MallocHost" "aclrtMallocHost" "" [made("hostPtr", Pinned), plain("size", "4096")];
    "MallocHostWithCfg" "aclrtMallocHostWithCfg" "" [
        made("hostPtr", Pinned), plain("size", "4096"), slot("cfg", Kind::Config, "NULL"),
    ];
    "FreeHost" "aclrtFreeHost" "" [named("hostPtr", Pinned)];
    "FreeHostWithDevSync" "aclrtFreeHostWithDevSync" "" [named("hostPtr", Pinned)];
    "HostRegister" "aclrtHostRegister" "" [
        named("ptr", Own), plain("size", "4096"), of("type", Domain::Register, "0"), place("devPtr"),
    ];
    "HostRegisterV2" "aclrtHostRegisterV2" "" [
        named("ptr", Own), plain("size", "4096"), of("flag", Domain::RegisterV2, "2"),
    ];
    "HostUnregister" "aclrtHostUnregister" "" [named("ptr", Own)];
    "HostGetDevicePointer" "aclrtHostGetDevicePointer" "" [named("ptr", Own), place("device"), plain("flag", "0")];

    "HostMemMapCapabilities" "aclrtHostMemMapCapabilities" "" [
        plain("device", "0"), plain("type", "0"), place("capability"),
    ];

    "CreateStream" "aclrtCreateStream" "" [made("stream", Stream)];
    "CreateStreamWithConfig" "aclrtCreateStreamWithConfig" "" [
        made("stream", Stream), plain("priority", "0"), of("flag", Domain::Stream, "0"),
    ];
    "DestroyStream" "aclrtDestroyStream" "" [named("stream", Stream)];
    "DestroyStreamForce" "aclrtDestroyStreamForce" "" [named("stream", Stream)];
    "SynchronizeStream" "aclrtSynchronizeStream" "" [named("stream", Stream)];
    "SynchronizeStreamWithTimeout" "aclrtSynchronizeStreamWithTimeout" "" [
        named("stream", Stream), plain("timeout", "100"),
    ];
    "StreamAbort" "aclrtStreamAbort" "" [named("stream", Stream)];
    "StreamQuery" "aclrtStreamQuery" "" [named("stream", Stream), place("status")];
    "StreamWaitEvent" "aclrtStreamWaitEvent" "" [named("stream", Stream), named("event", Event)];
    "StreamWaitEventWithTimeout" "aclrtStreamWaitEventWithTimeout" "" [
        named("stream", Stream), named("event", Event), plain("timeout", "1"),
    ];
    "GetStreamAvailableNum" "aclrtGetStreamAvailableNum" "" [place("count")];
    "CreateEvent" "aclrtCreateEvent" "" [made("event", Event)];
    "CreateEventWithFlag" "aclrtCreateEventWithFlag" "" [made("event", Event), of("flag", Domain::Event, "1")];
    "CreateEventExWithFlag" "aclrtCreateEventExWithFlag" "" [made("event", Event), of("flag", Domain::Event, "1")];
    "DestroyEvent" "aclrtDestroyEvent" "" [named("event", Event)];
    "RecordEvent" "aclrtRecordEvent" "" [named("event", Event), named("stream", Stream)];
    "ResetEvent" "aclrtResetEvent" "" [named("event", Event), named("stream", Stream)];
    "QueryEvent" "aclrtQueryEvent" "" [named("event", Event), place("status")];
    "QueryEventStatus" "aclrtQueryEventStatus" "" [named("event", Event), place("status")];
    "QueryEventWaitStatus" "aclrtQueryEventWaitStatus" "" [named("event", Event), place("status")];
    "SynchronizeEvent" "aclrtSynchronizeEvent" "" [named("event", Event)];
    "SynchronizeEventWithTimeout" "aclrtSynchronizeEventWithTimeout" "" [
        named("event", Event), plain("timeout", "100"),
    ];
    "EventElapsedTime" "aclrtEventElapsedTime" "" [place("ms"), named("start", Event), named("end", Event)];
    "EventGetTimestamp" "aclrtEventGetTimestamp" "" [named("event", Event), place("timestamp")];

    "mdlRICaptureBegin" "aclmdlRICaptureBegin" "" [named("stream", Stream), of("mode", Domain::Capture, "2")];
    "mdlRICaptureGetInfo" "aclmdlRICaptureGetInfo" "" [named("stream", Stream), place("status"), place("model")];
    "mdlRICaptureEnd" "aclmdlRICaptureEnd" "" [named("stream", Stream), made("model", Graph)];
    "mdlRICaptureThreadExchangeMode" "aclmdlRICaptureThreadExchangeMode" "" [place("mode")];
    "mdlRIDestroy" "aclmdlRIDestroy" "" [named("model", Graph)];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for (index, call) in CALLS.iter().enumerate() {
            let others = &CALLS[index + 1..];
            assert!(others.iter().all(|other| other.name != call.name && other.symbol != call.symbol));
            assert!(call.symbol.ends_with(call.name), "{}", call.name);
            assert!(call.slots.len() <= 10);
        }
        assert_eq!(find("Reserve").map(|call| call.symbol), Some("aclrtReserveMemAddress"));
        assert!(find("").is_none());
        assert!(find("Reserved").is_none());
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(Domain::Attr.number("ACL_HBM_MEM"), Some(1));
        assert_eq!(Domain::Attr.number("HBM_MEM_P2P_HUGE"), Some(8));
        assert_eq!(Domain::Policy.number("ACL_MEM_MALLOC_HUGE_FIRST"), Some(0));
        assert_eq!(Domain::Access.number("RW"), Some(3));
        assert_eq!(Domain::Plain.number("RW"), None);
    }
}
