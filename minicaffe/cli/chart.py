"""Histograms and sparklines of characters, for terminals of any kind."""

BAR_EIGHTHS = " ▏▎▍▌▋▊▉█"
BLOCKS = "▁▂▃▄▅▆▇█"  # of sparklines
PLAIN_BLOCKS = "_.-=+*#@"  # for terminals without UTF-8


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
