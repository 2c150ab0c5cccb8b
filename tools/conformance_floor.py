"""Compare a run of the conformance cases with what passed before: no case may get worse.

    python run.py --json results.json; python tools/conformance_floor.py results.json

A failure is an error (exit status 1).
"""

import json
import sys

with open(sys.argv[1]) as file:
    cases = json.load(file)["cases"]
failed = [case for case in cases if not case["passed"]]
for case in failed:
    print(f"{case['name']}: {case['problems'][0]}")
print(f"conformance: {len(cases) - len(failed)} of {len(cases)} cases pass")
sys.exit(1 if failed or not cases else 0)
