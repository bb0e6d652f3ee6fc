"""A small GPT with a cosine schedule, trained by a `Trainer` class."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocabulary: int = 20
    length: int = 12
    width: int = 16
    heads: int = 2


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.register_buffer("mask", torch.tril(torch.ones(config.length, config.length)), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        return self.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(nn.Linear(config.width, 32), nn.GELU(), nn.Linear(32, config.width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(2)])
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, targets=None):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, ids, count):
        for _ in range(count):
            ids = torch.cat([ids, self(ids)[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
        return ids


class Trainer:
    def __init__(self, model, data, device):
        self.model, self.data, self.device = model.to(device), data, device
        groups = [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 5)

    def batch(self):
        starts = torch.randint(len(self.data) - 13, (4,))
        x = torch.stack([self.data[i : i + 12] for i in starts])
        y = torch.stack([self.data[i + 1 : i + 13] for i in starts])
        return x.to(self.device), y.to(self.device)

    def run(self, steps):
        kept = []
        for _ in range(steps):
            x, y = self.batch()
            loss = self.model(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            kept.append(loss.detach())
        return torch.stack(kept).tolist()


def main():
    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(GPT(Config()), torch.randint(20, (200,)), device)
    result = trainer.run(5)
    prompt = torch.zeros(1, 1, dtype=torch.long, device=device)
    return result + trainer.model.generate(prompt, 4)[0].tolist()


if __name__ == "__main__":
    losses = main()
