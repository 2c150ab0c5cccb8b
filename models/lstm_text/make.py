"""Write net.prototxt and deploy.prototxt of a language model over characters: Embed, LSTM, a classifier for the next one."""

import sys
from pathlib import Path

import minicaffe as caffe
from minicaffe import layers as L

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import making  # noqa: E402

SYMBOLS = 96    # characters of make_data.py
EMBEDDING = 64
STATE = 256
STEPS = 32      # characters that a gradient goes back through
UNIFORM = dict(type="uniform", min=-0.08, max=0.08)


def body(n):
    """Add the layers from n.data (T, N) and n.cont (T, N) to the scores n.scores (T, N, SYMBOLS)."""
    n.embed = L.Embed(n.data, input_dim=SYMBOLS, num_output=EMBEDDING, bias_term=False, weight_filler=UNIFORM)
    n.lstm = L.LSTM(n.embed, n.cont, recurrent_param=dict(num_output=STATE, weight_filler=UNIFORM))
    n.scores = L.InnerProduct(n.lstm, num_output=SYMBOLS, axis=2, weight_filler=UNIFORM)


def text(split, phase):
    """Return the Tops data, cont and label of the texts that make_data.py prepared."""
    return L.HDF5Data(ntop=3, include=dict(phase=phase), hdf5_data_param=dict(source=f"data/text_{split}.txt", batch_size=STEPS))


def nets():
    """Return the NetParameters by file name."""
    test = caffe.NetSpec()
    test.data, test.cont, test.label = text("test", caffe.TEST)
    n = caffe.NetSpec()
    n.data, n.cont, n.label = text("train", caffe.TRAIN)
    body(n)
    n.accuracy = L.Accuracy(n.scores, n.label, axis=2, include=dict(phase=caffe.TEST))
    n.loss = L.SoftmaxWithLoss(n.scores, n.label, softmax_param=dict(axis=2))
    net = n.to_proto()
    layers = [net.layer[0], test.to_proto().layer[0], *net.layer[1:]]
    deploy = caffe.NetSpec()
    one = dict(shape=dict(dim=[1, 1]))
    deploy.data, deploy.cont = L.Input(**one), L.Input(**one)
    body(deploy)
    deploy.prob = L.Softmax(deploy.scores, axis=2)
    return {"net.prototxt": type(net)(name="LSTM text", layer=layers),
            "deploy.prototxt": making.named(deploy.to_proto(), "LSTM text")}


if __name__ == "__main__":
    making.write(__file__, nets())
