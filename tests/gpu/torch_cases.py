"""Programs as people write them, for tests/gpu/torch.sh: torch_cases.py CASE.

Each ends with one JSON line of PyTorch's own counters and then at once, by _exit, so that what is live
in the trace is what was live when the counters were read.
"""
import json
import os
import sys

import torch
from torch import nn


def model(width=512, depth=4):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 8)).cuda()


def train(net=None, steps=20, forward=None):
    net = net or model()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(64, 512, device="cuda")
        y = (forward or net)(x)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return net, optimizer, loss


def inference():
    net = model()
    with torch.no_grad():
        return net, [net(torch.randn(128, 512, device="cuda")) for _ in range(10)]


def checkpoint():
    from torch.utils.checkpoint import checkpoint_sequential

    net = model(depth=8)
    return train(net, forward=lambda x: checkpoint_sequential(net, 4, x, use_reentrant=False))


def compiled():
    net = model()
    return train(net, steps=6, forward=torch.compile(net))


def graphs():
    net = model()
    x = torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = net(x)
    for _ in range(5):
        graph.replay()
    return net, x, y, graph


def dataloader():
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(512, 512), torch.zeros(512))
    net, sums = model(), []
    for _ in range(2):
        for x, _y in DataLoader(data, batch_size=64, num_workers=4, pin_memory=True):
            sums.append(net(x.cuda(non_blocking=True)).sum().detach())
    return net, sums


def out_of_memory():
    kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(4)]
    for request in (1 << 42, 1 << 41):
        try:
            torch.empty(request, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            kept.append(torch.empty(1000, device="cuda"))
    return kept


CASES = {
    "training": train,
    "inference": inference,
    "checkpointing": checkpoint,
    "compile": compiled,
    "graphs": graphs,
    "expandable": train,
    "malloc_async": train,
    "dataloader": dataloader,
    "out_of_memory": out_of_memory,
}


def main():
    kept = CASES[sys.argv[1]]()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    names = {
        "allocs": "allocation.all.allocated",
        "frees": "allocation.all.freed",
        "live_bytes": "allocated_bytes.all.current",
        "peak_bytes": "allocated_bytes.all.peak",
        "reserved_bytes": "reserved_bytes.all.current",
        "out_of_memory": "num_ooms",
    }
    print(json.dumps({ours: stats.get(theirs) for ours, theirs in names.items()}), flush=True)
    os._exit(0 if kept else 1)


main()
