"""Answers to chapter 2."""


def next_head(head, call):
    here, there = ("HEAD_AT_CPU", "HEAD_AT_GPU") if "cpu" in call else ("HEAD_AT_GPU", "HEAD_AT_CPU")
    copied = head == there
    if head == "UNINITIALIZED" or "mutable" in call:
        return here, copied
    return ("SYNCED" if copied else head), copied


def copies(calls):
    head, total = "UNINITIALIZED", 0
    for call in calls:
        head, copied = next_head(head, call)
        total += copied
    return total


def mean(blob):
    return blob.cpu_data.mean()
