"""What the processor is, as far as Linux reports it."""


def cpu_fact(*labels):
    """Return the first value of a line of /proc/cpuinfo with one of these labels; an empty text where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            facts = (line.partition(":") for line in file)
            return next((value.strip() for label, _, value in facts if label.strip() in labels), "")
    except OSError:  # not Linux
        return ""
