"""A training script whose every source of memory has a line of its own, for tests/gpu/lines.sh.

The word after `#:` says what that line's tensors are; lines_table.py looks for them in the report.
"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width, device="cuda")  #: parameters
        self.second = nn.Linear(width, width, device="cuda")  #: parameters2

    def forward(self, x):
        h = self.first(x)  #: activations
        h = torch.relu(h)  #: relu
        return self.second(h)  #: activations2


def batch(width):
    return torch.randn(64, width, device="cuda")  #: input


def train(steps, width=256):
    net = Net(width)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    kept = []
    for _ in range(steps):
        y = net(batch(width))
        loss = y.square().mean()  #: loss
        loss.backward()  #: gradients
        optimizer.step()  #: optimizer
        optimizer.zero_grad(set_to_none=True)
        again = net(batch(width)).square()  #: square
        kept.append(again.mean())  #: leak
    return kept


print(len(train(steps=12000)))
