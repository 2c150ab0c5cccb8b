"""Make from a training net the net that predicts; Caffe's users write it by hand as deploy.prototxt."""

from minicaffe.errors import ConfigError
from minicaffe.net.definitions import filter_layers
from minicaffe.proto import caffe_pb2

PREDICTION_TYPES = {"SoftmaxWithLoss": "Softmax", "SigmoidCrossEntropyLoss": "Sigmoid"}
# Losses that compare scores with a class, and the field that has the axis of the classes; those without one have all axes after 0.
CLASS_LOSSES = {"SoftmaxWithLoss": "softmax_param", "InfogainLoss": "infogain_loss_param", "MultinomialLogisticLoss": None,
                "HingeLoss": None}


def ignored(p):
    """Return the label that an AccuracyParameter or LossParameter leaves out, or None."""
    return p.ignore_label if p.HasField("ignore_label") else None


def source_layer(param, file=None, positions=None):
    """Return the LayerParameter of a net's data layer, the first without bottoms that its state includes; or None.

    A Parameter layer has none either, and is no source of data. `file` and `positions` are for errors.
    """
    layers = (layer.param for layer in filter_layers(param.layer, param.state, file, positions))
    return next((layer for layer in layers if layer.top and not layer.bottom and layer.type != "Parameter"), None)


def deploy_net(param, shape, file=None, positions=None):
    """Return the NetParameter that computes what a training net predicts, from an Input of `shape`.

    Everything that needs a label is left out; the last loss that has a prediction (`PREDICTION_TYPES`) becomes that prediction,
    ``prob``. Without one the last layer that needs no label is the output. Layers that the output does not need are left out.

    Parameters
    ----------
    param : caffe_pb2.NetParameter
        In today's form; its state chooses the layers, of which one is a data layer (`source_layer`).
    shape : sequence of int
        Of the input.
    file : str, optional
        For errors.
    positions : Positions, optional
        The lines of `param`, which are changed to those of the result.

    Raises
    ------
    ConfigError
        If nothing is left.
    """
    source = source_layer(param, file, positions)
    unknown = set(source.top[1:])  # blobs that need a label
    known, answer = [], None
    definitions = filter_layers(param.layer, param.state, file)
    for layer in [definition.param for definition in definitions]:
        if layer == source or not layer.bottom and layer.type != "Parameter":
            unknown.update(layer.top if layer != source else ())
        elif layer.type in PREDICTION_TYPES and layer.bottom[0] not in unknown:
            answer = caffe_pb2.LayerParameter(name="prob", type=PREDICTION_TYPES[layer.type], bottom=layer.bottom[:1], top=["prob"])
            if layer.HasField("softmax_param"):
                answer.softmax_param.CopyFrom(layer.softmax_param)
            unknown.update(layer.top)
        elif unknown.intersection(layer.bottom):
            unknown.update(layer.top)
        else:
            known.append(layer)
    if answer is None and not known:
        raise ConfigError("no layer computes a prediction without labels; write a deploy net", file=file)
    kept = [answer or known.pop()]
    needed = set(kept[0].bottom)
    for layer in reversed(known):
        if needed.intersection(layer.top):
            kept.append(layer)
            needed.update(layer.bottom)
    made = caffe_pb2.NetParameter(name=param.name, state=param.state)
    made.layer.add(name="data", type="Input", top=source.top[:1]).input_param.shape.add(dim=shape)
    made.layer.extend(reversed(kept))
    if positions is not None:
        paths = {one.param.name: positions.moved.get(one.path, one.path) for one in definitions}
        positions.moved = {f"layer[{i}]": paths.get(layer.name, "") for i, layer in enumerate(made.layer)}
    return made
