"""Facts about the processor, from /proc/cpuinfo (Linux)."""


def cpuinfo_value(*labels):
    """Return the first value in /proc/cpuinfo with one of these labels; an empty string if there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            facts = (line.partition(":") for line in file)
            return next((value.strip() for label, _, value in facts if label.strip() in labels), "")
    except OSError:  # not Linux
        return ""
