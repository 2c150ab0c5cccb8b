"""Random programs of streams, events, copies, graphs and blocks, against a model: which work comes before which, and the values.

The model has the work before each operation as a set of numbers, a bit each. Two accesses race if they touch the same bytes, one
of them writes, and neither is in the other's set. A simulated device must report exactly these races, and the values of a program
without races are those of its calls in their order.
"""

import ctypes
import random

import numpy as np
from sim_runner import configure, cu, driver, raises

BYTES, ALLOCATIONS, STREAMS, PAGE = 256, 3, 4, 4096
UNUSED = (1 << 18) - BYTES     # on the host: where results go that are not read
LEGACY = 0
poison, unpoison = (ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_size_t)(cu.GetProcAddress(name, 12000, 0)[0])
                    for name in (b"mcsim_poison", b"mcsim_unpoison"))


class _Program:
    """Calls of the driver, each beside its meaning in the model."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.count, self.host, self.destroyed = 0, 0, 0     # operations so far; what the host waited for; last of destroyed streams
        self.accesses = []      # (number, allocation, begin, end, writes)
        self.streams = {LEGACY: True}     # handle -> whether it waits for the default stream and that for it
        self.last = {}          # handle -> set of its last operation
        self.events = {}        # handle -> set, 0 if it was never recorded
        self.graphs = []        # [handle, nodes as (nodes before, accesses, what they do to values), set of its last launch]
        for _ in range(STREAMS):
            self.add_stream()
        for _ in range(3):
            self.events[int(cu.EventCreate(2))] = 0
        self.pages = self.dice.choice([3, 7])   # with few a block lies where another one was
        self.places = [int(cu.MemAlloc(BYTES)) for _ in range(ALLOCATIONS)] + [int(cu.MemAlloc(self.pages * PAGE))]
        self.values = [np.zeros(BYTES, np.uint8) for _ in range(ALLOCATIONS)]
        for place in self.places[:ALLOCATIONS]:
            cu.MemsetD8Async(place, 0, BYTES, 0)
        cu.CtxSynchronize()
        poison(self.places[-1], self.pages * PAGE)
        self.blocks = []        # (first page, bytes) of the last allocation
        self.pinned = int(cu.MemHostAlloc(1 << 18, 0))
        self.on_host = np.ctypeslib.as_array((ctypes.c_uint8 * (1 << 18)).from_address(self.pinned))
        self.on_host[:BYTES] = np.arange(BYTES) % 251 + 1   # what is uploaded; results follow
        self.results = []       # (number, offset, wanted values) of copies to the host that it has not waited for

    def add_stream(self):
        blocking = self.dice.random() < 0.5
        self.streams[int(cu.StreamCreate(0 if blocking else 1))] = blocking

    def any_stream(self):
        return self.dice.choice(list(self.streams))

    # ---- the model

    def before(self, stream):
        """What the next operation of a stream comes after."""
        found = self.host | self.last.get(stream, 0)
        if stream == LEGACY:
            found |= self.destroyed
            for other, blocking in self.streams.items():
                found |= self.last.get(other, 0) if blocking else 0
        elif self.streams[stream]:
            found |= self.last.get(LEGACY, 0)
        return found

    def operation(self, before, accesses=()):
        """Add an operation; return its set and the races with earlier ones."""
        number, self.count = self.count, self.count + 1
        races = [(old, where, begin, end) for where, begin, end, writes in accesses for old, at, low, high, wrote in self.accesses
                 if at == where and low < end and begin < high and (writes or wrote) and not before >> old & 1]
        self.accesses += [(number, *access) for access in accesses]
        return before | 1 << number, races

    def submit(self, stream, accesses=(), after=0):
        self.last[stream], races = self.operation(self.before(stream) | after, accesses)
        return races

    # ---- work

    def span(self):
        """An allocation or block, or a random part of it."""
        place, first, size = self.dice.randrange(ALLOCATIONS), 0, BYTES
        if self.blocks and self.dice.random() < 0.5:
            page, size = self.dice.choice(self.blocks)
            place, first = ALLOCATIONS, page * PAGE
        if self.dice.random() < 0.5:
            return place, first, first + size
        begin = self.dice.randrange(size)
        return place, first + begin, first + self.dice.randint(begin + 1, size)

    def work(self):
        """A copy or fill of random bytes: the call on a stream, its accesses, and what it does to `values`."""
        where, begin, end = self.span()
        kind, source = self.dice.choice(["fill", "copy", "copy", "upload", "download", "download"]), self.dice.randrange(ALLOCATIONS)
        size, at, others = end - begin, self.places[where] + begin, [i for i in range(ALLOCATIONS) if i != where]
        known = where < ALLOCATIONS     # the values of blocks are not followed
        if kind == "copy" and size <= BYTES:
            source = self.dice.choice(others)
            start = self.dice.randint(0, BYTES - size)

            def change():
                if known:
                    self.values[where][begin:end] = self.values[source][start:start + size]
            return (lambda stream: cu.MemcpyDtoDAsync(at, self.places[source] + start, size, stream),
                    [(where, begin, end, True), (source, start, start + size, False)], change)
        if kind == "download" and not known:    # the block may be another's before the copy has run
            size = min(size, BYTES)
            return lambda stream: cu.MemcpyDtoHAsync(self.pinned + UNUSED, at, size, stream), [(where, begin, begin + size, False)], lambda: None
        if kind == "download":
            offset = BYTES + 256 * (self.count % 1000)

            def change():
                self.results.append((self.count - 1, offset, self.values[where][begin:end].copy()))
            return (lambda stream: cu.MemcpyDtoHAsync(self.pinned + offset, at, size, stream), [(where, begin, end, False)], change)
        if kind == "upload" and size <= BYTES:
            def change():
                if known:
                    self.values[where][begin:end] = self.on_host[:size]
            return lambda stream: cu.MemcpyHtoDAsync(at, self.pinned, size, stream), [(where, begin, end, True)], change
        value = self.dice.randrange(256)

        def change():
            if known:
                self.values[where][begin:end] = value
        return lambda stream: cu.MemsetD8Async(at, value, size, stream), [(where, begin, end, True)], change

    def wanted(self, races):
        """Whether to make these races: rather those with accesses that later ones may have replaced."""
        return self.dice.random() < (0.03 if max(old for old, *_ in races) > self.count - 6 else 0.4)

    def order(self, stream, old):
        """Make the next work of `stream` come after operation `old`, in one of several ways."""
        ways = [self.synchronize_context]
        owner = next((s for s in self.streams if self.last.get(s, 0) >> old & 1), None)
        if owner is not None:
            ways += [lambda: self.synchronize(owner), lambda: self.wait(stream, self.record(owner)),
                     lambda: self.wait(stream, self.record(owner)), lambda: self.synchronize_event(self.record(owner)),
                     lambda: self.query(self.record(owner))]
            if stream == LEGACY or self.streams[stream] and self.streams[owner]:
                ways += [lambda: self.record(LEGACY)]
        self.dice.choice(ways)()
        if not self.before(stream) >> old & 1:
            self.synchronize_context()

    def record(self, stream):
        event = self.dice.choice(list(self.events))
        cu.EventRecord(event, stream)
        self.submit(stream)
        self.events[event] = self.last[stream]
        return event

    def wait(self, stream, event):
        cu.StreamWaitEvent(stream, event, 0)
        if self.events[event]:
            self.submit(stream, after=self.events[event])

    def synchronize(self, stream):
        cu.StreamSynchronize(stream)
        self.waited(self.before(stream))

    def synchronize_event(self, event):
        cu.EventSynchronize(event)
        self.waited(self.events[event])

    def query(self, event):
        code, = driver.cuEventQuery(event)
        if code == driver.CUresult.CUDA_ERROR_NOT_READY:    # with deferred=1 the work is done then
            cu.EventQuery(event)
        self.waited(self.events[event])

    def synchronize_context(self):
        cu.CtxSynchronize()
        waited, self.destroyed = self.destroyed, 0
        for stream in self.streams:
            waited |= self.last.get(stream, 0)
        self.waited(waited)

    def waited(self, operations):
        """The host has waited for these: copies to it are there."""
        self.host |= operations
        for result in [result for result in self.results if self.host >> result[0] & 1]:
            self.results.remove(result)
            _, offset, wanted = result
            assert (self.on_host[offset:offset + len(wanted)] == wanted).all()

    def destroy_stream(self):
        stream = self.any_stream()
        if stream == LEGACY or not self.streams[stream]:
            return
        cu.StreamDestroy(stream)
        self.destroyed |= self.last.pop(stream, 0)
        del self.streams[stream]
        self.add_stream()

    def do_anything_else(self, stream):
        self.dice.choice([self.change_blocks] * 8 + [self.destroy_stream, self.capture, lambda: self.synchronize(stream), lambda: self.record(stream),
                                                     lambda: self.wait(stream, self.dice.choice(list(self.events))),
                                                     lambda: self.query(self.dice.choice(list(self.events)))])()

    def change_blocks(self):
        """Give out or take back a block of the last allocation; a page after each stays closed."""
        if self.blocks and self.dice.random() < 0.5:
            page, size = self.blocks.pop(self.dice.randrange(len(self.blocks)))
            poison(self.places[-1] + page * PAGE, -(-size // PAGE) * PAGE)
            return
        page, pages = self.dice.randrange(self.pages - 1), self.dice.randint(1, 2)
        used = {p for first, size in self.blocks for p in range(first - 1, first - (-size // PAGE) + 1)}
        if page + pages < self.pages and not used & set(range(page, page + pages + 1)):
            size = pages * PAGE - self.dice.choice([0, 1, 100])
            unpoison(self.places[-1] + page * PAGE, size)
            self.blocks.append((page, size))

    # ---- graphs

    def capture(self):
        """Record a graph of work in one to three streams, each of which joins the first one at the end."""
        own = [s for s in self.streams if s != LEGACY]
        streams = self.dice.sample(own, min(3, len(own)))
        first, inside, nodes = streams[0], streams[:1], []
        tails = {first: set()}
        cu.StreamBeginCapture(first, driver.CUstreamCaptureMode(2))
        for _ in range(self.dice.randint(1, 8)):
            stream = self.dice.choice(inside)
            if self.dice.random() < 0.4 and len(streams) > 1:
                other = self.dice.choice(streams)
                self.join(stream, other, tails)
                inside = [s for s in streams if s in tails]
                continue
            call, accesses, change = self.work()
            if any(where == ALLOCATIONS for where, *_ in accesses) or accesses[0][3] is False:
                continue        # blocks may be gone at the launch, and what is copied to the host has no place of its own
            call(stream)
            nodes.append((set(tails[stream]), accesses, change))
            tails[stream] = {len(nodes) - 1}
        for other in inside[:]:
            if other != first:
                self.join(other, first, tails)
        run = cu.GraphInstantiate(cu.StreamEndCapture(first), 0)
        self.graphs.append([run, nodes, 0])

    def join(self, stream, other, tails):
        event = cu.EventCreate(2)
        cu.EventRecord(event, stream)
        cu.StreamWaitEvent(other, event, 0)
        tails.setdefault(other, set()).update(tails[stream])

    def launch(self, graph, stream):
        """Launch a graph, and return the races."""
        run, nodes, last = graph
        before, sets, races = self.before(stream) | last, [], []
        for after, accesses, _ in nodes:
            mine = self.host if after else before
            for i in after:
                mine |= sets[i]
            made, found = self.operation(mine, accesses)
            sets.append(made)
            races += found
        everything = 0
        for one in sets:
            everything |= one
        self.submit(stream, after=everything)
        graph[2] = self.last[stream]
        return races


def _state(program, graph=(0, 0, 0)):
    return program.count, list(program.accesses), dict(program.last), graph[2]


def _restore(program, graph, state):
    program.count, program.accesses, program.last, last = state
    if graph is not None:
        graph[2] = last


def _run(seed, steps, racy):
    """Run a random program; stop at the first race, which the device has to report, or make none."""
    program = _Program(seed)
    dice = program.dice
    for _ in range(steps):
        stream, choice = program.any_stream(), dice.random()
        if choice < 0.5:
            call, accesses, change = program.work()
            before = _state(program)
            while (races := program.submit(stream, accesses)) and not (racy and program.wanted(races)):
                _restore(program, None, before)
                program.order(stream, races[0][0])
                before = _state(program)
            if races:
                with raises("INVALID_VALUE", "race: "):
                    call(stream)
                return True
            call(stream)
            change()
        elif choice < 0.6 and program.graphs:
            graph = dice.choice(program.graphs)
            before = _state(program, graph)
            races = program.launch(graph, stream)
            if races and not (racy and program.wanted(races)):
                _restore(program, graph, before)
                program.synchronize_context()
                before = _state(program, graph)
                races = program.launch(graph, stream)
                if races and not racy:      # within the graph
                    _restore(program, graph, before)
                    program.graphs.remove(graph)
                    continue
            if races:
                with raises("INVALID_VALUE", "race: "):
                    cu.GraphLaunch(graph[0], stream)
                return True
            cu.GraphLaunch(graph[0], stream)
            for _, _, change in graph[1]:
                change()
        else:
            program.do_anything_else(stream)
    program.synchronize_context()
    assert not program.results
    for place, values in zip(program.places, program.values):
        cu.MemcpyDtoH(program.pinned + BYTES, place, BYTES)
        assert (program.on_host[BYTES:2 * BYTES] == values).all()
    return False


def random_programs_report_the_races_of_the_model():
    configure("race=1,deferred=0")
    ended = sum(_fresh(seed, 60, True) for seed in range(200))
    assert 20 < ended < 180, ended    # both kinds of programs


def random_programs_without_races_give_the_values_of_the_model():
    configure("race=0,deferred=1")
    for seed in range(30):
        _fresh(seed, 80, False)


def _fresh(seed, steps, racy):
    cu.DevicePrimaryCtxReset(0)
    cu.CtxSetCurrent(cu.DevicePrimaryCtxRetain(0))
    try:
        return _run(seed, steps, racy)
    except BaseException as error:
        error.add_note(f"program {seed}")
        raise
