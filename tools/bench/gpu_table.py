"""The table of nets on a GPU, with the aim of each ratio in parentheses, from what tools/bench/gpu.py measured.

    python tools/bench/gpu_table.py bench_gpu.json

Ratios are minicaffe's by PyTorch's: to the better layout of eager PyTorch, and to the same as one CUDA graph. What was not measured
is empty, and what cuDNN's plans took to measure is below. Needs neither a GPU nor minicaffe.
"""

import json
import sys
from pathlib import Path

NAMES = {"lenet": "LeNet", "cifar10_quick": "CIFAR-10 quick", "caffenet": "CaffeNet", "googlenet": "GoogLeNet",
         "squeezenet": "SqueezeNet", "resnet50": "ResNet-50", "mobilenet": "MobileNet", "vgg16": "VGG-16"}
# Columns, and for each net in the order of NAMES the most that the ratio should be.
AIMS = {
    ("tf32", "step", "ratio_eager"): (0.14, 0.25, 0.85, 0.7, 0.75, 0.88, 0.8, 0.95),
    ("tf32", "step", "ratio_graph"): (0.95, 0.9, 0.9, 0.75, 0.8, 0.9, 0.9, 0.95),
    ("bf16", "step", "ratio_eager"): (0.14, 0.2, 0.9, 0.5, 0.5, 0.75, 0.6, 0.95),
    ("tf32", "forward", "ratio_eager"): (0.5, 0.8, 0.9, 0.8, 0.8, 0.9, 0.9, 0.95),
    ("tf32", "memory", "ratio"): (None, None, 0.8, 0.7, 0.7, 0.75, 0.75, 0.8),
}
ONE_PICTURE = {"ratio_eager": 0.25, "ratio_graph": 1.0}     # of the nets that follow
ONE_PICTURE_NETS = ("googlenet", "resnet50", "mobilenet")


def aims(net, precision, kind):
    """Return {ratio: the most that it should be} of a row of a net."""
    if kind == "one picture":
        return ONE_PICTURE if precision == "tf32" and net in ONE_PICTURE_NETS else {}
    place = list(NAMES).index(net)
    return {ratio: of[place] for (p, k, ratio), of in AIMS.items() if (p, k) == (precision, kind) and of[place] is not None}


def met(wanted, ratios):
    """Return whether all ratios are as wanted, None if one is not known or none is wanted."""
    if not wanted or any(ratios.get(name) is None for name in wanted):
        return None
    return all(ratios[name] <= most for name, most in wanted.items())


def table(rows):
    """Return the lines of the table of rows of gpu.py; of rows of nets that were not measured what is missing."""
    found = {(row.get("net"), row.get("precision"), row.get("kind")): row for row in rows}

    def cell(net, precision, kind, ratio=None):
        row = found.get((net, precision, kind))
        value = row and (row["minicaffe"] if ratio is None else row.get(ratio))
        if not isinstance(value, int | float):
            return ""
        if ratio is None:
            return f"{value:,.0f}" if kind == "memory" else f"{value:.3g}"
        most = aims(net, precision, kind).get(ratio)
        return f"{value:.2f}" + (f" ({most:g})" if most is not None else "")

    lines = ["| net, batch | step, ms | by eager | by graph | NCHW, ms | bf16 step, ms | by eager | by graph "
             "| forward, ms | by eager | by graph | memory, MiB | by PyTorch |", "|---" * 13 + "|"]
    for net, name in NAMES.items():
        of_net = [row for row in rows if row.get("net") == net]
        nchw = (found.get((net, "tf32", "step")) or {}).get("nchw_ms")
        lines.append("| " + " | ".join([
            f"{name}, {of_net[0]['batch']}" if of_net else name,
            *(cell(net, "tf32", "step", ratio) for ratio in (None, "ratio_eager", "ratio_graph")), f"{nchw:.3g}" if nchw else "",
            *(cell(net, "bf16", "step", ratio) for ratio in (None, "ratio_eager", "ratio_graph")),
            *(cell(net, "tf32", "forward", ratio) for ratio in (None, "ratio_eager", "ratio_graph")),
            *(cell(net, "tf32", "memory", ratio) for ratio in (None, "ratio"))]) + " |")
    lines += ["", "| one picture | tf32, ms | by eager | by graph | bf16, ms | by eager | by graph |", "|---" * 7 + "|"]
    for net in ONE_PICTURE_NETS:
        lines.append("| " + " | ".join([NAMES[net], *(cell(net, precision, "one picture", ratio) for precision in ("tf32", "bf16")
                                                      for ratio in (None, "ratio_eager", "ratio_graph"))]) + " |")
    tuned = [row for row in rows if row.get("kind") == "tuning" and isinstance(row["minicaffe"], float)]
    seconds, measured, kept = (sum(row[key] for row in tuned) for key in ("minicaffe", "measured", "kept"))
    lines += ["", f"Measuring plans of cuDNN took {seconds:.2f} s for {measured} products; {kept} choices were on disk already."]
    lines += [f"  {row['net']} {row['precision']}: {row['minicaffe']:.2f} s, {row['measured']} products" for row in tuned
              if row["measured"]]
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("\n".join(table(json.loads(Path(sys.argv[1]).read_text())["rows"])))
