"""Answers to chapter 8."""


def round_up(nbytes, grain):
    return -(-nbytes // grain) * grain


def buddy_of(offset, size):
    return offset ^ size


def best_fit(free, nbytes):
    fitting = [(size, offset) for offset, size in free if size >= nbytes]
    return min(fitting)[1] if fitting else None


def join(free):
    joined = []
    for offset, size in free:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((offset, size))
    return joined
