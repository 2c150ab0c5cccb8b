"""Work of a net on a GPU that is recorded as one CUDA graph and replayed: a forward in phase TEST, an iteration of a solver.

Data sources run on the host before each replay. Single launches are used if the work cannot be recorded, until shapes were the
same in `WARM_UP` runs, and after a change since the recording; the log has the reason at level debug (``--verbose``).
"""

import logging

from minicaffe import cuda
from minicaffe.device.context import mode_change_count
from minicaffe.engines.engine import settings_epoch
from minicaffe.errors import DeviceError, OutOfMemoryError
from minicaffe.memory import reporter
from minicaffe.memory.synced import device_lock

log = logging.getLogger(__name__)
WARM_UP = 2  # runs by single launches first: they allocate memory and compile kernels, which a recording must not


class RecordedWork:
    """The graph of one kind of work of a net, if there is one. `Runner.replay` and `TrainingStep.replay` call `run`.

    Parameters
    ----------
    what : str
        For the log, such as ``an iteration``.
    """

    def __init__(self, what):
        self.what = what
        self.logged = None  # the reason that was logged last
        self.forget()

    def forget(self):
        """Free the graph, its state, the `device_states` before and after it, and the scratch memory that it kept alive."""
        self.graph = self.state = self.before = self.after = self.scratch = None
        self.seen = 0  # runs in a row with the same state

    def leave(self, reason):
        """Free the graph, since the work runs by single launches now; log the reason once."""
        if reason != self.logged:
            log.debug("no CUDA graph: %s", reason)
            self.logged = reason
        self.forget()

    def obstacle(self, net):
        """Return why the net's work cannot be recorded now, or None."""
        if reporter.is_recording():
            return "events are recorded, and a replay has none of layers"
        if cuda.current().recording:
            return "launches are being recorded one by one"
        # Layers do not change once they are recorded.
        return net.capture_obstacle() if self.graph is None else net.observer_reason()

    def run(self, net, launch, rate=0.0, others=(), state=()):
        """Run the sources, then do the rest by replaying the graph or by single launches.

        Parameters
        ----------
        net : Net
        launch : callable
            ``launch(recording)`` does the work; while it is recorded it must not read what the device computes.
        rate : float
            The learning rate of a replay.
        others : sequence of Blob
            Of any shapes: blobs whose memory the work uses, besides the net's.
        state : tuple
            What must stay as it is, besides shapes, memory, the mode, the random seed and the engines' settings.

        Returns
        -------
        done : bool
            False: recording failed, and will not be tried again; `launch` was called all the same.
        result
            What `launch` returned; None of a replay.

        Notes
        -----
        The caller has the net's lock, which comes before `device_lock`.
        """
        from minicaffe.net.graph_memory import make_device_only, restore_heads
        blobs = [*net.blob_list, *net.learnable_params, *others]
        net.run_sources()
        generator = net.layers[0].generator     # which all layers use
        # After CPU mode the host has copies of layers' scratch memory, which a replay would not make stale.
        state = net.stamp(), generator.seed, settings_epoch(), mode_change_count(), *state
        if self.graph is not None:
            net.inspect_inputs()    # before host copies become stale
        if state != self.state or self.graph is not None and not make_device_only(
                blobs, net.source_blobs, self.before, self.after):
            if self.graph is not None:
                log.debug("CUDA graph of %s: shapes, memory, the mode, the random seed, the other ranks, the precision or the "
                          "engine changed; back to single launches", self.what)
            self.forget()
            self.state = state
        if self.graph is None:
            self.seen += 1
            if self.seen <= WARM_UP:
                return True, launch(False)
            if not self._record(net, launch, generator, blobs):
                return False, launch(False)
        with device_lock:
            self.graph.replay(rate, (generator.offset - self.first_draw) % 2**64)   # random numbers drawn since the recording
            restore_heads(blobs, self.after)
        generator.reserve_counters(self.draws)
        return True, None

    def _record(self, net, launch, generator, blobs):
        """Record the work without running it; return whether that succeeded."""
        from minicaffe.net.graph_memory import device_states, make_device_only, restore_heads
        self.first_draw = generator.offset
        net.inspect_inputs()    # moves layer states to the device: a restored one is on the host
        make_device_only(blobs, net.source_blobs)
        before = device_states(blobs)
        try:
            graph = cuda.Graph(cuda.current())
            with device_lock, graph:
                launch(True)
            self.draws = generator.offset - self.first_draw
        except (DeviceError, OutOfMemoryError) as error:
            self.leave(f"recording failed: {error}")
            restore_heads(blobs, [old and new and old for old, new in zip(before, device_states(blobs), strict=True)])
            return False    # none of the recorded reorders ran, so that the heads before are right
        finally:
            generator.offset = self.first_draw
        self.graph, self.before, self.after = graph, before, device_states(blobs)
        # The graph uses these blocks and primitives, which other runs may replace.
        self.scratch = [part for layer in net.layers for part in layer.scratch_memory()]
        log.debug("CUDA graph: %s is recorded, %d nodes", self.what, graph.nodes)
        return True
