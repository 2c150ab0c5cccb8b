"""Training steps of whole nets on a GPU against PyTorch's; see gpu.py."""

import os
from pathlib import Path

import numpy as np
from turns import best, peers_of, sync_all, turns

ROOT = Path(__file__).resolve().parent.parent.parent


def sgd_solver(net, batch=None):
    """Return a solver for a NetParameter: SGD, momentum 0.9, weight decay 5e-4."""
    from minicaffe.proto import caffe_pb2
    from minicaffe.solver import create_solver
    for made in net.layer:
        if made.type == "Data" and batch:
            made.data_param.batch_size = batch
    param = caffe_pb2.SolverParameter(type="SGD", base_lr=0.01, lr_policy="fixed", momentum=0.9, weight_decay=5e-4,
                                      max_iter=1 << 30, snapshot_after_train=False, random_seed=1)
    param.net_param.CopyFrom(net)
    return create_solver(param)


def torch_steps(torch, net, arrays, labels, channels_last=False):
    """{name: a function that does one training step of the module `net`, data copied from page-locked host memory}."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    data, label = torch.from_numpy(arrays).pin_memory(), torch.from_numpy(labels).pin_memory()
    made = {}
    for name, how in ("fused", {"fused": True}), ("foreach", {"foreach": True}):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, **how)

        def step(optimizer=optimizer):
            optimizer.zero_grad(set_to_none=True)
            x = data.cuda(non_blocking=True).contiguous(memory_format=layout)
            net(x, label.cuda(non_blocking=True)).backward()
            optimizer.step()

        made[f"torch eager, {name}"] = step
    return made, data, label


def torch_graph(torch, net, data, label):
    """Return a function that replays a whole step as a CUDA graph, after copying the data to the place it reads."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)
    x, y = data.cuda(), label.cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            net(x, y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        net(x, y).backward()
        optimizer.step()

    def step():
        x.copy_(data, non_blocking=True)
        y.copy_(label, non_blocking=True)
        graph.replay()

    return step


def lenet(options, rows):
    """A training step of LeNet, batch 64, data on the host. Ours reads the loss after every step, PyTorch does not."""
    from bench import without_data

    from minicaffe import cuda
    from minicaffe.net.net import read_net
    from minicaffe.proto import caffe_pb2
    modules, missing = peers_of(options, "torch")
    sync = sync_all(modules)
    os.chdir(ROOT)
    batch = 4 if options.device == "sim" else 64
    path = "models/lenet/net.prototxt"
    database = sgd_solver(read_net(path, caffe_pb2.TRAIN)[0], batch)
    inputs = sgd_solver(without_data(path, batch))
    random = np.random.default_rng(0)
    arrays = random.random((batch, 1, 28, 28), np.float32)
    labels = random.integers(0, 10, batch)
    blobs = inputs.net.input_blobs

    def fed():
        for blob, values in zip(blobs, (arrays, labels)):
            blob.data[...] = values
        inputs.step(1)

    runners = {"minicaffe": lambda: database.step(1), "minicaffe, arrays fed from Python": fed}
    for run in runners.values():
        for _ in range(5):
            run()
    before = cuda.current().launches
    database.step(1)
    launches = cuda.current().launches - before
    if "torch" in modules:
        torch = modules["torch"]
        from to_torch import TorchNet
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        steps, data, label = torch_steps(torch, TorchNet(inputs.net).cuda(), arrays, labels)
        runners.update(steps)
        try:
            runners["torch graph"] = torch_graph(torch, TorchNet(inputs.net).cuda(), data, label)
        except Exception as error:
            missing["torch graph"] = f"{type(error).__name__}: {error}"[:200]
    times = turns(runners, sync, options.rounds, 0.1)
    mine = times["minicaffe"]
    eager = min((t for n, t in times.items() if n.startswith("torch eager")), default=None)
    graph = times.get("torch graph")
    rows.add(f"LeNet training step, batch {batch}, from its database", 1e6 * mine, "us",
             {**{n: 1e6 * t for n, t in times.items() if n != "minicaffe"}, **missing},
             "0.25x PyTorch eager, 1.0x PyTorch with CUDA graphs",
             None if eager is None else mine <= 0.25 * eager and (graph is None or mine <= graph),
             ratio_eager=mine / eager if eager else None, ratio_graph=mine / graph if graph else None,
             launches_outside_of_the_graph=launches, loss=float(database.smoothed_loss))


def resnet(options, rows):
    """A training step of ResNet-50 against torchvision's, channels-last, cudnn.benchmark, TF32 on both; the peak of memory."""
    from resnet import STAGES, resnet50

    from minicaffe.memory import CUDAPlace
    from minicaffe.memory.registry import registry
    modules, missing = peers_of(options, "torch")
    sync = sync_all(modules)
    batch, size, classes = (1, 32, 10) if options.device == "sim" else (options.batch, 224, 1000)
    stages = ((8, 1), (8, 2)) if options.device == "sim" else STAGES
    solver = sgd_solver(resnet50(batch, size, classes, "Input", stages))
    random = np.random.default_rng(0)
    arrays = random.standard_normal((batch, 3, size, size), np.float32)
    labels = random.integers(0, classes, batch)
    for blob, values in zip(solver.net.input_blobs, (arrays, labels)):
        blob.data[...] = values

    def fed():
        """PyTorch's step copies its batch from the host, so ours does too."""
        for blob, values in zip(solver.net.input_blobs, (arrays, labels)):
            blob.data[...] = values
        solver.step(1)

    runners = {"minicaffe": fed}
    for _ in range(4):
        fed()
    if "torch" in modules:
        torch = modules["torch"]
        try:
            import torchvision
            torch.backends.cudnn.benchmark = True
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
            torch.cuda.reset_peak_memory_stats()

            class Loss(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.net = torchvision.models.resnet50(weights=None, num_classes=classes)

                def forward(self, x, label):
                    return torch.nn.functional.cross_entropy(self.net(x), label)

            net = Loss().cuda().to(memory_format=torch.channels_last)
            runners.update(torch_steps(torch, net, arrays, labels, channels_last=True)[0])
        except Exception as error:
            missing["torchvision"] = f"{type(error).__name__}: {error}"[:200]
    times = turns(runners, sync, min(options.rounds, 5), 0.3)
    mine, peer = times["minicaffe"], best(times, ("torch",))
    rows.add(f"ResNet-50 training step, batch {batch}", 1e3 * mine, "ms",
             {**{n: 1e3 * t for n, t in times.items() if n != "minicaffe"}, **missing},
             "1.0x PyTorch eager channels-last with cudnn.benchmark", None if peer is None else mine <= peer,
             ratio=mine / peer if peer else None, images_per_second=batch / mine, loss=float(solver.smoothed_loss))
    stats = registry.allocator(CUDAPlace(0)).stats()
    ours = float(getattr(stats, "peak_reserved", stats.reserved))
    theirs = float(modules["torch"].cuda.max_memory_reserved()) if peer else None
    rows.add("ResNet-50, peak of reserved device memory", ours / 2**20, "MiB",
             {"torch": theirs / 2**20} if theirs else missing, "below PyTorch's max_memory_reserved",
             None if theirs is None else ours < theirs, peak_live=stats.peak / 2**20)
