"""Test the documented commands as five typical users run them: each in an empty folder, with the installed minicaffe.

    python tools/five_users.py
    python tools/five_users.py --user pictures

Each command is printed with its seconds and its number of output lines. A table of the users with their seconds follows. Commands
that are on a page of docs/ are read from it, so script and page cannot differ. If a command has a wrong exit status or output, it
is printed with its output, and the exit status is 1. This is also checked:

- `minicaffe classify` of one picture prints at most 12 lines, to a pipe and to a terminal.
- In a terminal of 80 columns no line is longer, except lines with the path of a file that was written.
- No line that a command prints to a pipe ends with spaces.

It needs the extras images and onnx, and pytest.
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from pages import ROOT, blocks
from sources import copy_models

COLUMNS = 80
LINES_OF_CLASSIFY = 12
LIMIT = 300     # seconds; a command that takes longer has failed
ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")


class FailureError(Exception):
    """The result of a command is not that of its page."""


class User:
    """Run commands in a folder, report and check them.

    Parameters
    ----------
    folder : pathlib.Path
        Where the commands run.
    report : callable
        Prints a line.
    """

    def __init__(self, folder, report=print):
        self.folder, self.report = folder, report
        self.seconds = self.commands = 0
        dropped = re.compile("COLUMNS|LINES|PYTHONSAFEPATH|PYTEST_.*|FORCE_COLOR|NO_COLOR|MINICAFFE_DEVICE")   # change output
        self.environment = {name: value for name, value in os.environ.items() if not dropped.fullmatch(name)}
        self.environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm-256color"}

    def run(self, command, *patterns, status=0, terminal=False, max_lines=None, folder=None):
        """Run a shell command; return its output, without the control sequences of a terminal.

        Parameters
        ----------
        command : str
            One command of a shell.
        *patterns : str
            Regular expressions that must match a part of the output.
        status : int, optional
            The exit status that is expected.
        terminal : bool, optional
            Whether the output is a terminal, of `COLUMNS` columns, and not a pipe.
        max_lines : int, optional
            The largest number of lines of output.
        folder : pathlib.Path, optional
            The folder in which the command runs; by default that of the user.

        Raises
        ------
        FailureError
            If the command ends with another status or prints something else.
        """
        begin = time.monotonic()
        returned, output = (run_in_terminal if terminal else run_in_pipe)(command, folder or self.folder, self.environment)
        seconds = time.monotonic() - begin
        self.seconds += seconds
        self.commands += 1
        lines = output.splitlines()
        first = command.splitlines()[0] + (" ..." if "\n" in command.strip() else "")
        self.report(f"{seconds:6.1f} s {len(lines):4} lines  {first}{' (terminal)' if terminal else ''}")
        wrong = [f"exit status {returned}, expected {status}"] if returned != status else []
        wrong += [f"it does not print {pattern!r}" for pattern in patterns if not re.search(pattern, output, re.M)]
        if max_lines and len(lines) > max_lines:
            wrong.append(f"{len(lines)} lines, at most {max_lines} are expected")
        if command.startswith("minicaffe ") and not terminal:
            wrong += [f"spaces at the end of a line: {line}" for line in lines
                      if line.endswith(" ") and not re.match(r"[IWEF]\d{4} ", line)]   # Caffe's log has some
        if terminal:
            wrong += [f"{len(line)} columns, the terminal has {COLUMNS}: {line}" for line in lines
                      if len(line) > COLUMNS and not line.startswith("wrote ")]     # paths are not wrapped
        if wrong:
            raise FailureError(f"{command.strip()}\n{output.rstrip()}\n" + "\n".join(f"wrong: {one}" for one in wrong))
        return output

    def save(self, page, name):
        """Write the block of a page whose first line is the comment `name` to the file of that name."""
        for block in blocks(page):
            if re.match(rf"(#|//) {re.escape(name)}\n", block.text):
                (self.folder / name).write_text(block.text)
                return
        raise FailureError(f"{page}: there is no block with the first line '# {name}'")

    def classify(self, command, *patterns):
        """Run `minicaffe classify` of one picture in a pipe and in a terminal."""
        for terminal in (False, True):
            self.run(command, *patterns, terminal=terminal, max_lines=LINES_OF_CLASSIFY)


def from_page(page, start, names=None, add=""):
    """Return the first command of a page that begins with `start`.

    Parameters
    ----------
    page : str
        Its path in the checkout.
    start : str
        How the command begins.
    names : dict, optional
        Name on the page -> name that replaces it.
    add : str, optional
        Options that the page's command does not have.

    Raises
    ------
    FailureError
        If the page has no such command, or the command does not have a name of `names`.
    """
    parts = (part for block in blocks(page)
             for part in (block.text.splitlines() if block.language in ("minicaffe", "shell") else [block.text]))
    command = next((part for part in parts if part.startswith(start)), None)
    if command is None:
        raise FailureError(f"{page}: there is no command that begins with {start!r}")
    command = with_names(page, command, names or {})
    return f"{command.rstrip()} {add}".rstrip() + ("\n" if "\n" in command else "")


def with_names(page, text, names):
    """Return a text of a page in which each key of `names` is replaced by its value; FailureError if a key is not in it."""
    for old, new in names.items():
        if old not in text:
            raise FailureError(f"{page}: {text.strip()!r} does not contain {old!r}")
        text = text.replace(old, new)
    return text


def run_in_pipe(command, folder, environment):
    """Run a command; return its exit status and what it printed on both streams, in the order of the writes."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=LIMIT)
    return done.returncode, done.stdout.decode(errors="replace")


