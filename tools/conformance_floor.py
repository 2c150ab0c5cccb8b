"""Compare a run of the conformance cases with what passed before: no case may get worse.

    python run.py --json results.json; python tools/conformance_floor.py results.json

Cases of layer types that do not exist yet are listed below by type, at present none; any other failure is an error (exit
status 1).
"""

import json
import sys

NOT_YET = set()

with open(sys.argv[1]) as file:
    cases = json.load(file)["cases"]
failed = [case for case in cases if not case["passed"]]
worse = [case for case in failed if not NOT_YET & set(case["layers"])]
for case in worse:
    print(f"{case['name']}: {case['problems'][0]}")
waiting = f"; {len(failed) - len(worse)} of the rest need {', '.join(sorted(NOT_YET))}" if NOT_YET else ""
print(f"conformance: {len(cases) - len(failed)} of {len(cases)} cases pass{waiting}; {len(worse)} are faults")
sys.exit(1 if worse or not cases else 0)
