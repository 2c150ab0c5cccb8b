"""Memory that a training or test needs: dry iterations with dummy data, which compute nothing, and of which every block is counted.

The figure is the peak of the bytes in blocks of minicaffe's allocators (`minicaffe.memory.stats(place).peak` of a process that
only trains), plus the batches that data layers prefetch, which NumPy allocates. It does not include the memory of Python and of
libraries, and what allocators reserve beyond their blocks.
"""

from collections import Counter
from dataclasses import dataclass, field

from minicaffe import memory
from minicaffe.device.threads import dry_run
from minicaffe.memory.registry import registry
from minicaffe.proto.fields import copy_of
from minicaffe.solver import solver_class

ITERATIONS = 2      # the first makes what is kept, the second uses it


@dataclass
class MemoryNeeds:
    """The most bytes at one place, a CPUPlace, PinnedPlace or CUDAPlace: `peak`, reached in the layer and pass of `when`.

    `parts` divides the peak by role (`roles_of`); `scratch` has by layer the most bytes of scratch memory that it takes.
    """

    place: object
    peak: int = 0
    when: str = ""
    parts: dict = field(default_factory=dict)
    scratch: dict = field(default_factory=dict)


def dry_run_training(param, replace_sources, **options):
    """Train `ITERATIONS` iterations as a dry run, with one batch of each test net before and after them.

    Return the Solver, the `needs`, and a list of the ReplacedSources by name, of the net that is trained and of those that test.
    ``replace_sources(net_param, file, positions)`` returns a net without its data, and its ReplacedSources; `options` are those of
    `minicaffe.solver.create_solver`.
    """
    sources = []
    quiet = copy_of(param)
    for name in ("snapshot", "weights"):
        quiet.ClearField(name)
    quiet.max_iter = quiet.test_interval = ITERATIONS
    quiet.display, quiet.snapshot_after_train = min(quiet.display, 1), False
    quiet.test_iter[:] = [1] * len(quiet.test_iter)
    base = solver_class(param, file=options.get("file"), positions=options.get("positions"))

    def make_net(self, net_param, **net_options):       # the solver's, for each of its nets
        made, found = replace_sources(net_param, net_options.get("file"), net_options.get("positions"))
        sources.append(found)
        return base.make_net(self, made, **net_options)

    with dry_run(), memory.record() as events:
        solver = type(base.__name__, (base,), {"make_net": make_net})(quiet, **options)
        solver.solve()
    return solver, needs(events, [solver.net, *solver.test_nets], solver.history, sources), sources


def dry_run_net(make_net, sources):
    """Run the net that `make_net` returns forward, as a dry run; return it and `needs`. `sources` are its ReplacedSources."""
    with dry_run(), memory.record() as events:
        net = make_net()
        for _ in range(ITERATIONS):
            net.forward_from_to(0, len(net.nodes) - 1)
    return net, needs(events, [net], [], [sources])


def needs(events, nets, history, sources):
    """Return the MemoryNeeds of each place, the largest first, of a dry run of `nets` with the `events` of `memory.record`.

    `history` has the solver's history blobs, `sources` for each net its ReplacedSources by name.
    """
    roles = roles_of(nets, history)
    # Allocations for tops of DummyData: real sources need none. Those of another size count: of data in the layout of an engine.
    dummies = {("alloc", registry.host_place, f"{blob.name} data", blob.data_memory.size)
               for net in nets for node in net.nodes if any(node.name in some for some in sources) for blob in node.tops}
    events = [event for event in events if (event.kind, event.place, event.name, event.nbytes) not in dummies]
    found, live, running, layer, when = {}, {}, {}, "", "setup"     # `live`: blocks; `running`: bytes by place and role
    for event in events:
        key = event.place, event.address
        if event.kind == "begin":
            layer, when = event.name, f"{event.name} {event.detail}" if event.detail != "update" else "update"
        elif event.kind == "alloc":
            need = found.setdefault(event.place, MemoryNeeds(event.place))
            by_role = running.setdefault(event.place, Counter())
            live[key] = event.nbytes, roles.get(event.name, "layers' own")
            by_role[live[key][1]] += event.nbytes
            if event.name == "scratch data":
                need.scratch[layer] = max(event.nbytes, need.scratch.get(layer, 0))
            if by_role.total() > need.peak:
                need.peak, need.when, need.parts = by_role.total(), when, dict(by_role.most_common())
        elif event.kind == "free" and key in live:
            nbytes, role = live.pop(key)
            running[event.place][role] -= nbytes
    for need in found.values():
        need.parts = {role: nbytes for role, nbytes in need.parts.items() if nbytes}
    ahead = sum(source.prefetched_bytes for some in sources for source in some.values())
    if ahead:
        need = found.setdefault(registry.host_place, MemoryNeeds(registry.host_place))
        need.parts["batches made ready"] = ahead
        need.peak += ahead
    return sorted(found.values(), key=lambda need: -need.peak)


def roles_of(nets, history):
    """Return the role of each block by its name, for `MemoryNeeds.parts`; blocks of other names are "layers' own"."""
    roles = {f"{blob.name} data": "history" for blob in history}
    for net in nets:
        for blob in net.blob_list:
            roles[f"{blob.name} data"], roles[f"{blob.name} diff"] = "activations", "gradients of activations"
        for blob in net.param_table.params:
            roles[f"{blob.name} data"], roles[f"{blob.name} diff"] = "parameters", "gradients of parameters"
    return {**roles, "scratch data": "scratch", "[kept for backward] data": "kept for backward"}
