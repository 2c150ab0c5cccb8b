"""Single operations of minicaffe on a GPU against PyTorch's and CuPy's; see gpu.py."""

import math
import statistics

import numpy as np
from turns import best, host_time, peers_of, sync_all, turns


def blob_of(array):
    from minicaffe.blob import Blob
    blob = Blob(array.shape)
    blob.data[...] = array
    return blob


def layer(kind, bottom, top, **fields):
    """Return a layer of a type, set up."""
    from minicaffe.layer import layer_class
    from minicaffe.proto import caffe_pb2
    made = layer_class(kind)(caffe_pb2.LayerParameter(name=kind.lower(), type=kind, phase=caffe_pb2.TRAIN, **fields))
    made.set_up(bottom, top)
    return made


def pointwise(options, rows):
    """ReLU, the fused update and three tensors, as a share of the bandwidth of a copy."""
    from cuda.bindings import driver

    from minicaffe import cuda
    from minicaffe.blob import Blob
    from minicaffe.solver.update import Rule, update_params
    modules, missing = peers_of(options, "torch", "cupy")
    torch, cupy = modules.get("torch"), modules.get("cupy")
    sync = sync_all(modules)
    n = 4096 if options.device == "sim" else options.mib * (1 << 20) // 4
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(n, np.float32) for _ in range(3)]
    x, w, history = [blob_of(a) for a in arrays]
    y, out = Blob((n,)), Blob((n,))
    source, target = x.gpu_data.address, y.mutable_gpu_data.address
    stream = cuda.current().compute_stream
    copies = {"driver": lambda: driver.cuMemcpyDtoDAsync(target, source, 4 * n, stream)}
    if torch:
        tensors = [torch.from_numpy(a).cuda() for a in arrays]
        tx, tw, tg = tensors
        ty = torch.empty_like(tx)
        copies["torch"] = lambda: ty.copy_(tx)
    if cupy:
        cx, cw, ch = [cupy.asarray(a) for a in arrays]
        cy, cg = cupy.empty_like(cx), cupy.asarray(arrays[2])
    times = turns(copies, sync, options.rounds)
    bandwidth = 8 * n / min(times.values())
    rows.add("device-to-device copy", bandwidth / 1e9, "GB/s", {k: 8 * n / v / 1e9 for k, v in times.items()}, bytes=4 * n)

    def row(what, runners, moved):
        times = turns(runners, sync, options.rounds)
        mine = times["minicaffe"]
        share = moved * 4 * n / mine / bandwidth
        peer = best(times, ("torch", "cupy"))
        rows.add(what, 1e3 * mine, "ms", {**{k: 1e3 * v for k, v in times.items() if k != "minicaffe"}, **missing},
                 "90% of the copy's bandwidth, not slower than the peers", share >= 0.9 and (peer is None or mine <= peer),
                 share_of_copy=share, ratio=mine / peer if peer else None, bytes_per_tensor=4 * n)
        print(f"    {100 * share:.1f}% of the copy's bandwidth" + (f", {mine / peer:.3f}x the best peer" if peer else ""))

    relu = layer("ReLU", [x], [y])
    runners = {"minicaffe": lambda: relu.forward_gpu([x], [y])}
    if torch:
        runners["torch"] = lambda: torch.clamp_min(tx, 0, out=ty)
        runners["torch relu"] = lambda: torch.relu(tx)
    if cupy:
        runners["cupy"] = lambda: cupy.maximum(cx, 0, out=cy)
    row("ReLU forward", runners, 2)

    y.diff[...] = arrays[1]
    runners = {"minicaffe": lambda: relu.backward_gpu([y], [True], [x])}
    if torch:
        runners["torch"] = lambda: torch.mul(tx, tw, out=ty)
        runners["torch threshold_backward"] = lambda: torch.ops.aten.threshold_backward(tw, tx, 0)
    if cupy:
        backward = cupy.ElementwiseKernel("T dy, T x", "T dx", "dx = x > 0 ? dy : T(0)", "relu_backward")
        runners["cupy"] = lambda: backward(cw, cx, cy)
    row("three tensors (ReLU backward)", runners, 3)
    del out

    w.diff[...] = arrays[2] * 1e-3
    runners = {"minicaffe": lambda: update_params(Rule.SGD, [w], [history], [1.0], [1.0], 1e-3, 1.0, 5e-4, False, 0.9)}
    if torch:
        for name, how in ("torch fused", {"fused": True}), ("torch foreach", {"foreach": True}):
            parameter = torch.nn.Parameter(tw.clone())
            parameter.grad = tg * 1e-3
            runners[name] = torch.optim.SGD([parameter], lr=1e-3, momentum=0.9, weight_decay=5e-4, **how).step
    if cupy:
        update = cupy.ElementwiseKernel("T rate, T momentum, T decay", "T w, T g, T h",
                                        "h = momentum * h + rate * (g + decay * w); g = h; w -= h", "sgd")
        one = np.float32
        runners["cupy"] = lambda: update(one(1e-3), one(0.9), one(5e-4), cw, cg, ch)
    # Ours reads and writes weight, gradient and history: Caffe leaves the step in the gradient. PyTorch's does not write that.
    row("fused SGD update", runners, 6)


