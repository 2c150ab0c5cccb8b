"""Layers of forks for sequences: Lstm, ContinuationIndicator, CTCGreedyDecoder."""

import logging

import numpy as np

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.messages import Field
from minicaffe.common import TRAIN
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.recurrent import LSTMLayer
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields

log = logging.getLogger(__name__)


class LstmLayer(ForkLayer):
    """An LSTM with one input; the type LSTM, which computes it, is that of BVLC Caffe.

    For each step t, where m is the indicator of the sequence (without bottom[1]: 0 in the first step, else 1)::

        i, f, o, g = W_x x + bias + W_h (m h of the step before)
        i, f, o, g = sigmoid(i), sigmoid(f), sigmoid(o), tanh(g)
        c = f (m c of the step before) + i g
        h = o tanh(c)

    The top is h of all steps. Before the first step h and c are 0. With bottom[1] they are those after the last step of the
    previous forward, or 0 if there was none or N has changed; a snapshot has them. No gradient passes from one forward to the one
    before.

    The steps T and the sequences N are the first two axes of bottom[0] if it has 3 axes and `batch_size` is not given (ctpn,
    textspotter). Else (caffe-lstm) its first axis holds all sequences of step 0, then of step 1, and so on; N is `batch_size`.

    Different from its forks: on the CPU theirs uses the recurrent term of sequence 0 for all sequences. The result here is that of
    their GPU code. Gradients are not clipped in each step: in phase TRAIN a `clipping_threshold` above 0 is an error; use
    clip_gradients of the solver.

    Source: caffe-lstm lstm_layer.cpp (Hochreiter and Schmidhuber 1997).

    Parameters
    ----------
    bottom[0] : Blob, shape (T, N, I) or (T N, ...)
        x.
    bottom[1] : Blob, shape (T, N) or (T N), optional
        Sequence indicators: 0 where a sequence begins, else 1.
    top[0] : Blob, shape (T, N, D) or (T N, D), where D is `num_output`
    blobs[0], blobs[1], blobs[2] : Blob, shapes (4 D, I), (4 D, D), (4 D,)
        W_x, W_h and bias; rows in the order i, f, o, g.
    """

    min_bottom_blobs, max_bottom_blobs = 1, 2
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_tops = False
    no_gradient = {1: "the sequence indicators"}

    message = "lstm_param"
    fields_of_message = (
        Field("num_output", int, "D", 1), Field("clipping_threshold", 0.0, "must be 0 in phase TRAIN", 0),
        Field("weight_filler", Fields(), "of W_x and W_h"), Field("bias_filler", Fields(), "of the bias"),
        Field("batch_size", 1, "N, if the first axis of the bottom is T N", 1))

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        self.has_sequence_axis = len(bottom[0].shape) == 3 and "batch_size" not in self.given
        self.keeps_state = len(bottom) > 1
        size = self.values["num_output"]
        _, _, inputs = self._sizes(bottom)
        if self.phase == TRAIN and self.values["clipping_threshold"]:
            raise self.value_error("clipping_threshold", "must be 0 in phase TRAIN; use clip_gradients of the solver")
        self.add_filled((4 * size, inputs), "weight_filler")
        self.add_filled((4 * size, size), "weight_filler")
        self.add_filled((4 * size,), "bias_filler")
        self.x, self.indicators, self.y = (self.new_blob(what=what) for what in ("x", "indicators", "y"))    # with LSTM's axes
        self.lstm = None

    def _sizes(self, bottom):
        """Return T, N and I. Raises ShapeError if the bottoms do not fit."""
        shape, sequences = bottom[0].shape, self.values["batch_size"]
        if self.has_sequence_axis:
            if len(shape) != 3:
                raise ShapeError(f"must have 3 axes (steps, sequences, inputs) as in setup, got {list(shape)}", field="bottom[0]")
            steps, sequences, inputs = shape
        elif not shape or shape[0] % sequences:
            raise ShapeError(f"the first axis must be a multiple of lstm_param.batch_size, {sequences}, got {list(shape)}",
                             field="bottom[0]")
        else:
            steps, inputs = shape[0] // sequences, int(np.prod(shape[1:]))
        if steps < 1 or inputs < 1:
            raise ShapeError(f"needs at least one step and one input, got {list(shape)}", field="bottom[0]")
        if len(bottom) > 1 and bottom[1].count != steps * sequences:
            raise ShapeError(f"must have {steps} x {sequences} indicators for x of shape {list(shape)}, got "
                             f"{list(bottom[1].shape)}", field="bottom[1]")
        return steps, sequences, inputs

    def reshape(self, bottom, top):
        steps, sequences, inputs = self._sizes(bottom)
        size = self.values["num_output"]
        if inputs != self.blobs[0].shape[1]:
            raise ShapeError(f"has shape {list(bottom[0].shape)}, {inputs} values for each step of a sequence; the layer was set "
                             f"up for {self.blobs[0].shape[1]}", field="bottom[0]")
        top[0].reshape(*((steps, sequences) if self.has_sequence_axis else (steps * sequences,)), size)
        if not self.keeps_state:
            self.indicators.reshape(steps, sequences)
            self.indicators.data[...] = np.arange(steps)[:, None] > 0
        as_before = self.x.shape[1:2] == (sequences,)
        for blob, view, shape in ((bottom[0], self.x, (steps, sequences, inputs)), (top[0], self.y, (steps, sequences, size)),
                                  *((blob, self.indicators, (steps, sequences)) for blob in bottom[1:])):
            view.reshape(*shape)
            view.share_data(blob)
            view.share_diff(blob)
        if self.lstm is None or self.lstm.steps != steps:
            before, self.lstm = self.lstm, LSTMLayer(caffe_pb2.LayerParameter(
                name=self.name, type="LSTM", phase=self.phase, recurrent_param={"num_output": size}), self.dtype)
            self.lstm.set_up([self.x, self.indicators], [self.y])
            self.lstm.blobs = [self.blobs[i] for i in (0, 2, 1)]
            if before is not None and as_before:
                self.lstm.set_state(before.get_state())
        self.lstm.reshape([self.x, self.indicators], [self.y])

    def forward_cpu(self, bottom, top):
        if not self.keeps_state:
            self.lstm.reset()       # 0 x NaN is NaN
        self.lstm.forward_cpu([self.x, self.indicators], [self.y])

    def forward_gpu(self, bottom, top):
        if not self.keeps_state:
            self.lstm.reset()
        self.lstm.forward_gpu([self.x, self.indicators], [self.y])

    def backward(self, top, propagate_down, bottom):
        self.lstm.backward_cpu([self.y], [propagate_down[0], False], [self.x, self.indicators])

    def backward_gpu(self, top, propagate_down, bottom):
        if any(propagate_down[1:]):
            bottom[1].fill_diff(0)
        self.lstm.backward_gpu([self.y], [propagate_down[0], False], [self.x, self.indicators])

    def capture_obstacle(self):
        return None

    def inspect(self, bottom):
        self.lstm.inspect(bottom)

    def operations(self):
        return self.lstm.operations()

    def scratch_blobs(self):
        return self.lstm.scratch_blobs()

    def multiply_adds(self, bottom, top):
        return self.lstm.multiply_adds(bottom, top)

    def get_state(self):
        return self.lstm.get_state() if self.keeps_state else None

    def set_state(self, state):
        if not self.keeps_state:
            super().set_state(state)
        self.lstm.set_state(state)

    def reset(self):
        """Set the states before the next forward to zero."""
        self.lstm.reset()


