"""NCCL: the calls of nccl4py, on simulated GPUs, with a library of our own in NCCL's place (fake_nccl.cpp)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from cplusplus import compiler
from test_distribute import LAST, MLP, NET, SHARED, assert_same, folder, make, train  # noqa: F401 (a fixture)

import minicaffe

pytestmark = pytest.mark.slow(17)    # all together

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """The environment in which nccl4py finds the fake NCCL, and each process two simulated GPUs."""
    pytest.importorskip("nccl.core", reason="nccl4py is not installed: pip install nccl4py")
    path = tmp_path_factory.mktemp("fake") / "libnccl.so.2"
    subprocess.run([*compiler(), "-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", str(HERE / "fake_nccl.cpp"), "-o", str(path)], check=True)
    return {"LD_PRELOAD": str(path), "MINICAFFE_DEVICE": "sim", "MINICAFFE_SIM": "devices=2,race=1", "FAKE_NCCL_SECONDS": "10"}


def own_gpu(together=True):
    """Let each rank compute on a GPU of its own; return its rank."""
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    minicaffe.set_device(rank if together else 0)
    return rank


@pytest.mark.parametrize("solver, graph", [('type: "SGD" momentum: 0.9', True), ('type: "Adam" momentum: 0.9 iter_size: 2 clip_gradients: 0.5', False)])
def test_nccl_training_equals_one_process(fake, folder, tmp_path, solver, graph):  # noqa: F811
    alone = train(folder, 8, solver, SHARED, 12, together=False)
    together = ranks.run(2, __file__, "train_on_gpus", folder, solver, FAKE_NCCL_LOG=str(tmp_path / "calls"), **fake)
    assert_same([found for found, _ in together], alone)
    calls = (tmp_path / "calls").read_text().split("\n")[:-1]
    # By two ranks, in each iteration or until one is recorded: all parameters but the second bias, which learns nothing, in one group.
    assert len(calls) == 2 * (3 if graph else 12) * 4 and all(call.startswith("allreduce ") and call.endswith(" of 4") for call in calls)
    for _, said in together:
        assert ("an iteration is recorded" in said) == graph and "recording failed" not in said


def train_on_gpus(folder, solver):  # noqa: F811
    said = ranks.heard("minicaffe.net.recorded", "DEBUG")
    own_gpu()
    return train(folder, 4, solver, SHARED, 12, how={"carrier": "nccl"}), "\n".join(said)


def test_command_trains_by_nccl(fake, folder, tmp_path):  # noqa: F811
    net = (NET + MLP + LAST) % {"folder": folder, "batch": 4}
    (tmp_path / "solver.prototxt").write_text(f'base_lr: 0.1 lr_policy: "fixed" max_iter: 4 display: 4 snapshot_prefix: "{tmp_path}/m" net_param {{ {net} }}')
    status, output, errors = ranks.command(2, "train", "solver.prototxt", "--carrier", "nccl", "--gpu", "0,1", folder=tmp_path, **fake)
    assert status == 0 and "learning rate not scaled; gradients are sent by NCCL" in output + errors, errors[-3000:]
    status, output, errors = ranks.command(2, "train", "solver.prototxt", "--carrier", "nccl", "--gpu", "1", folder=tmp_path, **fake)
    assert status == 2 and "carrier: NCCL cannot carry the gradients: rank 0 of 2" in errors and "on the same GPU" in errors, errors[-3000:]


def test_rank_without_graph_beside_replay(fake, folder):  # noqa: F811
    alone = train(folder, 8, 'type: "SGD" momentum: 0.9', MLP, 6, together=False)
    together = ranks.run(2, __file__, "one_records", folder, **fake)
    assert_same([found for found, _ in together], alone)
    assert "an iteration is recorded" in together[0][1] and "recording failed: cuGraphInstantiate" in together[1][1]


def one_records(folder):  # noqa: F811
    import ctypes

    from minicaffe import sim
    said = ranks.heard("minicaffe.net.recorded", "DEBUG")
    if own_gpu() == 1:
        ctypes.CDLL(sim.library()).mcsim_configure(b"fail=cuGraphInstantiateWithFlags:1")
    return train(folder, 4, 'type: "SGD" momentum: 0.9', MLP, 6, how={"carrier": "nccl"}), "\n".join(said)


def test_single_process_graph_not_replayed_together(fake, folder):  # noqa: F811
    first, second = ranks.run(2, __file__, "joins_late", folder, **fake)
    assert first == second


def joins_late(folder):  # noqa: F811
    own_gpu()
    solver = make(folder, 4, 'type: "SGD"', MLP)
    solver.step(4)
    assert solver.training_step.recorded.graph is not None
    solver.distribute(carrier="nccl")
    solver.step(4)
    assert solver.training_step.recorded.graph is not None
    return [blob.data.tolist() for blob in solver.net.learnable_params]


def test_exchange_chosen_alike_and_traced(fake, folder):  # noqa: F811
    for said in ranks.run(2, __file__, "choose", folder, **fake):
        assert said["default"].startswith("Gradients are sent by MPI, during backward: NCCL finds no simulated device (rank 0 of 2")
        assert said["nccl"] == "Gradients are sent by NCCL"
        assert "and rank 1 of 2" in said["one GPU"] and "compute on the same GPU, 0000:01:00.0," in said["one GPU"]
        assert "gradients are sent in bf16" in said["bf16"] and "one of mpi, nccl" in said["unknown"]
        assert "nets compute on the CPU (rank 1 of 2" in said["cpu on rank 1"]
        assert said["trace"] == [["ip[0] diff, ip[1] diff, second[0] diff, second[1] diff", True]]


def choose(folder):  # noqa: F811
    from minicaffe.addons import trace
    from minicaffe.errors import ConfigError
    from minicaffe.parallel import transport
    from minicaffe.parallel.group import Group
    said = ranks.heard("minicaffe.parallel.transport", "INFO")
    rank, group = own_gpu(), Group()

    def attempt(*arguments):
        try:
            transport.make_transport(group, *arguments)
        except ConfigError as error:
            return str(error)
        return said[-1]

    found = {"default": attempt(), "nccl": attempt("nccl"), "bf16": attempt("nccl", True)}
    try:
        make(folder, 4, 'type: "SGD"', MLP).distribute(carrier="gloo")
    except ConfigError as error:
        found["unknown"] = str(error)
    solver = make(folder, 4, 'type: "SGD"', MLP)
    solver.distribute(carrier="nccl")
    solver.step(1)
    with trace.record(solver) as made:
        solver.step(1)
    found["trace"] = [[event.name, event.took > 0] for event in made.events if event.kind == "travel"]
    own_gpu(together=False)
    found["one GPU"] = attempt("nccl")
    if rank == 1:
        minicaffe.set_mode_cpu()
    found["cpu on rank 1"] = attempt("nccl")
    return found


def test_transport_adds_and_reports_nccl_errors(fake):
    found = ranks.run(2, __file__, "communicate", **{**fake, "FAKE_NCCL_SECONDS": "2"})
    for one in found:
        assert one["sum"] == [1.0, 5.0]
        assert "invalid usage" in one["same GPU"]
        assert "a GPU of its own" in one["same GPU"] and "NCCL: " in one["alone"] and "on device -1" in one["host memory"]
        assert "nets compute on the CPU" in one["cpu"] and "invalid argument" in one["uid"] and one["bytes"] == 128


def communicate():
    from minicaffe.blob import Blob, Dtype
    from minicaffe.errors import ConfigError, DeviceError
    from minicaffe.parallel import nccl
    from minicaffe.parallel.group import Group
    rank, group = own_gpu(), Group()

    def uid():
        return group.broadcast_from_root(nccl.new_uid() if rank == 0 else None)

    def refused(call):
        try:
            call()
        except (ConfigError, DeviceError) as error:
            return str(error)

    transport, found = nccl.NcclTransport(2, rank, uid()), {"bytes": len(uid())}
    blobs = [Blob((3,)), Blob((5,), Dtype.DOUBLE)]
    for i, blob in enumerate(blobs):
        blob.data[...] = 2 * i + rank
        blob.scale_data(1)      # on the GPU
    transport.computing.wait(transport.sum([blob.mutable_gpu_data for blob in blobs]))
    for blob in blobs:
        blob.scale_data(1)      # reads it there
    found["sum"] = [float(blob.cpu_data[-1]) for blob in blobs]
    found["host memory"] = refused(lambda: transport.sum([Blob((3,)).data]))
    transport.comm.destroy()
    found["uid"] = refused(lambda: nccl.NcclTransport(2, rank, b"\x01" * 128))
    found["alone"] = refused(lambda: nccl.NcclTransport(2, 0, nccl.new_uid()))
    own_gpu(together=False)
    found["same GPU"] = refused(lambda: nccl.NcclTransport(2, rank, uid()))
    minicaffe.set_mode_cpu()
    found["cpu"] = refused(lambda: nccl.NcclTransport(1, 0, nccl.new_uid()))
    return found


@pytest.mark.slow(5)
def test_every_attempt_of_machine(fake):
    done = subprocess.run([sys.executable, ROOT / "tools/nccl_check.py", "--iterations", "1", "--batch", "1"], capture_output=True, text=True,
                          env={**os.environ, **ranks.ENVIRONMENT, **fake}, timeout=ranks.SECONDS)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and [len(found[kind]) for kind in ("tried", "failed", "not_tried")] == [2, 0, 0], done.stdout
