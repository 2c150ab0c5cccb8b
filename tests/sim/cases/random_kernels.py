# MINICAFFE_SIM=devices=3,memory=64MiB,peers=0-1,1-2
"""Random programs of kernels on three devices, against a model: values, races, peer access, what was never written, limits.

Streams wait for each other by events alone. As in random_programs.py, the model has the work before each operation as a set of
bits. A kernel counts with the whole allocations that it reads and writes, a copy with its bytes.
"""

import os
import random

import numpy as np
from sim_runner import F, L, P, configure, cu, download, function, launch, new_context, raises, struct

COUNT, DEVICES, PEERS = 64, 3, {(0, 1), (1, 0), (1, 2), (2, 1)}
BYTES = 4 * COUNT
MORE = int(os.environ.get("MINICAFFE_TEST_PROGRAMS", 1))     # so many times the programs of a normal run


class _Allocation:
    def __init__(self, device, count=COUNT):
        self.device, self.count, self.at = device, count, int(cu.MemAlloc(4 * count))
        self.values, self.written = np.zeros(count, np.float32), np.zeros(count, bool)
        self.accesses = []      # (operation, first element, last, writes)
        self.touched = False    # something wrote to it, be it what was never written


class _Program:
    def __init__(self, seed, uninitialized):
        self.dice, self.uninitialized = random.Random(seed), uninitialized
        self.contexts = [new_context(device) for device in range(DEVICES)]
        self.access, self.count, self.host, self.pending = set(), 0, 0, []   # pairs with access; operations; what the host waited for
        self.functions, self.streams, self.last, self.events = [], {}, {}, {}
        self.allocations = []
        for device in range(DEVICES):
            self.current(device)
            self.functions.append(function("scale"))
            for _ in range(2):
                self.streams[int(cu.StreamCreate(1))] = device
            self.events[int(cu.EventCreate(2))] = device
            for _ in range(2):
                self.new_allocation(device)
        self.pinned = int(cu.MemHostAlloc(1 << 18, 0))
        self.on_host = np.ctypeslib.as_array((F * (1 << 16)).from_address(self.pinned))
        self.on_host[:COUNT] = np.arange(COUNT) - 20

    def current(self, device):
        cu.CtxSetCurrent(self.contexts[device])

    def new_allocation(self, device):
        self.current(device)
        made = _Allocation(device)
        self.allocations.append(made)
        if not self.uninitialized or self.dice.random() < 0.5:
            cu.MemsetD8Async(made.at, 0, BYTES, 0)
            cu.CtxSynchronize()
            made.written[:] = made.touched = True

    # ---- order

    def races(self, before, accesses):
        return [old for made, begin, end, writes in accesses for old, low, high, wrote in made.accesses
                if low < end and begin < high and (writes or wrote) and not before >> old & 1]

    def add(self, stream, accesses):
        before = self.last.get(stream, 0) | self.host
        for made, begin, end, writes in accesses:
            made.accesses.append((self.count, begin, end, writes))
            made.touched |= writes
        self.last[stream] = before | 1 << self.count
        self.count += 1

    def synchronize(self, device):
        self.current(device)
        cu.CtxSynchronize()
        for stream, owner in self.streams.items():
            self.host |= self.last.get(stream, 0) if owner == device else 0
        self.check_host()

    def check_host(self):
        for result in [result for result in self.pending if self.host >> result[0] & 1]:
            self.pending.remove(result)
            _, place, wanted = result
            np.testing.assert_array_equal(self.on_host[place:place + len(wanted)], wanted)

    def wait(self, stream, other):
        """Let the work of a stream come after that of another."""
        event = self.dice.choice([e for e, device in self.events.items() if device == self.streams[other]])
        cu.EventRecord(event, other)
        self.add(other, [])
        cu.StreamWaitEvent(stream, event, 0)
        self.last[stream] = self.last.get(stream, 0) | self.last[other]

    # ---- work: the call on a stream, its accesses, what it does to values, whether a device has no access

    def span(self, made):
        begin = self.dice.randrange(made.count)
        return (0, made.count) if self.dice.random() < 0.4 else (begin, self.dice.randint(begin + 1, made.count))

    def work(self, stream):
        dice, device = self.dice, self.streams[stream]
        y, x = dice.choice(self.allocations), dice.choice(self.allocations)
        begin, end = self.span(y)
        n = end - begin
        start = dice.randint(0, COUNT - n)
        refused = [made for made in (x, y) if made.device != device and (device, made.device) not in self.access]
        kind = dice.choice(["kernel"] * 4 + ["copy", "peer", "fill", "upload", "download"])
        if kind == "kernel":
            a, same = dice.choice([1, -1, 0.5, 2]), dice.random() < 0.3
            if same:
                x, start = y, begin
            if x is y and not same:
                return None     # elements of one allocation in two places: threads would race
            refused = [made for made in refused if made in (x, y)]

            def change():
                y.values[begin:end] = np.float32(a) * x.values[start:start + n]
                y.written[begin:end] = True
            grid, block = dice.choice([1, 2, 3]), dice.choice([1, 32, 33, 256])
            return (lambda: launch(self.functions[device], struct((a, F), (x.at + 4 * start, P), (y.at + 4 * begin, P), (n, L)), grid=grid,
                                   block=block, stream=stream),
                    [(x, 0, x.count, False)] * (x is not y) + [(y, 0, y.count, True)], change, refused, "kernel", x.written[start:start + n].all())
        if kind == "fill":
            byte = dice.choice([0, 0x3e, 0x40, 0xbf])

            def change():
                y.values[begin:end] = np.frombuffer(bytes([byte] * 4), np.float32)
                y.written[begin:end] = True
            return lambda: cu.MemsetD8Async(y.at + 4 * begin, byte, 4 * n, stream), [(y, begin, end, True)], change, [made for made in refused if made is y], "copy", True
        if kind == "upload":
            def change():
                y.values[begin:end] = self.on_host[:n]
                y.written[begin:end] = True
            return (lambda: cu.MemcpyHtoDAsync(y.at + 4 * begin, self.pinned, 4 * n, stream), [(y, begin, end, True)], change,
                    [made for made in refused if made is y], "copy", True)
        if kind == "download":
            place = COUNT * (1 + self.count % 900)
            if any(p == place for _, p, _ in self.pending):
                return None

            def change():
                self.pending.append((self.count - 1, place, y.values[begin:end].copy()))
            return (lambda: cu.MemcpyDtoHAsync(self.pinned + 4 * place, y.at + 4 * begin, 4 * n, stream), [(y, begin, end, False)], change,
                    [made for made in refused if made is y], "copy", y.written[begin:end].all())
        if x is y:
            return None

        def change():
            y.values[begin:end] = x.values[start:start + n]
            y.written[begin:end] = x.written[start:start + n]
        accesses = [(x, start, start + n, False), (y, begin, end, True)]
        if kind == "peer":
            return (lambda: cu.MemcpyPeerAsync(y.at + 4 * begin, self.contexts[y.device], x.at + 4 * start, self.contexts[x.device], 4 * n, stream),
                    accesses, change, [], "copy", True)
        return lambda: cu.MemcpyDtoDAsync(y.at + 4 * begin, x.at + 4 * start, 4 * n, stream), accesses, change, refused, "copy", True

    def run(self, steps, races):
        """Return how it ended: "race", "access", "unwritten" or None."""
        dice = self.dice
        for _ in range(steps):
            stream, choice = dice.choice(list(self.streams)), dice.random()
            if choice > 0.6:
                self.do_anything_else(stream)
                continue
            made = self.work(stream)
            if made is None:
                continue
            call, accesses, change, refused, kind, written = made
            self.current(dice.randrange(DEVICES))
            if refused:
                self.synchronize(self.streams[stream]) if dice.random() < 0.5 else None
                if kind == "copy":
                    with raises("INVALID_VALUE", f"device {self.streams[stream]} has no peer access to it"):
                        call()
                elif dice.random() < 0.05:
                    with raises("ILLEGAL_ADDRESS", f"device {self.streams[stream]} has no peer access to it"):
                        call()
                        cu.CtxSetCurrent(self.contexts[self.streams[stream]])
                        cu.CtxSynchronize()
                    return "access"
                continue
            if self.uninitialized and not written:
                if kind == "copy" or accesses[0][0].touched:
                    continue
                for _ in range(1 if accesses[0][3] else 2):      # in place it has written them
                    with raises("INVALID_VALUE", "kernel scale: uninitialized: it read allocation #"):
                        call()
                return "unwritten"
            while found := self.races(self.last.get(stream, 0) | self.host, accesses):
                if races and dice.random() < 0.15:
                    with raises("INVALID_VALUE", "race: "):
                        call()
                    return "race"
                owner = next(s for s in self.streams if self.last.get(s, 0) >> found[0] & 1)
                self.synchronize(self.streams[owner]) if dice.random() < 0.3 else self.wait(stream, owner)
            call()
            self.add(stream, accesses)
            change()
        for device in range(DEVICES):
            self.synchronize(device)
        assert not self.pending
        for made in self.allocations:
            if made.written.all():
                self.current(made.device)
                np.testing.assert_array_equal(download(made.at, made.count), made.values)
        return None

    def do_anything_else(self, stream):
        dice, device = self.dice, self.streams[stream]
        other = dice.randrange(DEVICES)
        kind = dice.choice(["access", "access", "free", "stream", "sync"])
        if kind == "access" and other != device:
            self.current(device)
            if (device, other) not in PEERS:
                with raises("PEER_ACCESS_UNSUPPORTED"):
                    cu.CtxEnablePeerAccess(self.contexts[other], 0)
            elif (device, other) not in self.access:
                if dice.random() < 0.2:
                    with raises("PEER_ACCESS_NOT_ENABLED"):
                        cu.CtxDisablePeerAccess(self.contexts[other])
                cu.CtxEnablePeerAccess(self.contexts[other], 0)
                self.access.add((device, other))
            elif dice.random() < 0.4:
                self.synchronize(device)
                cu.CtxDisablePeerAccess(self.contexts[other])
                self.access.remove((device, other))
            else:
                with raises("PEER_ACCESS_ALREADY_ENABLED"):
                    cu.CtxEnablePeerAccess(self.contexts[other], 0)
        elif kind == "free":
            gone = dice.choice(self.allocations)
            for one in range(DEVICES):
                if one != gone.device:      # the call waits for the allocation's own device
                    self.synchronize(one)
            self.current(dice.randrange(DEVICES))
            cu.MemFree(gone.at)
            for s, owner in self.streams.items():
                self.host |= self.last.get(s, 0) if owner == gone.device else 0
            self.check_host()
            self.allocations.remove(gone)
            self.new_allocation(dice.randrange(DEVICES))
        elif kind == "stream":
            cu.StreamSynchronize(stream)
            self.host |= self.last.get(stream, 0)
            self.check_host()
        elif kind == "sync":
            self.synchronize(other)


def _ends(settings, seeds, races, uninitialized):
    configure(settings)
    ends = []
    for seed in range(seeds * MORE):
        try:
            ends.append(_Program(seed, uninitialized).run(60, races))
        except BaseException as error:
            error.add_note(f"program {seed}, {settings}")
            raise
    return ends


def random_kernels_report_the_races_of_the_model():
    ends = _ends("race=1", 100, True, False)
    assert 10 < ends.count("race") < 95 * MORE, ends


def random_kernels_that_run_late_give_the_values_of_the_model():
    ends = _ends("deferred=1", 60, False, False)
    assert ends.count(None) > 30, ends


def random_kernels_read_what_was_written():
    ends = _ends("uninitialized=1", 60, False, True)
    assert 5 < ends.count("unwritten") < 60 * MORE, ends