class ContinuationIndicatorLayer(ForkLayer):
    """The indicators of `batch_size` sequences of `time_step` steps for LSTM: 0 in the first step, else 1. Bottoms are ignored.

    Source: warpctc-caffe continuation_indicator_layer.cpp.

    Parameters
    ----------
    top[0] : Blob, shape (time_step, batch_size)
    """

    exact_num_top_blobs = 1
    refuses_in_place = True
    reads_shapes_only = True
    backward_reads_bottoms = backward_reads_tops = False

    message = "continuation_indicator_param"
    fields_of_message = (Field("time_step", int, "steps", 1), Field("batch_size", int, "sequences", 1))

    def reshape(self, bottom, top):
        top[0].reshape(self.values["time_step"], self.values["batch_size"])

    def forward(self, bottom, top):
        top[0].data[...] = 1
        top[0].data[0] = 0

    def allow_force_backward(self, bottom_index):
        return False


class CTCGreedyDecoderLayer(ForkLayer):
    """The classes of the best path: of each step the class with the largest value, without repeats and blanks.

    A sequence begins at step 0, and ends before the next step whose indicator is 0. Without `ctc_merge_repeated` repeats stay.
    `blank_index` is the class that is the blank; a negative one means the last. Its default differs between forks: 0 in caffe_ocr,
    the last class in textboxes++ and here. A warning says so if the field is not given.

    Source: textboxes++ ctc_greedy_decoder_layer.cpp (Graves et al. 2006).

    Parameters
    ----------
    bottom[0] : Blob, shape (T, N, C)
    bottom[1] : Blob, shape (T, N)
        Sequence indicators.
    bottom[2] : Blob, shape (T, N), optional
        Targets; the first negative one ends a sequence.
    top[0] : Blob, shape (N, T, 1, 1)
        The classes, then -1.
    top[1] : Blob, shape (N, 1, 1, 1), optional
        Scores: the negative sum of the largest values of a sequence.
    top[2] : Blob, a scalar, only with targets; top[1] if there are no scores
        Accuracy: 1 - mean(edit distance / length of the longer of result and target).
    """

    min_bottom_blobs, max_bottom_blobs = 2, 3
    min_top_blobs, max_top_blobs = 1, 3
    refuses_in_place = True
    no_gradient = {0: "predictions", 1: "sequence indicators", 2: "targets"}
    backward_reads_bottoms = backward_reads_tops = False

    message = "ctc_decoder_param"
    fields_of_message = (Field("blank_index", -1, "the class of the blank; negative: the last"),
                         Field("ctc_merge_repeated", True, "leave repeats out"))

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        allowed = (1, 2) if len(bottom) == 2 else (2, 3)
        if len(top) not in allowed:
            raise ConfigError(f"must be {' or '.join(map(str, allowed))} with {len(bottom)} bottoms, got {len(top)}", field="top")
        if "blank_index" not in self.given:
            log.warning("layer '%s': %s.blank_index is not given; the blank is the last class, as in textboxes++ (in caffe_ocr it "
                        "is class 0)", self.name, self.message)

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if len(shape) != 3 or not shape[2]:
            raise ShapeError(f"must have 3 axes (steps, sequences, classes), got {list(shape)}", field="bottom[0]")
        for i, blob in enumerate(bottom[1:], 1):
            if blob.shape != shape[:2]:
                raise ShapeError(f"must have the first two axes of bottom[0], {list(shape[:2])}, got {list(blob.shape)}",
                                 field=f"bottom[{i}]")
        if self.values["blank_index"] >= shape[2]:
            raise self.value_error("blank_index", f"must be one of {shape[2]} classes")
        steps, sequences, _ = shape
        top[0].reshape(sequences, steps, 1, 1)
        if self._has_scores(bottom, top):
            top[1].reshape(sequences, 1, 1, 1)
        if len(bottom) > 2:
            top[-1].reshape()

    def _has_scores(self, bottom, top):
        return len(top) == 3 or len(top) == 2 and len(bottom) == 2

    def forward(self, bottom, top):
        values, indicators = bottom[0].data, bottom[1].data
        steps, sequences, classes = values.shape
        blank, merges = self.values["blank_index"], self.values["ctc_merge_repeated"]
        blank = classes - 1 if blank < 0 else blank
        best = values.argmax(axis=2)
        top[0].data[...] = -1
        errors = []
        for n in range(sequences):
            ends = np.flatnonzero(indicators[1:, n] == 0)
            path = best[:ends[0] + 1 if len(ends) else steps, n]
            kept = path != blank
            if merges:
                kept[1:] &= path[1:] != path[:-1]
            found = path[kept]
            top[0].data[n, :len(found), 0, 0] = found
            if self._has_scores(bottom, top):
                top[1].data[n] = -values[np.arange(len(path)), n, path].sum()
            if len(bottom) > 2:
                target = bottom[2].data[:, n]
                ends = np.flatnonzero(target < 0)
                target = target[:ends[0]] if len(ends) else target
                errors.append(_edit_distance(found, target) / max(len(found), len(target), 1))
        if len(bottom) > 2:
            top[-1].data[...] = 1 - np.mean(errors) if errors else 0

    def backward(self, top, propagate_down, bottom):
        for i, needed in enumerate(propagate_down):
            if needed:
                raise ConfigError(f"CTCGreedyDecoder has no gradient for {self.no_gradient[i]}; set propagate_down: false",
                                  field=f"bottom[{i}]")


def _edit_distance(a, b):
    """Return the least number of insertions, deletions and replacements that change `a` to `b`."""
    distances = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        corner, distances[0] = distances[0], i
        for j, right in enumerate(b, 1):
            corner, distances[j] = distances[j], min(distances[j] + 1, distances[j - 1] + 1, corner + (left != right))
    return distances[-1]
