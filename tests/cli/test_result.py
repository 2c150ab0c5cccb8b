"""The result that ``minicaffe train`` prints: random trainings, whose lines are made again by plain code."""

import random
import re
from types import SimpleNamespace

import pytest
from tiny import own_solver

from minicaffe.cli import records
from minicaffe.cli.records import Result


@pytest.mark.parametrize("seed", range(40))
def test_lines_of_a_result(seed, monkeypatch):
    dice = random.Random(seed)
    last, stopped, images = dice.choice([30, 40]), dice.random() < 0.5, dice.choice([None, 64])
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: images)
    best = None
    if dice.random() < 0.4:
        best = SimpleNamespace(exhausted=dice.random() < 0.5, reason=lambda: "no better", lines=lambda: ["best test"], patience=3)
    solver = SimpleNamespace(iter=10, smoothed_loss=0.125, best=best, param=SimpleNamespace(max_iter=40, snapshot_after_train=dice.random() < 0.5))
    result = Result()
    result.on_start(solver)
    outputs = [{"name": "loss", "value": 0.5, "loss_weight": 2.0}, {"name": "right", "value": 0.75, "loss_weight": 0.0}]
    texts = ["loss = 0.5 (* 2 = 1 loss)", "right = 0.75"]
    shown, snapshots, wanted = {}, [], []
    for iteration in range(11, last + 1):
        solver.iter = iteration
        if dice.random() < 0.1:
            result.on_display(solver, {"iteration": iteration, "outputs": outputs})
            shown["train"] = iteration
        for number in (1, 0) if dice.random() < 0.1 else ():
            result.on_test(solver, {"net": number, "iteration": iteration, "outputs": outputs, "loss": dice.choice([None, 1.0])})
            shown[number] = iteration, result.tests[number]["loss"]
        if dice.random() < 0.1:
            snapshots.append((f"m{iteration}", f"s{iteration}", iteration))
            for _ in range(2):      # written twice, as the last iteration's may be
                result.on_snapshot(solver, f"m{iteration}", f"s{iteration}")
    result.on_end(solver, stopped)
    result.seconds = 4.0
    result.log_path = dice.choice([None, "a b.log"])

    def at(iteration):
        return "" if iteration == last else f" (at iteration {iteration})"

    impatient = stopped and best is not None and best.exhausted
    wanted.append(f"{'Stopped' if stopped else 'Finished'} at iteration {last} of 40{': no better' if impatient else ''}")
    wanted.append(f"time: 4.0 s for {last - 10} iterations{f', {16 * (last - 10)} images/s' if images else ''} (with tests and snapshots)")
    if "train" in shown:
        wanted += ["smoothed loss = 0.125", *(f"train {text}{at(shown['train'])}" for text in texts)]
    for number in (0, 1) if 0 in shown else ():
        iteration, loss = shown[number]
        wanted += [*(f"test net {number} {text}{at(iteration)}" for text in texts), *([f"test net {number} total loss = 1{at(iteration)}"] if loss else [])]
    wanted += ["best test"] if best else []
    wanted += [f"wrote {path}" for model, state, _ in snapshots for path in (model, state)]
    wanted += ["wrote a b.log; draw it: minicaffe plot 'a b.log'"] if result.log_path else []
    if stopped and snapshots:
        _, state, iteration = snapshots[-1]
        wanted.append(f"resume with more patience: from {state} --patience=6" if impatient else f"resume{at(iteration)} with: from {state}")
    elif stopped and not solver.param.snapshot_after_train:
        wanted.append("wrote no snapshot: snapshot_after_train is false")
    assert list(result.lines(solver, lambda state, *more: " ".join(["from", state, *more]))) == wanted
    assert not re.search("nan|None", " ".join(wanted))


@pytest.mark.parametrize("end, rate", [(7.5, ", 32 images/s"), (5.0, "")])
def test_time_of_a_training(monkeypatch, end, rate):
    moments = iter([5.0, end])
    monkeypatch.setattr(records.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: 4)
    solver, result = SimpleNamespace(iter=10, best=None, param=SimpleNamespace(max_iter=30)), Result()
    result.on_start(solver)
    solver.iter = 30
    result.on_end(solver, False)
    assert list(result.lines(solver, None)) == ["Finished at iteration 30 of 30", f"time: {end - 5:.1f} s for 20 iterations{rate} (with tests and snapshots)"]


def test_speed_counts_all_batches(folder):
    solver, result = own_solver(), Result()
    solver.param.iter_size, solver.iter = 3, 25
    result.first_iter, result.seconds = 5, 2.0
    assert "20 iterations, 240 images/s" in list(result.lines(solver, None))[1]  # 8 pictures, 3 batches, 20 iterations, 2 seconds
