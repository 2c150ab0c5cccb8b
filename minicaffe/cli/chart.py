"""Curves and histograms of characters, for terminals of any kind: curves differ without colour."""

import math

from rich.text import Text

MARKS = "*o+x#@%&"
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white", "bright_black")
HEIGHT = 14
BAR_EIGHTHS = " ▏▎▍▌▋▊▉█"
BLOCKS = "▁▂▃▄▅▆▇█"  # of sparklines
PLAIN_BLOCKS = "_.-=+*#@"  # for terminals without UTF-8


def draw(title, curves, width, along="iterations", logarithmic=False, height=HEIGHT, utf8=True):
    """Return a chart as a rich Text.

    Curves are objects with `label`, `xs` and `ys`. Values that are not finite are left out, which the legend states; a
    `logarithmic` chart also leaves out values that are not above 0. `width` and `height` are in characters, the height without
    title, axis and legend.
    """
    def scaled(y):
        return math.log10(y) if logarithmic else y

    kept = [[(x, scaled(y)) for x, y in zip(curve.xs, curve.ys) if math.isfinite(y) and (y > 0 or not logarithmic)]
            for curve in curves]
    points = [point for one in kept for point in one]
    text = Text(no_wrap=True)
    text.append(title + (" (logarithmic)\n" if logarithmic else "\n"), style="bold")
    if points:
        low, high = widen_range(min(y for _, y in points), max(y for _, y in points))
        first, last = min(x for x, _ in points), max(x for x, _ in points)
        ticks = {row: f"{(10 ** value if logarithmic else value):.4g}" for row in range(0, height, max(1, (height - 1) // 4))
                 for value in (high - (high - low) * row / (height - 1),)}
        label_width = max(map(len, ticks.values()))
        columns = max(8, width - label_width - 2)
        grid = [[None] * columns for _ in range(height)]
        for number, one in enumerate(kept):
            _plot_curve(grid, one, number % len(MARKS), (first, last), (low, high))
        for row, cells in enumerate(grid):
            text.append(f"{ticks.get(row, ''):>{label_width}} " + (("┤" if row in ticks else "│") if utf8 else "|"))
            for number in cells:
                text.append(" " if number is None else MARKS[number], style="" if number is None else COLOURS[number])
            text.append("\n")
        text.append(" " * (label_width + 1) + ("└" + "─" * columns if utf8 else "+" + "-" * columns) + "\n")
        begin, end = f"{first:g}", f"{last:g} {along}"
        text.append(" " * (label_width + 2) + begin + end.rjust(max(len(end) + 1, columns - len(begin))) + "\n")
    for number, curve in enumerate(curves):
        not_finite = [x for x, y in zip(curve.xs, curve.ys) if not math.isfinite(y)]
        text.append(f"  {MARKS[number % len(MARKS)]} ", style=COLOURS[number % len(COLOURS)])
        final = f", last {curve.ys[-1]:.4g}" if curve.ys else ""
        lost = f"; not finite {len(not_finite)} times, first at {not_finite[0]:g}" if not_finite else ""
        text.append(f"{curve.label}{final}{lost}\n")
    return text


def widen_range(low, high):
    """Return the range, enlarged if it is only rounding: logs round to six digits, so a rate is 0.01 or 0.0099999998."""
    if high - low > 1e-5 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) * 0.05 or 1.0
    return low - margin, high + margin


def _plot_curve(grid, points, number, across, up):
    """Draw straight lines between `points` into `grid`: one cell per column, several where a line is steep."""
    rows, columns = len(grid), len(grid[0])
    (first, last), (low, high) = across, up
    places = sorted((round((x - first) / (last - first) * (columns - 1)) if last > first else 0,
                     round((high - y) / (high - low) * (rows - 1))) for x, y in points)
    for (x, y), (to_x, to_y) in zip(places, [*places[1:], *places[-1:]]):
        grid[y][x] = number
        for column in range(x, to_x + 1):
            span = max(1, to_x - x)
            here = y + (to_y - y) * (column - x) / span
            beyond = y + (to_y - y) * min(1, (column + 1 - x) / span) if to_x > x else to_y
            low_row, high_row = sorted((round(here), round(beyond)))
            for row in range(low_row, max(low_row + 1, high_row)):
                grid[row][column] = number


def histogram(counts, low, high, width, utf8=True):
    """Return the lines of a histogram: for each bin its lower edge, a bar, and its count."""
    most = max(max(counts), 1)
    step = (high - low) / len(counts)
    edges = [f"{low + i * step:.3g}" for i in range(len(counts))]
    label_width, numbers = max(map(len, edges)), max(len(str(count)) for count in counts)
    columns = max(4, width - label_width - numbers - 3)
    for edge, count in zip(edges, counts):
        eighths = round(count / most * columns * 8)
        if utf8:
            bar = "█" * (eighths // 8) + (BAR_EIGHTHS[eighths % 8] if eighths % 8 else "")
            bar = bar or ("▏" if count else "")
        else:
            bar = "#" * round(eighths / 8) or ("." if count else "")
        yield f"{edge:>{label_width}} {bar:<{columns}} {count:>{numbers}}"
