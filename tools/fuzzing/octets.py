"""Mutations of binary files: bits and bytes, lengths, and the fields of protobuf's wire format."""

BYTES = (0, 1, 0x7F, 0x80, 0xFF)
NUMBERS = (0, 1, 2, 3, 255, 4096, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1)


def mutate(data, rng):
    """Return `data` changed in one to eight places, without regard to its format."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        # What says how the rest is to be read is in front as a rule.
        at = min(at, rng.choice((16, 128, 1024, len(data), len(data))))
        kind = rng.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and at < len(data):
            data[at] = rng.choice(BYTES)
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == 4:
            del data[at:at + rng.choice((1, 4, 8, 100))]
        elif kind == 5:
            width = rng.choice((2, 4, 8))
            value = rng.choice(NUMBERS) & (1 << 8 * width) - 1
            data[at:at + width] = value.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 6:
            end = at + rng.choice((4, 32, 300))
            data[at:at] = data[at:end]
        else:
            other = rng.randrange(len(data) + 1)
            data[at:at + 16] = data[other:other + 16]
    return bytes(data)


def mutate_wire(data, rng):
    """Return a serialized message with fields changed, the lengths around them corrected in most cases."""
    fields = _parse(data, 0)
    if fields is None or not fields:
        return mutate(data, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change(fields, rng)
    data = _write(fields, rng if rng.random() < 0.1 else None)
    return mutate(data, rng) if rng.random() < 0.15 else data


def _parse(data, depth):
    """Return fields as lists [number, wire, value], nested where the bytes look like a message; None if they do not."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag is None or not tag >> 3 or tag >> 3 > 500:
            return None
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value = data[at:at + size] if size is not None and at + size <= len(data) else None
            at += size or 0
            inner = _parse(value, depth + 1) if value and depth < 5 and len(value) < 10_000 else None
            value = inner if inner else value
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            value = data[at:at + width]
            at += width
        else:
            return None
        if value is None or at > len(data):
            return None
        fields.append([tag >> 3, wire, value])
    return fields


def _change(fields, rng):
    """Change one field, here or further inside."""
    if not fields:
        fields.append([rng.randrange(1, 12), 0, rng.choice(NUMBERS)])
        return
    index = rng.randrange(len(fields))
    field = fields[index]
    if isinstance(field[2], list) and rng.random() < 0.8:
        _change(field[2], rng)
        return
    kind = rng.randrange(7)
    if kind == 0:
        del fields[index]
    elif kind == 1:
        for _ in range(rng.choice((1, 2, 40))):
            fields.insert(index, [field[0], field[1], field[2]])
    elif kind == 2:
        field[0] = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 100, rng.randrange(1, 400)))
    elif kind == 3:
        fields.append(fields.pop(index))
    elif field[1] == 0:
        field[2] = rng.choice(NUMBERS)
    elif isinstance(field[2], list):
        fields[index] = [field[0], 0, rng.choice(NUMBERS)]
    else:
        field[2] = mutate(field[2], rng) if field[1] == 2 else rng.randbytes(len(field[2]))


def _write(fields, rng):
    """Return the bytes of fields; with `rng` some lengths are wrong."""
    out = bytearray()
    for number, wire, value in fields:
        out += _bytes_of(number << 3 | wire)
        if wire == 0:
            out += _bytes_of(value)
            continue
        value = _write(value, rng) if isinstance(value, list) else value
        if wire == 2:
            size = rng.choice((len(value), len(value) + 1, *NUMBERS)) if rng is not None and rng.random() < 0.3 else len(value)
            out += _bytes_of(size)
        out += value
    return bytes(out)


def _varint(data, at):
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return None, at


def _bytes_of(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