def strided(options, rows):
    """y = a + transposed b, by `cuda.elementwise`."""
    from minicaffe import cuda
    from minicaffe.blob import Blob
    modules, missing = peers_of(options, "torch", "cupy")
    sync = sync_all(modules)
    n = 64 if options.device == "sim" else 8192
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((n, n), np.float32) for _ in range(2)]
    a, b = [blob_of(array).gpu_data for array in arrays]
    turned = b.T
    y = Blob((n, n))
    add, top = cuda.elementwise("T a, T b", "T y", "y = a + b", "add"), y.mutable_gpu_data
    runners = {"minicaffe": lambda: add(a, turned, top)}
    runners["minicaffe"]()
    np.testing.assert_allclose(y.cpu_data[:64], arrays[0][:64] + arrays[1].T[:64], rtol=1e-6)
    if "torch" in modules:
        torch = modules["torch"]
        ta, tb = [torch.from_numpy(array).cuda() for array in arrays]
        ty = torch.empty_like(ta)
        runners["torch"] = lambda: torch.add(ta, tb.t(), out=ty)
    if "cupy" in modules:
        cupy = modules["cupy"]
        ca, cb = [cupy.asarray(array) for array in arrays]
        cy = cupy.empty_like(ca)
        runners["cupy"] = lambda: cupy.add(ca, cb.T, out=cy)
    times = turns(runners, sync, options.rounds)
    ratio = times["minicaffe"] / times["torch"] if "torch" in times else None
    rows.add(f"strided pointwise, {n} x {n}, one operand transposed", 1e3 * times["minicaffe"], "ms",
             {**{p: 1e3 * t for p, t in times.items() if p != "minicaffe"}, **missing}, "1.0x PyTorch",
             ratio is not None and ratio <= 1, ratio=ratio)


