"""What `minicaffe train models/lenet/net.prototxt` does, as a PyTorch script: the peer of tools/bench/whole.py.

    python tools/bench/lenet_torch.py PICTURES.npz MODEL.pt [--channels-last]

The pictures lie in memory as one tensor each for training and tests, so that no loader costs anything; SGD is fused.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F

ITERATIONS, TEST_INTERVAL, DISPLAY, BATCH, TEST_BATCH = 1500, 500, 75, 64, 100


class LeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 20, 5), torch.nn.Conv2d(20, 50, 5)
        self.ip1, self.ip2 = torch.nn.Linear(800, 500), torch.nn.Linear(500, 10)
        for layer in (self.conv1, self.conv2, self.ip1, self.ip2):
            bound = (3 / layer.weight[0].numel()) ** 0.5
            torch.nn.init.uniform_(layer.weight, -bound, bound)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        return self.ip2(F.relu(self.ip1(x.flatten(1))))


def test(net, pictures, labels):
    """Print the accuracy and the loss, in batches."""
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(labels), TEST_BATCH):
            scores, wanted = net(pictures[start:start + TEST_BATCH]), labels[start:start + TEST_BATCH]
            right += int((scores.argmax(1) == wanted).sum())
            loss += float(F.cross_entropy(scores, wanted)) * len(wanted)
    print(f"accuracy {right / len(labels):.4f} loss {loss / len(labels):.4f}", flush=True)


def main(data, model, channels_last):
    torch.set_num_threads(2)
    order = torch.channels_last if channels_last else torch.contiguous_format
    arrays = np.load(data)
    train, shown = ((torch.from_numpy(arrays[name]).float().mul_(1 / 256).contiguous(memory_format=order),
                     torch.from_numpy(arrays[name + "_labels"])) for name in ("train", "test"))
    net = LeNet().to(memory_format=order)
    weights, biases = ([p for name, p in net.named_parameters() if name.endswith(end)] for end in ("weight", "bias"))
    sgd = torch.optim.SGD([{"params": weights, "scale": 1}, {"params": biases, "scale": 2}], lr=0.01, momentum=0.9,
                          weight_decay=5e-4, fused=True)
    for iteration in range(ITERATIONS):
        if iteration % TEST_INTERVAL == 0:
            test(net, *shown)
        for group in sgd.param_groups:
            group["lr"] = 0.01 * (1 + 1e-4 * iteration) ** -0.75 * group["scale"]
        rows = torch.arange(iteration * BATCH, (iteration + 1) * BATCH) % len(train[1])
        sgd.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(train[0][rows]), train[1][rows])
        loss.backward()
        sgd.step()
        if iteration % DISPLAY == 0:
            print(f"iteration {iteration} loss {loss.item():.4f}", flush=True)
    test(net, *shown)
    torch.save({"net": net.state_dict(), "sgd": sgd.state_dict()}, model)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--channels-last" in sys.argv)
