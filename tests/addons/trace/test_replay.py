"""What a trace derives from its document, after a second `fill`, too; segments of two places."""

from minicaffe.addons.trace import Recorder, Trace, build
from minicaffe.addons.trace.lives import Lives
from minicaffe.addons.trace.model import EMPTY, state_word
from minicaffe.memory import reporter


def memory(name, role, aliases):
    return {"name": name, "blob": name, "part": "data", "bytes": 4, "role": role, "aliases": aliases, "title": f"title of {name}"}


def document(names, kinds):
    """A document with memories of these names, and a step for each event."""
    events = {key: [0] * len(kinds) for key in EMPTY["events"]} | {"kind": list(range(len(kinds)))}
    steps = [{"iteration": 0, "kind": "between", "layer": "", "node": None, "first": i, "last": i + 1, "begin": 0, "end": 0, "with": None, "flops": None,
              "bytes": 0, "loss": None, "touched": []} for i in range(len(kinds))]
    return {**EMPTY, "memories": [memory(name, f"role of {name}", [f"alias of {name}"]) for name in names], "strings": [*kinds, ""], "events": events, "steps": steps}


def test_a_filled_trace_is_a_new_one():
    first, second = document(["a", "b"], ["copy"]), document(["b", "c", "c #2"], ["head", "copy", "free"])

    def derived(made):
        return [made.events, made.owners, made.titles, made.roles, made.block_titles, [made.step_at(i) for i in range(len(made) + 1)], len(made), made.steps]

    for one, other in ((first, second), (second, first)):
        made = Trace(one)
        assert derived(made) == derived(Trace(one)) != derived(Trace(other))
        made.fill(other)
        assert derived(made) == derived(Trace(other))


def event(kind, place, address, nbytes):
    return reporter.Event(0, kind, place, address, nbytes, "", "", 0)


def test_segments_of_two_places_at_one_address():
    """Each event changes its own place alone; a place without an arena gets one of the kind that its first event says."""
    events = []

    def arenas():
        return {arena["place"]: (arena["allocator"], [(one["address"], one["bytes"], [(b["address"], b["bytes"], b["used"]) for b in one["blocks"]])
                                                      for one in arena["segments"]]) for arena in Lives({"heads": {}, "blocks": [], "arenas": []}, events).at(len(events)).arenas}

    for kind, place, address, nbytes in (("pool taken", "A", 1024, 1024), ("segment taken", "B", 2048, 1024), ("segment taken", "B", 1024, 1024),
                                         ("split", "B", 2048, 256), ("split", "A", 1024, 512), ("alloc", "B", 2048, 200), ("split", "B", 2048, 256)):
        events.append(event(kind, place, address, nbytes))
    whole = ("caching", [(1024, 1024, [(1024, 1024, False)]), (2048, 1024, [(2048, 256, True), (2304, 768, False)])])
    assert arenas() == {"A": ("buddy", [(1024, 1024, [(1024, 512, False), (1536, 512, False)])]), "B": whole}
    events.append(event("merge", "A", 1024, 1024))
    events.append(event("pool given back", "A", 1024, 1024))
    assert arenas() == {"A": ("buddy", []), "B": whole}
    for kind, nbytes in (("free", 200), ("merge", 1024)):
        events.append(event(kind, "B", 2048, nbytes))
    assert arenas()["B"] == ("caching", [(1024, 1024, [(1024, 1024, False)]), (2048, 1024, [(2048, 1024, False)])])


def test_words_of_heads_that_are_not_known():
    assert [state_word(head) for head in ("HEAD_AT_CPU", "HEAD_AT_MOON", None, "")] == ["host", "HEAD_AT_MOON", "?", "?"]


def test_events_of_taking_a_snapshot_are_not_recorded(on_cpu, make_solver, monkeypatch):
    real = build.memories_of

    def counted(*arguments):
        reporter.event("of the snapshot")
        return real(*arguments)

    monkeypatch.setattr(build, "memories_of", counted)
    for keep in (None, 2):
        recorder = Recorder(make_solver(), keep)
        recorder.start()
        recorder.solver.step(4)
        recorder.stop()
        made = recorder.trace()
        assert {one.kind for one in made.events} & {"of the snapshot", "begin"} == {"begin"}
        assert {step["iteration"] for step in made.steps if step["node"] is not None} == set(range(4) if keep is None else (2, 3))
