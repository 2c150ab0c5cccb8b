"""tools/five_users.py: the five users pass."""

import five_users
import pytest


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", five_users.USERS)
def test_a_user(name):
    for package in ("cv2", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    lines = []
    assert five_users.play(name, lines.append).commands == len(lines) - 1 > 5
