"""What PyTorch's web page for snapshots does with one, as far as it can fail: its reader of pickles, and playing
events backwards from the segments and blocks at the end."""

import base64
import json
import pickle
import pickletools
import re

#: The opcodes that its reader knows.
KNOWN = set(
    "PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS "
    "SETITEM SETITEMS BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE SHORT_BINUNICODE BINUNICODE BINPUT "
    "LONG_BINPUT BINGET LONG_BINGET MEMOIZE".split()
)
#: What a segment and a block must have.
SEGMENT = {"device", "address", "total_size", "stream", "blocks"}
BLOCK = {"size", "state", "requested_size", "frames"}
STATES = {"active_allocated", "active_pending_free", "inactive"}
#: A script's numbers are exact up to here.
EXACT = 2**53


def embedded(html):
    """The pickle in a page."""
    (files,) = re.findall(r"^const local_files = (.*)$", html, re.MULTILINE)
    (file,) = json.loads(files)
    return base64.b64decode(file["base64"])


def unpickle(data):
    """The snapshot, if the page's reader can read it."""
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in KNOWN, f"the page does not know {opcode.name}"
        if opcode.name == "PROTO":
            assert 2 <= argument <= 4, f"the page refuses protocol {argument}"
    return pickle.loads(data)


def play(snapshot):
    """Plays the events of all devices backwards; fails where the page would."""
    for segment in snapshot["segments"]:
        assert SEGMENT <= segment.keys(), segment.keys()
        assert segment["address"] + segment["total_size"] < EXACT, "an address that a script's numbers do not hold"
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        for block in segment["blocks"]:
            assert BLOCK <= block.keys() and block["state"] in STATES, block
    for device, events in enumerate(snapshot["device_traces"]):
        Memory(snapshot, device).play(fused(events))


def fused(events):
    """The events with a free that is completed at once as one, as the page has them."""
    result = []
    for event in events:
        assert {"action", "size", "stream"} <= event.keys(), event
        assert ("device_free" if event["action"] == "oom" else "addr") in event, event
        before = result[-1] if result else {}
        if (event["action"], before.get("action")) == ("free_completed", "free_requested"):
            if event["addr"] == before["addr"]:
                result[-1] = {**before, "action": "free"}
                continue
        result.append(event)
    return result


class Memory:
    """Segments and blocks of a device at a moment before the end."""

    def __init__(self, snapshot, device):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
        self.segments = [[s["address"], s["address"] + s["total_size"], s["stream"]] for s in segments]
        self.blocks = {}
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.blocks[address] = block["state"] == "active_pending_free"
                address += block["size"]

    def play(self, events):
        """Takes all events back."""
        for event in reversed(events):
            action, address = event["action"], event.get("addr", 0)
            end = address + event["size"]
            if action in ("free", "free_completed"):
                assert address not in self.blocks, f"{address:#x} is given back and is there still"
                self.blocks[address] = action == "free_completed"
            elif action == "free_requested":
                assert self.blocks.get(address), f"{address:#x} is given back and does not wait afterwards"
                self.blocks[address] = False
            elif action == "alloc":
                assert address in self.blocks, f"{address:#x} is handed out and not there afterwards"
                del self.blocks[address]
            elif action in ("segment_free", "segment_unmap"):
                self.add(address, end, event["stream"], action == "segment_unmap")
            elif action in ("segment_alloc", "segment_map"):
                self.remove(address, end, action == "segment_map")
            else:
                continue
            if action.startswith("segment"):
                self.check(event)

    def add(self, start, end, stream, joins):
        """Memory that was given back is there again; the page joins it with neighbours of its stream."""
        for first, last, _ in self.segments:
            assert last <= start or end <= first, f"{start:#x} is there twice"
        if joins:
            for segment in [s for s in self.segments if s[2] == stream and (s[1] == start or s[0] == end)]:
                self.segments.remove(segment)
                start, end = min(start, segment[0]), max(end, segment[1])
        self.segments.append([start, end, stream])

    def remove(self, start, end, inside):
        """Memory that was taken is not there yet."""
        for index, (first, last, stream) in enumerate(self.segments):
            if inside and first <= start and end <= last:
                rest = [[first, start, stream], [end, last, stream]]
                self.segments[index : index + 1] = [part for part in rest if part[0] < part[1]]
                return
            if not inside and (first, last) == (start, end):
                del self.segments[index]
                return
        raise AssertionError(f"{start:#x} to {end:#x} was taken and is in no segment")

    def check(self, event):
        """Each block that is drawn is in a segment."""
        for address in self.blocks:
            inside = any(first <= address < last for first, last, _ in self.segments)
            assert inside, f"block {address:#x} is in no segment before {event['action']} at {event['addr']:#x}"
