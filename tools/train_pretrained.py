"""Train the nets of minicaffe/pretrained/ on the whole of Fashion-MNIST, and write them in half precision.

    python tools/train_pretrained.py [NAME...] [--from DIR]

DIR has the four original files; without it they are downloaded, unless the databases are in data/ already. The commands run in the
checkout's top folder, and are printed. Deploy nets and weights are written to minicaffe/pretrained/, and the accuracy on the 10,000
test pictures is printed. The same machine with the same number of threads gives the same bytes; on others sums round differently.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOLVERS = {
    "lenet": "--max-iter 15000 --base-lr 0.02 --lr-policy poly --power 1",
    "mlp": "--max-iter 20000 --base-lr 0.001 --lr-policy poly --power 1 --type Adam --momentum2 0.999 --weight-decay 0",
}


def minicaffe(*words):
    """Run a command of minicaffe; end with its status if it fails."""
    print("minicaffe", shlex.join(map(str, words)), flush=True)
    status = subprocess.run([sys.executable, "-m", "minicaffe", *map(str, words)], cwd=ROOT).returncode
    if status:
        sys.exit(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"by default all: {', '.join(SOLVERS)}")
    parser.add_argument("--from", dest="source", type=Path, metavar="DIR", help="folder of the four original files")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SOLVERS):
        parser.error(f"no net has the name {', '.join(sorted(unknown))}; there are {', '.join(SOLVERS)}")
    if not (ROOT / "data" / "fashion_mnist_test_lmdb").exists():
        minicaffe("data", "fashion-mnist", *(["--from", arguments.source.resolve()] if arguments.source else []))
    for name in arguments.names or SOLVERS:
        net, deploy, prefix = f"minicaffe/pretrained/{name}/net.prototxt", f"minicaffe/pretrained/{name}/deploy", f"data/{name}"
        options = shlex.split(SOLVERS[name])
        minicaffe("train", net, "--quiet", "--force", "--seed", 1, "--threads", 2, "--snapshot-prefix", prefix, *options)
        weights = f"{prefix}_iter_{options[options.index('--max-iter') + 1]}.caffemodel"
        minicaffe("deploy", net, weights, "-o", deploy, "--half", "--force")
        minicaffe("test", net, "--quiet", "--weights", f"{deploy}.caffemodel")


if __name__ == "__main__":
    main()
