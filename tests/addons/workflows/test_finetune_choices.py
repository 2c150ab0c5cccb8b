"""The training and the last layer that ``minicaffe finetune`` chooses."""

import random
import re

import pytest

from minicaffe.addons.workflows import finetune
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

SEEDS = pytest.mark.parametrize("seed", range(20))


@SEEDS
def test_default_solver_arguments(seed):
    """40 epochs within 300 and 3000 iterations, with some 20 tests, the last of which ends it; what is given stays."""
    dice = random.Random(seed)
    for _ in range(20):
        records, batch = dice.randint(1, 5000), dice.randint(1, 64)
        passed = {f"field_{name}": None for name in ("max_iter", "test_interval", "display", "lr_policy", "stepvalue")} | {"seed": 1, "field_stepvalue": ()}
        given = {name: value for name, value in (("max_iter", dice.randint(1, 900)), ("test_interval", 0), ("display", 7), ("lr_policy", "step"))
                 if dice.random() < 0.3}
        passed |= {f"field_{name}": value for name, value in given.items()}
        words = dict(word.removeprefix("--").split("=") for word in finetune.default_solver_arguments(records, batch, passed))
        wanted = given.get("max_iter") or min(3000, max(300, 40 * records // batch))
        interval = max(1, wanted // 20)
        wanted -= wanted % interval
        expected = {"max-iter": wanted, "test-interval": interval, "display": interval}
        if "lr_policy" not in given:
            expected |= {"lr-policy": "poly", "power": 1}
        assert words == {name: str(value) for name, value in expected.items() if name.replace("-", "_") not in given}


@pytest.mark.parametrize(("text", "wanted"), [
    ("num_output: 7", [(1, 1), (2, 0)]), ("num_output: 7 bias_term: false", [(1, 1)]),
    ("num_output: 7 } param { lr_mult: 0 } param { name: 'w' lr_mult: 5 decay_mult: 3", [(1, 1), (5, 0)]),
    ("num_output: 7 } param { lr_mult: 3", [(3, 1)])])
@pytest.mark.parametrize("suffix", ["db", "taken"])
def test_replaced_layer(text, wanted, suffix):
    """It learns even where the old one did not, shares nothing, and has a name of its own."""
    net = parse_text(f'layer {{ name: "fc_taken" }} layer {{ name: "fc_taken_" }} layer {{ name: "fc" type: "InnerProduct" inner_product_param {{ {text} }} }}',
                     caffe_pb2.NetParameter)[0]
    assert finetune.replace_last_layer(net, net.layer[2], 3, suffix) == ("fc", 7)
    head = net.layer[2]
    assert head.name == {"db": "fc_db", "taken": "fc_taken__"}[suffix] and head.inner_product_param.num_output == 3
    assert [(spec.lr_mult, spec.decay_mult, spec.name) for spec in head.param] == [(*rates, "") for rates in wanted]
    assert (head.inner_product_param.weight_filler.type, head.inner_product_param.weight_filler.std) == ("gaussian", pytest.approx(0.01))
    net = parse_text('layer { name: "in" top: "x" } layer { name: "c" type: "Convolution" bottom: "x" top: "prob" }', caffe_pb2.NetParameter)[0]
    assert [(layer.name, list(layer.bottom), list(layer.top)) for layer in finetune.with_softmax(net).layer][2:] == [("prob_", ["prob"], ["prob_"])]
    assert len(net.layer) == 2


KINDS = {"IP": "InnerProduct", "DROPOUT": "Dropout", "RELU": "ReLU"}


def net_of(text):
    """Return a NetParameter of a text such as ``IP x>a, RELU a>a``: the type, the bottom and the top of each layer."""
    net = caffe_pb2.NetParameter()
    for i, (kind, bottom, top) in enumerate(re.findall(r"(\w+) (\w+)>(\w+)", text)):
        net.layer.add(name=f"l{i}", type=KINDS[kind], bottom=[bottom], top=[top])
    return net


@pytest.mark.parametrize("layers, wanted", [
    ("IP x>a, IP a>b, RELU b>c", "b"), ("IP x>a, IP a>b, RELU a>c", "a"), ("IP x>a, RELU x>side, IP side>other, RELU a>c", "a"),
    ("IP x>a, RELU a>a, DROPOUT a>a", "a"), ("RELU x>a", "wrong")])
def test_last_layer(layers, wanted):
    """Layers between it and the scores have one bottom; layers that make other blobs do not count."""
    net = net_of(layers)
    if wanted == "wrong":
        with pytest.raises(ConfigError, match="no InnerProduct or Convolution alone makes the scores"):
            finetune.last_layer(net, "f")
    else:
        assert finetune.last_layer(net, "f").top[0] == wanted