def run_in_terminal(command, folder, environment):
    """Run a command in a pseudo-terminal; return its exit status and what the terminal shows at its end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    started = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True)
    os.close(slave)
    parts = []
    try:
        while part := os.read(master, 65536):
            parts.append(part)
    except OSError:     # Linux: EIO when the last writer has closed the terminal
        pass
    finally:
        os.close(master)
    return started.wait(LIMIT), screen(b"".join(parts).decode(errors="replace"))


def screen(written):
    """Return what a terminal of any size shows after `written`: without a progress bar that was cleared, for example."""
    rows, row, column = [""], 0, 0
    for part in re.findall(rf"{ESCAPE.pattern.replace('(', '(?:')}|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
            row = max(0, row - int(up[1] or 1))
        elif part == "\x1b[2K":
            rows[row] = ""
        elif part[0] != "\x1b":
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part):]
            column += len(part)
    return "\n".join(line.rstrip() for line in rows).rstrip() + "\n"


# ---- a keeper of an old model

OLD_LAYERS = """
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1 blobs_lr: 2
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 weight_filler { type: "xavier" } } }
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "pool1" type: POOLING bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layers { name: "drop1" type: DROPOUT bottom: "pool1" top: "pool1" dropout_param { dropout_ratio: 0.2 } }
layers { name: "ip1" type: INNER_PRODUCT bottom: "pool1" top: "ip1" blobs_lr: 1 blobs_lr: 2
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""
OLD_DATA = """
layers { name: "data" type: DATA top: "data" top: "label"
  data_param { source: "models/data/fashion_mnist_%s_lmdb" backend: LMDB batch_size: 50 scale: 0.00390625 } include { phase: %s } }
"""
OLD_TRAINING = 'name: "old"' + OLD_DATA % ("train", "TRAIN") + OLD_DATA % ("test", "TEST") + OLD_LAYERS + """
layers { name: "accuracy" type: ACCURACY bottom: "ip1" bottom: "label" top: "accuracy" include { phase: TEST } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip1" bottom: "label" top: "loss" }
"""
OLD_DEPLOY = 'name: "old"\ninput: "data"\ninput_dim: 1 input_dim: 1 input_dim: 28 input_dim: 28' + OLD_LAYERS + \
    'layers { name: "prob" type: SOFTMAX bottom: "ip1" top: "prob" }\n'
OLD_SCRIPT = """
import caffe
caffe.set_mode_cpu()
net = caffe.Net('old_deploy.prototxt', 'old.caffemodel', caffe.TEST)
transformer = caffe.io.Transformer({'data': net.blobs['data'].data.shape})
transformer.set_transpose('data', (2, 0, 1))
net.blobs['data'].data[...] = transformer.preprocess('data', caffe.io.load_image('models/data/ankle_boot.png', color=False))
print('class', net.forward()['prob'][0].argmax())
"""


def write_old_model(folder):
    """Write the prototxts of a net in the form of 2014, and a script that trains it and writes a caffemodel of that form."""
    (folder / "old_train.prototxt").write_text(OLD_TRAINING)
    (folder / "old_deploy.prototxt").write_text(OLD_DEPLOY)
    (folder / "old_script.py").write_text(OLD_SCRIPT)
    (folder / "write.py").write_text("""
import minicaffe as caffe
from minicaffe.proto import caffe_pb2
open("s.prototxt", "w").write('net: "old_train.prototxt" base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 random_seed: 1')
solver = caffe.get_solver("s.prototxt")
solver.step(200)
old = caffe_pb2.NetParameter(name="old")
types = {"conv1": caffe_pb2.V1LayerParameter.CONVOLUTION, "ip1": caffe_pb2.V1LayerParameter.INNER_PRODUCT}
for name, blobs in solver.net.params.items():
    layer = old.layers.add(name=name, type=types[name])
    for blob in blobs:
        num, channels, height, width = (1, 1, 1, 1, *blob.data.shape)[-4:]
        layer.blobs.add(num=num, channels=channels, height=height, width=width, data=blob.data.ravel().tolist())
open("old.caffemodel", "wb").write(old.SerializeToString())
""")


def keeper(user):
    """keeps an old model: prototxts and weights of 2014, a script with `import caffe`"""
    elsewhere = "docs/taking_your_net_elsewhere.md"
    user.run(f"mkdir models && cp -r {ROOT}/models/data models")
    write_old_model(user.folder)
    user.run("python write.py 2> log && rm write.py s.prototxt log")
    user.run("minicaffe summary old_deploy.prototxt", "^ip1 +InnerProduct 10", terminal=True)
    scored = user.run("minicaffe test old_train.prototxt --weights old.caffemodel", r"^accuracy = 0\.[678]", terminal=True)
    user.run("python -m minicaffe.as_caffe old_script.py", "^class 9$")
    user.classify("minicaffe classify models/data/ankle_boot.png --model old_deploy.prototxt --weights old.caffemodel",
                  "ankle boot")
    columns = next(block.text for block in blocks("docs/opencv_migration.md") if "# now" in block.text).splitlines()
    script = "\n".join(line[columns[0].index("# now"):] for line in columns)
    script = with_names("docs/opencv_migration.md", script, {
        '"deploy.prototxt"': '"old_deploy.prototxt"', '"net.caffemodel"': '"old.caffemodel"',
        '"cat.jpg"': '"models/data/ankle_boot.png", 0', "image, 1, (224, 224)": "image, 1 / 256, (28, 28)", "(104, 117, 123)": "0"})
    (user.folder / "opencv.py").write_text(script + "\nprint('class', prob.argmax())\n")
    user.run("python opencv.py", "^class 9$")
    user.run("minicaffe upgrade net_text old_train.prototxt new_train.prototxt", "^wrote new_train.prototxt$", "^Moved scale",
             terminal=True)
    user.run("minicaffe upgrade net_text old_deploy.prototxt new_deploy.prototxt", "new_deploy.prototxt")
    user.run("minicaffe upgrade net_binary old.caffemodel new.caffemodel", "new.caffemodel")
    user.run("minicaffe upgrade net_binary old.caffemodel new.caffemodel", "exists already", status=1)
    user.run("minicaffe show new.caffemodel", r"^ip1.*10 ?x", terminal=True)
    user.run("minicaffe show old.caffemodel new.caffemodel")
    again = user.run("minicaffe test new_train.prototxt --weights new.caffemodel", terminal=True)
    if re.search("^accuracy = .*", scored, re.M)[0] not in again:
        raise FailureError(f"the upgraded net has another accuracy:\n{scored}\n{again}")
    user.run("minicaffe deploy new_train.prototxt new.caffemodel -o deployed", "deployed.prototxt")
    user.run(from_page(elsewhere, "minicaffe fold", {"models/resnet50/deploy.prototxt resnet50": "deployed.prototxt deployed"}),
             "^wrote folded.prototxt")
    user.run(from_page(elsewhere, "minicaffe export", {"models/lenet/deploy": "folded", "lenet.caffemodel": "folded.caffemodel"},
                       "--dynamic-batch"), "^prob 1 x 10: differs by at most", "^wrote lenet.onnx")


# ---- a student

def student(user):
    """learns how a framework works: trace, pages, a chapter of the course"""
    start, course = "docs/quickstart.md", "docs/course/1_a_blob_and_its_memory.md"
    copy_models(user.folder / "models", "lenet", "data")
    user.run(f"cp -r {ROOT}/docs/course/exercises .")
    user.run("minicaffe --help", "^  classify ", "^  train ", terminal=True)
    user.run(from_page(start, "minicaffe summary"), "^conv2 +Convolution 5 50 ", "memory needed to train", terminal=True)
    user.run(from_page(start, "minicaffe draw"), "lenet.svg")
    user.run(from_page("docs/trace.md", "minicaffe trace"), "^wrote lenet.html$")
    to_files = " --html lenet.html --json lenet.json --force"
    user.run(from_page("docs/trace.md", "minicaffe trace", {to_files: ""}), "> conv1", terminal=True)
    user.run("minicaffe convolution --html convolution.html", "convolution.html")
    user.run(from_page("docs/trouble.md", "minicaffe gradcheck"), "all agree", terminal=True)
    user.run("minicaffe layers Pooling", "pooling_param", terminal=True)
    chapter = list(blocks(course))
    (user.folder / "chapter1.py").write_text("\n".join(block.text for block in chapter if block.language == "python"))
    printed = user.run("python chapter1.py")
    if printed != "".join(block.text for block in chapter if block.language == "text"):
        raise FailureError(f"{course}: the blocks print something else:\n{printed}")
    tests = next(block.text.strip() for block in chapter if block.text.startswith("pytest exercises/"))
    user.run(tests, "failed", status=1)
    user.run("cp exercises/solutions/chapter1.py exercises")
    user.run(tests, "passed")


# ---- a user with own pictures

def write_pictures(folder):
    """Write forty pictures of each of rose and tulip: vertical and horizontal stripes of random width, colour and size.

    Return the text of a list for `minicaffe data images --float-labels 2`: path, direction and contrast of each.
    """
    import cv2
    import numpy as np
    random, lines = np.random.default_rng(0), []
    for shift, name in enumerate(("rose", "tulip")):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(1, 41):
            height, width = random.integers(40, 60, 2)
            wave = np.sin(np.arange(60) * 2 * np.pi / random.integers(10, 16) + random.uniform(0, 6))
            stripes = wave[:height, None] * np.ones(width) if shift else wave[None, :width] * np.ones((height, 1))
            colour = random.uniform(0.5, 1, 3)
            picture = 120 + 80 * stripes[:, :, None] * colour + random.normal(0, 5, (height, width, 3))
            cv2.imwrite(str(folder / "pictures" / name / f"{i}.jpg"), picture.clip(0, 255).astype(np.uint8))
            lines.append(f"{name}/{i}.jpg {shift - 0.5} {colour.mean():.4f}\n")
    return "".join(lines)


def pictures(user):
    """has pictures in folders: databases, training, score, answers"""
    page = "docs/your_own_pictures.md"
    write_pictures(user.folder)
    user.run(from_page(page, "minicaffe data images"), "flowers")
    user.run(from_page(page, "minicaffe data info"), "sheet.png")
    user.run(from_page(page, "cat > net.prototxt"))
    user.run("minicaffe train --help", "--max-iter", terminal=True)
    user.run(from_page(page, "minicaffe train net", add="--seed 1"), r"^test accuracy = (1|0\.[89])",
             "^wrote net_iter_200.caffemodel")
    user.run("minicaffe train net.prototxt --max-iter 20 --snapshot-prefix second", terminal=True)
    user.run(from_page(page, "minicaffe test net"), "records right", "confusion matrix")
    user.run(from_page(page, "minicaffe test net", {"--wrong wrong": ""}), "records right", "confusion matrix", terminal=True)
    user.classify(from_page(page, "minicaffe classify"), "rose")
    user.run("minicaffe classify pictures/tulip --model net.prototxt --weights net_iter_200.caffemodel --out scores.csv",
             "scores.csv")
    user.run("minicaffe plot net.log --csv tables", "tables/net.log.train", terminal=True)
    for command in ("test", "classify", "plot", "data images"):
        user.run(f"minicaffe {command} --help", "--help", terminal=True)


# ---- an engineer with a vendor's toolchain

VENDOR = """
import numpy as np
import onnx
from onnx import helper, numpy_helper
rng, nodes, constants = np.random.default_rng(1), [], []
def constant(name, *shape, low=-0.5, high=0.5):
    constants.append(numpy_helper.from_array(rng.uniform(low, high, shape).astype(np.float32), name))
    return name
blob = "image"
for i, (before, after) in enumerate(((3, 8), (8, 16)), 1):
    nodes.append(helper.make_node("Conv", [blob, constant(f"w{i}", after, before, 3, 3)], [f"conv{i}"], pads=[1] * 4))
    statistics = [constant(f"{part}{i}", after, low=0.5, high=1.5) for part in ("scale", "shift", "mean", "variance")]
    nodes.append(helper.make_node("BatchNormalization", [f"conv{i}", *statistics], [f"norm{i}"]))
    nodes.append(helper.make_node("Relu", [f"norm{i}"], [f"relu{i}"]))
    nodes.append(helper.make_node("MaxPool", [f"relu{i}"], [f"pool{i}"], kernel_shape=[2, 2], strides=[2, 2]))
    blob = f"pool{i}"
nodes.append(helper.make_node("Flatten", [blob], ["flat"]))
nodes.append(helper.make_node("Gemm", ["flat", constant("w3", 5, 1024), constant("b3", 5)], ["scores"], transB=1))
nodes.append(helper.make_node("Softmax", ["scores"], ["prob"]))
value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
graph = helper.make_graph(nodes, "vendor", [value("image", [1, 3, 32, 32])], [value("prob", [1, 5])], constants)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "vendor.onnx")
"""


def engineer(user):
    """has a model of ONNX and a vendor's toolchain, which reads Caffe's files"""
    elsewhere = "docs/taking_your_net_elsewhere.md"
    (user.folder / "write.py").write_text(VENDOR)
    user.run("python write.py && rm write.py")
    bring = from_page("docs/bringing_a_net.md", "minicaffe import", {"resnet18": "vendor"})
    user.run(bring, "differs by at most", "^wrote vendor.prototxt and vendor.caffemodel")
    user.run(bring, "exists already", status=1)
    user.run("minicaffe summary vendor.prototxt", "Softmax", terminal=True)
    user.run("minicaffe upgrade net_text vendor.prototxt upgraded.prototxt", "upgraded.prototxt")
    user.run("diff <(minicaffe summary vendor.prototxt) <(minicaffe summary upgraded.prototxt)",    # the line with the path
             r"^< vendor \(vendor.prototxt", max_lines=4, status=1)
    user.run(from_page(elsewhere, "minicaffe fold", {"models/resnet50/deploy.prototxt resnet50": "vendor.prototxt vendor"}),
             "differs by at most", "^wrote folded.prototxt and folded.caffemodel: 10 layers of 14, 4 folded")
    user.run("minicaffe show folded.caffemodel", terminal=True)
    user.run("minicaffe show vendor.caffemodel folded.caffemodel")
    user.run("minicaffe export folded.prototxt folded.caffemodel -o folded.onnx", "^wrote folded.onnx")


# ---- a contributor

def contributor(user):
    """adds a layer and a solver type, and runs the checks of the checkout"""
    layer, solver = "docs/adding_a_layer.md", "docs/adding_a_solver.md"
    for name in ("cube.py", "cube.prototxt", "test_cube.py"):
        user.save(layer, name)
    user.run("pytest -q test_cube.py", "1 passed")
    copy_models(user.folder / "models", "mlp", "data")
    for name in ("lion.py", "solver.prototxt", "train_lion.py", "check_rule.py"):
        user.save(solver, name)
    user.run("python train_lion.py train --solver solver.prototxt", "wrote lion_iter_20.caffemodel")
    user.run("python check_rule.py")
    user.run("minicaffe layers InnerProduct", "inner_product_param", terminal=True)
    user.run("minicaffe layers NoSuchType", "NoSuchType", status=2)
    user.run(from_page("CONTRIBUTING.md", "pytest tests/"), "passed", folder=ROOT)
    user.run("python tools/words.py", folder=ROOT)


USERS = {user.__name__: user for user in (keeper, student, pictures, engineer, contributor)}


def play(name, report=print):
    """Run all commands of one user in an empty folder; return the User, with seconds and number of commands.

    Raises
    ------
    FailureError
        If a command has another result than its page.
    """
    report(f"{name}: {USERS[name].__doc__}")
    with tempfile.TemporaryDirectory(prefix=f"{name}_") as folder:
        user = User(Path(folder), report)
        USERS[name](user)
    return user


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", choices=list(USERS), help="this one only")
    options = parser.parse_args()
    played = {}
    for name in [options.user] if options.user else USERS:
        try:
            played[name] = play(name)
        except FailureError as error:
            print(f"{name}: FAILED\n{error}")
            return 1
    print(f"\n{'user':12} {'commands':>8} {'seconds':>8}")
    for name, user in played.items():
        print(f"{name:12} {user.commands:8} {user.seconds:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
