#!/usr/bin/env python3
"""Trains a small transformer on one GPU for a few seconds.

    cuheap run -- python3 examples/train.py [--leak]
    cuheap report

Ends with one line of JSON: what PyTorch's caching allocator took from the driver (reserved bytes,
cudaMalloc and cudaFree calls) and what its tensors took of that (allocated bytes), to be compared
with the report. With --leak each step keeps its loss together with the graph that made it, the
classic way to run out of memory: `total += loss` where `total += loss.item()` was meant.
"""
import argparse
import json
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary, width=256, heads=4, depth=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def parse_arguments():
    parser = argparse.ArgumentParser(description="train a small transformer on one GPU")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--bf16", action="store_true", help="run the model under bf16 autocast")
    parser.add_argument("--leak", action="store_true", help="keep each step's loss with its graph")
    return parser.parse_args()


def train_step(model, optimizer, tokens, targets, options):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.bf16):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward(retain_graph=options.leak)
    optimizer.step()
    return loss


def train(options):
    torch.manual_seed(0)
    model = Model(options.vocabulary).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept, total = [], 0.0
    for _ in range(options.steps):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length), device="cuda")
        loss = train_step(model, optimizer, tokens, tokens.roll(-1, 1), options)
        if options.leak:
            kept.append(loss)
        total += loss.item()
    torch.cuda.synchronize()
    return total / options.steps, len(kept)


def main():
    options = parse_arguments()
    if not torch.cuda.is_available():
        sys.exit("train.py: PyTorch sees no usable GPU")
    mean_loss, kept = train(options)
    stats = torch.cuda.memory_stats()
    print(json.dumps({
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "steps": options.steps,
        "mean_loss": round(mean_loss, 4),
        "losses_kept": kept,
        "memory_reserved": torch.cuda.memory_reserved(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "memory_allocated": torch.cuda.memory_allocated(),
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "num_device_alloc": stats.get("num_device_alloc"),
        "num_device_free": stats.get("num_device_free"),
        "num_tensor_alloc": stats["allocation.all.allocated"],
    }))


if __name__ == "__main__":
    main()
