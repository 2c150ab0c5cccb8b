"""Fetch a file over HTTP: resumed after a broken connection, checked, and renamed only when complete."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from minicaffe.errors import ConfigError, DataError, FileError

ATTEMPTS = 3  # connections that may break off in one run; the next run resumes too
TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 16


def fetch(url, path, checksum, progress=None):
    """Download `url`, http or https, to `path` unless it is there already.

    The bytes gather in ``<path>.part``; a later call continues from there (HTTP Range). `checksum` is ``"sha256:<hex>"`` or
    ``"md5:<hex>"``; ``progress(bytes done, bytes in all or None)`` is called during the download. Raises FileError if the server
    cannot be reached, refuses or breaks off, or the file cannot be written; DataError if the checksum is another, and removes the
    file.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"must start with http:// or https://, got '{url}'", field="url")
    path = Path(path)
    if path.exists():
        check(path, checksum)
        return
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(ATTEMPTS):
            total = _receive(url, part, progress)
            if total is None or part.stat().st_size >= total:
                break
        else:
            raise FileError(
                f"the connection broke off after {part.stat().st_size} of {total} bytes; the same command resumes",
                file=url,
            )
        check(part, checksum, origin=url)
        part.replace(path)
    except urllib.error.HTTPError as error:
        raise FileError(
            f"the server answers {error.code} {error.reason}; try --url BASE, or --from DIR with files you have",
            file=url,
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise FileError(f"cannot be reached: {reason}; --from DIR uses files you have", file=url) from error
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", file=str(path)) from error


def _receive(url, part, progress):
    """Append the bytes of one connection to `part`; return the size of the whole file, None if the server does not send it."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # The server has no further bytes: the file is complete, or another one, which the checksum shows.
        error.close()
        return have
    with response:
        if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # the server starts over
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            try:
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    if progress:
                        progress(file.tell(), total)
            except (http.client.IncompleteRead, ConnectionError, TimeoutError):
                if total is None:
                    raise  # otherwise the size shows that the connection broke off
        return total


def check(path, checksum, origin=None):
    """Raise DataError, and remove the file if it was just fetched from `origin`, unless `path` has the checksum."""
    kind, _, expected = checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        if origin:
            os.unlink(path)
        raise DataError(
            f"has {kind} {found}, expected {expected}; "
            + ("it was removed: try again or another --url" if origin else "it is another file or damaged: remove it"),
            file=origin or str(path),
        )
