"""A folder with the log and the records of trainings."""

import json

import pytest
from tiny import LINES


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "a.log").write_text("".join(LINES))
    records = [{"event": "train", "time": 5.0 + i, "iteration": 5 * i, "lr": 0.1, "loss": 1.0,
                "outputs": [{"name": "loss", "value": None if i == 3 else 1 / (i + 1)}]} for i in range(4)]
    samples = [{"layer": "ip", "parameter": "ip[0]", "norm": 0.5, "zeros": 0.0}, {"layer": "ip", "blob": "ip", "norm": 3.0, "zeros": 0.5}]
    records.insert(1, {"event": "watch", "time": 5.5, "iteration": 0, "samples": samples})
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path
