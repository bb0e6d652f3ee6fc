"""Activations computed again in the backward pass, with dropout and autocast."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(3)])
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        bias = x.new_zeros(8)
        for block in self.blocks:
            x = checkpoint(block, x + bias, use_reentrant=False)
        return checkpoint_sequential(self.tail, 2, x, use_reentrant=True)


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = Net().to(device)
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-2, foreach=True)
batches = list(zip(torch.randn(5, 8, 8), torch.randint(2, (5, 8))))
kept = []
for x, y in batches:
    x, y = x.to(device), y.to(device)
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(loss.detach())
losses = torch.stack(kept).tolist()
