"""The leak that everyone writes once: losses kept in a list, each with the graph behind it.

    cuheap run -- python3 examples/keep_loss.py
    cuheap report

`losses.append(loss)` keeps the tensor, and the tensor keeps every activation of its step; with
`loss.item()` or `loss.detach()` only a number stays. --where says where the list lives, --end how the
program ends: the report shows the leak in each case, though Python frees it when main() returns.
"""
import argparse
import os
import signal
import sys

import torch
from torch import nn

losses = []


def step(net, optimizer, keep):
    x = torch.randn(32, 256, device="cuda")
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    keep.append(loss)  # the leak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--where", choices=["local", "global"], default="local")
    parser.add_argument("--end", choices=["return", "exit", "exception", "kill"], default="return")
    parser.add_argument("--steps", type=int, default=8000)
    args = parser.parse_args()
    keep = losses if args.where == "global" else []
    net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(args.steps):
        step(net, optimizer, keep)
    print(len(keep), "losses kept,", torch.cuda.memory_allocated(), "bytes allocated", flush=True)
    if args.end == "exit":
        sys.exit(0)
    if args.end == "exception":
        raise RuntimeError("as asked for")
    if args.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


main()
