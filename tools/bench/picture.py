"""A picture of what tools/bench/nets.py measured: time of minicaffe by that of each peer, a bar for each, the line is 1.

    python tools/bench/picture.py RESULT.json... > docs/benchmarks.svg
"""

import json
import sys
from xml.sax.saxutils import escape

PEERS = {"PyTorch": "#d9603b", "OpenVINO": "#3b78d9", "OpenCV": "#3ba55c"}
LEFT, UNIT, BAR, GAP, MOST = 250, 220, 9, 8, 2.5     # pixels; of a ratio of 1; a longer bar is cut at MOST


def ratios(row):
    """{peer: minicaffe's time by its}, the fastest of a peer's kinds."""
    found = {}
    for peer in PEERS:
        times = [ms for who, ms in row["ms"].items() if who.startswith(peer)]
        if times:
            found[peer] = row["ms"]["minicaffe"] / min(times)
    return found


def svg(rows):
    """The picture as text; colours that can be read on a light and on a dark page."""
    parts, y = [], 34
    for row in rows:
        bars = ratios(row)
        if not bars:
            continue
        threads = "" if row["threads"] == rows[0]["threads"] else f", {row['threads']} threads"
        precision = "" if row["precision"] == rows[0]["precision"] else f", {row['precision']}"
        label = f"{row['net']}, {row['batch']}: {row['what']}{threads}{precision}"
        middle = y + (BAR + 1) * len(bars) / 2
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(label)}</text>')
        for peer, value in bars.items():
            length = min(value, MOST) * UNIT
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{BAR}" fill="{PEERS[peer]}"/>'
                         f'<text x="{LEFT + length + 4:.0f}" y="{y + BAR - 1}" font-size="9">{value:.2f}</text>')
            y += BAR + 1
        y += GAP
    width = LEFT + MOST * UNIT + 40
    legend = "".join(f'<rect x="{LEFT + 110 * i}" y="8" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{LEFT + 110 * i + 14}" y="17">{peer}</text>' for i, (peer, colour) in enumerate(PEERS.items()))
    line = f'<line x1="{LEFT + UNIT}" x2="{LEFT + UNIT}" y1="26" y2="{y}" stroke="#888" stroke-dasharray="4 3"/>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y + 8}" font-family="sans-serif" font-size="12" '
            f'fill="#888">{legend}{line}{"".join(parts)}</svg>\n')


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give the files that tools/bench/nets.py --json wrote")
    print(svg([row for path in sys.argv[1:] for row in json.load(open(path))]), end="")
