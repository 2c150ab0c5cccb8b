"""Let a trained model write.

    python models/lstm_text/sample.py lstm_text_iter_2000.caffemodel [--begin "The net "] [--length 300] [--temperature 0.6]
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import minicaffe as caffe

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_data  # noqa: E402

DEPLOY = Path(__file__).resolve().with_name("deploy.prototxt")


def sample(net, begin, length, temperature, seed):
    """Return `length` characters that follow `begin`.

    Parameters
    ----------
    net : Net
        The deploy net; its LSTM keeps its state from one forward to the next.
    temperature : float
        Below 1 the likely characters become more likely.
    """
    random = np.random.default_rng(seed)
    given, written = list(make_data.encode(begin)), []
    for step in range(len(given) + length - 1):
        number = given[step] if step < len(given) else written[-1]
        prob = net.forward(data=np.full((1, 1), number), cont=np.full((1, 1), step > 0))["prob"].ravel().astype(np.float64)
        if step >= len(given) - 1:
            prob **= 1 / temperature
            written.append(random.choice(len(prob), p=prob / prob.sum()))
    return make_data.decode(written)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weights")
    parser.add_argument("--begin", default="The ")
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    net = caffe.Net(str(DEPLOY), caffe.TEST, weights=arguments.weights)
    print(arguments.begin + sample(net, arguments.begin, arguments.length, arguments.temperature, arguments.seed))


if __name__ == "__main__":
    main()