def host(options, rows):
    """What the host spends on a launch, and on memory from the cache."""
    from overheads import EMPTY

    from minicaffe import cuda
    from minicaffe.memory import CUDAPlace
    from minicaffe.memory.allocator import nanoseconds
    from minicaffe.memory.registry import registry
    from minicaffe.net.net import Net
    from minicaffe.proto import caffe_pb2, text
    modules, missing = peers_of(options, "torch", "cupy")
    sync = sync_all(modules)
    calls = 10 if options.device == "sim" else 400
    ones = np.ones(1024, np.float32)
    blob = blob_of(ones)
    peers = {}
    if "torch" in modules:
        tensor = modules["torch"].from_numpy(ones).cuda()
        peers["torch mul_"] = 1e6 * host_time(lambda: tensor.mul_(1.0), sync, calls)
    if "cupy" in modules:
        cupy = modules["cupy"]
        array, one = cupy.asarray(ones), np.float32(1)
        peers["cupy multiply"] = 1e6 * host_time(lambda: cupy.multiply(array, one, out=array), sync, calls)
    mine = 1e6 * host_time(lambda: blob.scale_data(1.0), sync, calls)
    rows.add("host time of blob.scale_data from Python, one launch", mine, "us", {**peers, **missing}, "2.5 us", mine <= 2.5)
    layers = 200
    rest = "\n".join(f'layer {{ name: "r{i}" type: "ReLU" bottom: "a{i}" top: "a{i + 1}" }}' for i in range(layers))
    net = Net(text.parse_text(EMPTY.format(rest=rest), caffe_pb2.NetParameter)[0])
    net.forward_from_to(0, layers)
    device = cuda.current()
    before = device.launches
    net.forward_from_to(0, layers)
    launches = device.launches - before
    mine = 1e6 * host_time(lambda: net.forward_from_to(0, layers), sync, 2) / launches
    rows.add("host time for each launch in a net of 200 small layers", mine, "us", {}, "2.5 us", mine <= 2.5, launches=launches)
    allocator = registry.allocator(CUDAPlace(0))
    times = 1000 if options.device == "sim" else 100000
    for size in 512, 100 << 10, 8 << 20, 64 << 20:
        nanoseconds(allocator, size, 10)
        mine = statistics.median(nanoseconds(allocator, size, times) for _ in range(7))
        rows.add(f"cached alloc + free of {size:,} bytes", mine, "ns", {}, "300 ns", mine <= 300)
    if "torch" in modules:
        torch = modules["torch"]
        seconds = host_time(lambda: torch.empty(25600, device="cuda"), sync)
        print(f"    torch.empty of 100 KiB from Python, with its tensor: {1e9 * seconds:.0f} ns")


def gemm(options, rows):
    """Our tiled kernel against cuBLAS, both without TF32. MINICAFFE_CUBLAS names no library, so that ours runs."""
    from minicaffe.blob import Blob
    modules, missing = peers_of(options, "torch")
    sync = sync_all(modules)
    n = 64 if options.device == "sim" else options.gemm
    random = np.random.default_rng(0)
    a, b = [random.standard_normal((n, n), np.float32) for _ in range(2)]
    x, y = blob_of(a), Blob((n, n))
    product = layer("InnerProduct", [x], [y], inner_product_param={"num_output": n, "bias_term": False,
                                                                 "weight_filler": {"type": "constant"}})
    product.blobs[0].data[...] = b
    runners = {"minicaffe": lambda: product.forward_gpu([x], [y])}
    runners["minicaffe"]()
    exact = a[:8].astype(np.float64) @ b.T.astype(np.float64)
    error = np.linalg.norm(y.cpu_data[:8] - exact) / np.linalg.norm(exact)
    assert error < 1e-5, f"the product is wrong: relative error {error:.2g}"
    if "torch" in modules:
        torch = modules["torch"]
        torch.backends.cuda.matmul.allow_tf32 = False
        ta, tb = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda().t()
        ty = torch.empty_like(ta)
        runners["torch (cuBLAS)"] = lambda: torch.mm(ta, tb, out=ty)
    times = turns(runners, sync, options.rounds)
    mine, peer = times["minicaffe"], best(times, ("torch",))
    rows.add(f"our GEMM {n}, float32", 2e-9 * n**3 / mine, "GFLOP/s",
             {**{p: 2e-9 * n**3 / t for p, t in times.items() if p != "minicaffe"}, **missing}, "60% of cuBLAS without TF32",
             peer is not None and peer / mine >= 0.6, share_of_cublas=peer / mine if peer else None, relative_error=float(error))


OPERATIONS = {
    "ReLU": ("", (64, 64, 112, 112)), "Sigmoid": ("", (64, 64, 112, 112)), "TanH": ("", (64, 64, 112, 112)),
    "LRN": ("", (64, 96, 55, 55)), "Softmax": ("", (64, 1000)), "BatchNorm": ("", (64, 256, 56, 56)),
    "Pooling MAX 3/2": ("pooling_param { kernel_size: 3 stride: 2 }", (64, 64, 112, 112)),
    "Pooling MAX 3/1": ("pooling_param { kernel_size: 3 pad: 1 }", (64, 480, 14, 14)),
    "Pooling AVE 7/1": ("pooling_param { pool: AVE kernel_size: 7 }", (64, 1024, 7, 7)),
    "Convolution 3x3 of each channel": ("convolution_param { num_output: 128 group: 128 kernel_size: 3 pad: 1 bias_term: false }",
                                        (64, 128, 56, 56)),
}


