"""``python -m minicaffe.as_caffe script.py arguments``: run an old pycaffe script unchanged; ``import caffe`` gives minicaffe.

MINICAFFE_DEVICE=gpu (or sim) makes the script compute there although it does not say so.
"""

import os
import runpy
import sys

import minicaffe

USAGE = "usage: python -m minicaffe.as_caffe [--force] script.py [argument ...]"


def main(arguments):
    """Run the script with its arguments, as ``python script.py`` would; return an exit status if there is none to run."""
    force = arguments[:1] == ["--force"]
    script, *_ = arguments = arguments[force:] or [None]
    if script is None or script in ("-h", "--help"):
        print(USAGE, "--force: also where another caffe is installed", sep="\n", file=sys.stdout if script else sys.stderr)
        return 0 if script else 2
    if not os.path.exists(script):
        print(f"{script}: no such script", USAGE, sep="\n", file=sys.stderr)
        return 2
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        minicaffe.install_as_caffe(force=force)
    except minicaffe.errors.ConfigError as error:
        print(f"minicaffe: {error}; or: python -m minicaffe.as_caffe --force {script}", file=sys.stderr)
        return 2
    if os.environ.get("MINICAFFE_DEVICE", "cpu") != "cpu":
        minicaffe.set_mode_gpu()
    sys.argv = arguments
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
