"""The plain loops beside the fast engines: processor time of one thread for LeNet and CaffeNet.

    python tools/bench/plain.py

Prints the table of docs/benchmarks.md. Forward is that of the deploy net, the step is forward and backward of the training net. The
time is the least of some turns, of the plain loops one.
"""

import time

import numpy as np
from nets import random_net, training_net

import minicaffe
from minicaffe.engines import engine
from minicaffe.net.net import Net


def seconds(run, turns):
    times = []
    for _ in range(turns):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def main():
    minicaffe.set_num_threads(1)
    print("| net, batch | what | plain | CAFFE | default |\n|---|---|---|---|---|")
    for name, batch in ("lenet", 64), ("caffenet", 4):
        for what in "forward", "forward and backward":
            row = []
            for preferred in "PLAIN", "CAFFE", "":
                engine.prefer(preferred)
                net = random_net(name, batch) if what == "forward" else Net(training_net(name, batch), plan="memory")
                for node in net.nodes:
                    if node.type == "Input":
                        node.tops[0].data[...] = np.random.default_rng(0).random(node.tops[0].shape)
                last = len(net.layers) - 1

                def run(net=net, last=last, back=what != "forward"):
                    net.forward_from_to(0, last)
                    if back:
                        net.backward_from_to(last, 0)

                row.append(f"{1000 * seconds(run, 1 if preferred == 'PLAIN' else 6):.1f}")
            print(f"| {name}, {batch} | {what} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