def engines(options, rows):
    """The operations that cuDNN computes, too, by engine CAFFE and by cuDNN: forward and backward on a batch."""
    for what, (fields, shape) in OPERATIONS.items():
        shape = (2, *shape[1:2], *(9 for _ in shape[2:])) if options.device == "sim" else shape
        for way, times in both_engines(what.split()[0], fields, shape).items():
            peers = {who: t for who, t in times.items() if who != "CAFFE"} or {"cuDNN": "does not compute it"}
            rows.add(f"{what}, {'x'.join(map(str, shape))}, {way}, engine CAFFE", times["CAFFE"], "ms", peers)


def both_engines(kind, fields, shape):
    """Return {"forward", "backward": {engine: milliseconds}} of a layer of this type on a batch."""
    from minicaffe.engines.engine import prefer
    from minicaffe.net.net import Net
    from minicaffe.proto import caffe_pb2, text
    net = Net(text.parse_text(f"""force_backward: true state {{ phase: TRAIN }}
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {" ".join(f"dim: {d}" for d in shape)} }} }} }}
        layer {{ name: "y" type: "{kind}" bottom: "x" top: "y" {fields} }}""", caffe_pb2.NetParameter)[0])
    net.blob_by_name("x").data[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    ways = {"forward": lambda: net.forward_from_to(1, 1), "backward": lambda: net.backward_from_to(1, 1)}
    found = {way: {} for way in ways}
    try:
        for engine in "CAFFE", "CUDNN", "CUDNN", "CAFFE":   # both orders; the less counts
            prefer(engine)
            net.forward_from_to(0, 1)
            net.backward_from_to(1, 1)
            who = net.engines()[0]["engine"]
            for way, seconds in turns(ways, sync_all({}), 3, 0.02).items():
                found[way][who] = min(1e3 * seconds, found[way].get(who, 1e9))
    finally:
        prefer("")
    return found


INPUT = """force_backward: true state {{ phase: TRAIN }}
  layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {} }} }} }}"""
CONVOLUTION = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}"
  convolution_param {{ num_output: {2} kernel_size: 1 bias_term: false weight_filler {{ type: "msra" }} }} }}"""
NORM = """layer { name: "norm" type: "BatchNorm" bottom: "a" top: "a" }
  layer { name: "scale" type: "Scale" bottom: "a" top: "a" scale_param { bias_term: true } }
  layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }"""
SUM = """layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
  layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }"""
POOL = 'layer {{ name: "pool" type: "Pooling" bottom: "a" top: "pool" pooling_param {{ pool: {} kernel_size: 3 stride: 2 }} }}'
# What is measured between convolutions: its layers, the convolutions before it and its top, its shape, and how often it must read
# or write an array of that shape, forward and backward; None: each array that it has once.
LAYERS = [(f"BatchNorm + ReLU {size}x{size}x{channels}", NORM, ("a",), "a", (64, channels, size, size), (3, 5))
          for size, channels in ((56, 256), (28, 512), (14, 1024), (7, 2048))]
LAYERS += [(f"Pooling {method} 3x3, stride 2", POOL.format(method), ("a",), "pool", (64, 64, 112, 112), None)
           for method in ("MAX", "AVE")]
LAYERS += [("Eltwise sum + ReLU", SUM, ("a", "b"), "sum", (64, 256, 56, 56), None)]


def layers(options, rows):
    """What follows convolutions in their layout, as a share of a copy's bandwidth; then passes over parameters and the picture.

    Without cuDNN all is in plain order, which the rows say.
    """
    from minicaffe import cuda
    from minicaffe.addons.trace.build import device_bandwidth
    from minicaffe.engines.engine import get_precision
    from minicaffe.inspection import timing
    from minicaffe.net.net import Net
    from minicaffe.proto import caffe_pb2, text
    for what, middle, before, last, shape, passes in LAYERS:
        shape = (2, 8, 9, 9) if options.device == "sim" else shape
        channels = shape[1]
        net = Net(text.parse_text(INPUT.format(" ".join(f"dim: {d}" for d in shape))
                                  + "".join(CONVOLUTION.format(name, "x", channels) for name in before) + middle
                                  + CONVOLUTION.format("z", last, 8), caffe_pb2.NetParameter)[0])
        net.blob_by_name("x").data[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
        times = timing.measure(net, 1 if options.device == "sim" else 20)
        layout = net.blob_by_name(last).layout_of_data()
        width = 2 if layout is not None and get_precision() == "bf16" else 4
        for i, way in enumerate(("forward", "backward")):
            others = {"x", "x_x_0_split", "z", *before}
            steps = [step for step in times.steps if step.direction == way and not others & set(step.layers)]
            ms = sum(step.ms for step in steps)
            moved = passes[i] * width * math.prod(shape) if passes else sum(step.bytes for step in steps)
            share = moved / ms / 1e-3 / device_bandwidth(cuda.current().index)
            rows.add(f"{what}, {'x'.join(map(str, shape))}, {get_precision()}, {way}", ms, "ms", {}, bytes=moved,
                     share_of_copy=share, layout=str(layout), computed_as_one=[step.layers for step in steps])
            print(f"    {100 * share:.1f}% of the copy's bandwidth, {'plain' if layout is None else 'channels last'}", flush=True)
    passes_of_a_step(options, rows)


# Our kernels of a step whose time counts, by parts of their names.
PASSES = {"reorders, of the picture to channels last": ("TiledCopy<", "StridedCopy<"),
          "rounding of weights": ("Convert<float, Bf16>",), "update of all parameters": ("UpdateAll<",)}


def passes_of_a_step(options, rows):
    """Rows of the kernels of a step of ResNet-50 that are no layer's, as a trace finds their times on the device."""
    import bench
    import gpu_nets
    import nets

    from minicaffe import cuda
    from minicaffe.addons import trace
    from minicaffe.addons.trace.build import device_bandwidth
    from minicaffe.cuda import compile
    from minicaffe.device.threads import get_num_threads
    from minicaffe.engines.engine import get_precision
    name = "cifar10_quick" if options.device == "sim" else "resnet50"
    batch = 2 if options.device == "sim" else gpu_nets.BATCHES[name]
    ours = bench.Minicaffe(nets.training_net(name, batch), get_num_threads(), nets.PLAN)
    ours.fill(nets.random_inputs(ours.net))
    ours.step()
    ours.step()
    with trace.record(ours.solver) as made:
        ours.step()
    launches = [(compile.short_name(event.name), event.took / 1e6) for event in made.events if event.kind == "launch"]
    width = 2 if get_precision() == "bf16" else 4
    kernels = sum(layer.blobs[0].count for layer in ours.net.layers if layer.type == "Convolution")
    # What must be read and written: the picture; weights; weights, gradients and history, which Caffe's update writes, too.
    moved = ((4 + width) * ours.net.input_blobs[0].count, (4 + width) * kernels,
             6 * 4 * sum(blob.count for layer in ours.net.layers for blob in layer.blobs))
    bandwidth = device_bandwidth(cuda.current().index)
    for (what, names), nbytes in zip(PASSES.items(), moved):
        found = [(kernel, ms) for kernel, ms in launches if any(part in kernel for part in names)]
        ms = float(sum(ms for _, ms in found))
        rows.add(f"{name}, {get_precision()}, in a step: {what}", ms, "ms", {}, launches=len(found), bytes=nbytes,
                 share_of_copy=nbytes / ms / 1e-3 / bandwidth if found else None,
                 kernels=sorted({kernel for kernel, _ in found}))
