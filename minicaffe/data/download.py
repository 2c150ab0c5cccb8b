"""Fetch a file over HTTP: its checksum is compared, and it is renamed only when complete."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from minicaffe.errors import ConfigError, DataError, FileError

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 16


def fetch(url, path, checksum, progress=None):
    """Download `url`, http or https, to `path` unless it is there already.

    `checksum` is ``"sha256:<hex>"`` or ``"md5:<hex>"``; ``progress(bytes done, bytes in all or None)`` is called during the
    download. Raises FileError if the server cannot be reached, refuses or breaks off, or the file cannot be written; DataError if
    the checksum is another. Then there is no new file.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"must start with http:// or https://, got '{url}'", field="url")
    path = Path(path)
    if path.exists():
        _check(path, checksum, path, "it is another file or damaged: remove it")
        return
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, part.open("wb") as file:
            total = response.length
            while chunk := response.read(CHUNK):
                file.write(chunk)
                if progress:
                    progress(file.tell(), total)
            if total is not None and file.tell() < total:
                raise FileError(f"the connection broke off after {file.tell()} of {total} bytes; try again", file=url)
        _check(part, checksum, url, "try again or another --url")
        part.replace(path)
    except urllib.error.HTTPError as error:
        raise FileError(f"the server answers {error.code} {error.reason}; try --url BASE, or --from DIR with files you have",
                        file=url) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise FileError(f"cannot be reached: {reason}; --from DIR uses files you have", file=url) from error
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", file=str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def _check(path, checksum, name, remedy):
    """Raise DataError unless the file `path` has the checksum; the error names `name`, the file or the address, and `remedy`."""
    kind, _, expected = checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        raise DataError(f"has {kind} {found}, expected {expected}; {remedy}", file=str(name))
