"""Compare a run of the conformance cases with what passed before: no case may get worse.

    python run.py --json results.json; python tools/conformance_floor.py results.json

A failure is an error (exit status 1). From Python 3.13 on plyvel has no wheels (tests/requirements.txt): there a case that needs it
counts as not run.
"""

import importlib.util
import json
import sys

with open(sys.argv[1]) as file:
    cases = json.load(file)["cases"]
problems = {case["name"]: case["problems"][0] for case in cases if not case["passed"]}
for name, problem in problems.items():
    print(f"{name}: {problem}")
without = sys.version_info >= (3, 13) and importlib.util.find_spec("plyvel") is None
not_run = [name for name, problem in problems.items() if without and problem.startswith("DependencyError") and "plyvel" in problem]
failed = problems.keys() - set(not_run)
print(f"conformance: {len(cases) - len(problems)} of {len(cases)} cases pass", *[f"({len(not_run)} need plyvel)"] * bool(not_run))
sys.exit(1 if failed or not cases else 0)
