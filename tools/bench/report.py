"""Tables and a picture of what tools/bench/nets.py measured.

    python tools/bench/report.py RESULT.json            prints the tables
    python tools/bench/report.py RESULT.json --write    puts them into docs/benchmarks.md, and the picture beside it

In the page a table is what lies between the lines `<!-- table NAME -->` and `<!-- end -->`; tables without such lines are only
printed. The picture shows time of minicaffe by that of each peer, a bar for each; the line is 1.
"""

import argparse
import json
import re
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = {"lenet": "LeNet", "cifar10_quick": "CIFAR-10 quick", "caffenet": "CaffeNet", "googlenet": "GoogLeNet",
         "resnet50": "ResNet-50", "mobilenet": "MobileNet", "squeezenet": "SqueezeNet", "vgg16": "VGG-16", "lstm_text": "LSTM text"}
TABLES = {  # the name of a table: which cases it has, and which peers
    "float32": (lambda row: row["threads"] == 2 and row["precision"] == "float32" and row["batch"] > 1 and not row["compiled"],
                ("PyTorch", "OpenVINO", "OpenCV")),
    "bf16": (lambda row: row["precision"] == "bf16", ("PyTorch", "OpenVINO")),
    "one picture": (lambda row: row["batch"] == 1, ("PyTorch", "OpenVINO", "OpenCV")),
    "one thread": (lambda row: row["threads"] == 1, ("PyTorch", "OpenVINO", "OpenCV")),
    "torch.compile": (lambda row: row["compiled"], ("PyTorch",)),
}
COLOURS = {"PyTorch": "#d9603b", "OpenVINO": "#3b78d9", "OpenCV": "#3ba55c"}
LEFT, UNIT, BAR, GAP, MOST = 200, 240, 9, 7, 1.6     # pixels; of a ratio of 1; a longer bar is cut at MOST


def ratios(row, peers):
    """{peer: minicaffe's median time by its}, the fastest of a peer's kinds; peers that are missing are left out."""
    found = {}
    for peer in peers:
        times = [ms[1] for who, ms in row["ms"].items() if who.startswith(peer)]
        if times:
            found[peer] = row["ms"]["minicaffe"][1] / min(times)
    return found


def label(row):
    return f"{NAMES.get(row['net'], row['net'])}, {row['batch']}"


def table(rows, peers):
    """The table of some cases in Markdown."""
    lines = ["| net, batch | what | ms (quartiles) | GFLOP/s, peak | " + " | ".join(peers) + " |", "|---" * (4 + len(peers)) + "|"]
    for row in rows:
        low, ms, high = row["ms"]["minicaffe"]
        speed = f"{1e3 * row['gflop'] / ms:.0f} of {row['peak_gflops']:.0f}" if row["peak_gflops"] else ""
        found = ratios(row, peers)
        cells = [f"{found[peer]:.2f}x" if peer in found else "" for peer in peers]
        lines.append(f"| {label(row)} | {row['what']} | {ms:.2f} ({low:.2f} to {high:.2f}) | {speed} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def svg(rows, peers):
    """The picture as text, in colours that can be read on a light and on a dark page."""
    parts, y = [], 34
    for row in rows:
        bars = ratios(row, peers)
        middle = y + (BAR + 1) * len(bars) / 2
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(label(row))}: {row["what"]}</text>')
        for peer, value in bars.items():
            length = min(value, MOST) * UNIT
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{BAR}" fill="{COLOURS[peer]}"/>'
                         f'<text x="{LEFT + length + 4:.0f}" y="{y + BAR - 1}" font-size="9">{value:.2f}</text>')
            y += BAR + 1
        y += GAP
    legend = "".join(f'<rect x="{LEFT + 110 * i}" y="8" width="10" height="10" fill="{COLOURS[peer]}"/>'
                     f'<text x="{LEFT + 110 * i + 14}" y="17">{peer}</text>' for i, peer in enumerate(peers))
    line = f'<line x1="{LEFT + UNIT}" x2="{LEFT + UNIT}" y1="26" y2="{y}" stroke="#888" stroke-dasharray="4 3"/>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + MOST * UNIT + 40:.0f}" height="{y + 8}" '
            f'font-family="sans-serif" font-size="12" fill="#888">{legend}{line}{"".join(parts)}</svg>\n')


def written(page, name, text):
    """The page with `text` as the table of that name."""
    made, count = re.subn(rf"(?<=<!-- table {re.escape(name)} -->\n).*?(?=<!-- end -->)", lambda _: f"\n{text}\n", page, flags=re.S)
    if count != 1:
        raise ValueError(f"the page has {count} places '<!-- table {name} -->' with an '<!-- end -->'; it needs one")
    return made


def measured(rows):
    """The line that says which commit and processor the rows come from, or that they come from several; and which turns count."""
    hosts = sorted({f"commit {row.get('commit') or 'unknown'} on {row.get('processor') or 'unknown'}" for row in rows})
    line = ("Measured in several places, which cannot be compared: " if len(hosts) > 1 else "Measured: ") + "; ".join(hosts) + "."
    again, shared = (sum(row.get(which, 0) for row in rows) for which in ("again", "shared"))
    if again + shared:
        line += f" {again} turns were taken again, as the processors gave less than before; {shared} count although they did."
    return textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and docs/benchmarks.svg")
    options = parser.parse_args()
    rows = list(json.loads(options.result.read_text()).values())
    source = measured(rows)
    print(source)
    page = written((DOCS / "benchmarks.md").read_text(), "measured", source)
    for name, (has, peers) in TABLES.items():
        chosen = sorted(filter(has, rows), key=lambda row: list(NAMES).index(row["net"]))
        if not chosen:
            continue
        text = table(chosen, peers)
        print(f"{name}\n\n{text}")
        if f"<!-- table {name} -->" in page:
            page = written(page, name, text)
        if name == "float32" and options.write:
            (DOCS / "benchmarks.svg").write_text(svg(chosen, peers))
    if options.write:
        (DOCS / "benchmarks.md").write_text(page)


if __name__ == "__main__":
    main()
