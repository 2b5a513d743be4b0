"""Reads the pickles and the JSON in a folder, compares them, and writes the same in all protocols."""

import io
import json
import pickle
import pickletools
import sys
from pathlib import Path

#: What PyTorch's web page for snapshots reads.
KNOWN = set(
    "PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS "
    "SETITEM SETITEMS BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE SHORT_BINUNICODE BINUNICODE BINPUT "
    "LONG_BINPUT BINGET LONG_BINGET MEMOIZE".split()
)


def plain(value):
    """The value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(held) for held in value]
    return value


def check_opcodes(data, protocol):
    """Only known opcodes, the right protocol, and no text twice."""
    texts = []
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in KNOWN, opcode.name
        assert opcode.proto <= protocol, opcode.name
        if opcode.name == "PROTO":
            assert argument == protocol
        if "UNICODE" in opcode.name:
            texts.append(argument)
    assert len(texts) == len(set(texts)), "a text was written twice"
    assert "device_traces" in texts


def written(value, protocol, writer):
    """The pickle of a value."""
    if writer == "c":
        return pickle.dumps(value, protocol)
    out = io.BytesIO()
    pickler = pickle._Pickler(out, protocol) if writer == "python" else pickle.Pickler(out, protocol)
    if writer == "fast":
        pickler.fast = True
    pickler.dump(value)
    return out.getvalue()


def main():
    folder = Path(sys.argv[1])
    two, four = ((folder / f"{name}.pickle").read_bytes() for name in ("two", "four"))
    check_opcodes(two, 2)
    check_opcodes(four, 4)
    snapshot = pickle.loads(four)
    assert pickle.loads(two) == snapshot
    # The same again by Python's reader in Python.
    assert pickle._loads(four) == snapshot and pickle._loads(two) == snapshot
    assert json.loads((folder / "snapshot.json").read_text(encoding="utf-8")) == plain(snapshot)
    assert isinstance(snapshot["segments"][0]["segment_pool_id"], tuple)
    assert snapshot["segments"][2]["address"] == 2**64 - 1 - 8 * 2**20
    assert snapshot["segments"][0]["frames"] is snapshot["device_traces"][0][0]["frames"]
    for protocol in range(6):
        for writer in ("c", "python", "fast"):
            (folder / f"{writer}-{protocol}.pickle").write_bytes(written(snapshot, protocol, writer))


main()
