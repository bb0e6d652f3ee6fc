"""An encoder and a head with optimizers of their own, and a schedule that warms up."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])

    def forward(self, ids):
        x = self.table(ids)
        for scale in self.scales:
            x = x * scale
        return x.mean(dim=1)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
embedder, head = Embedder().to(device), nn.Linear(8, 4).to(device)
sparse = torch.optim.SparseAdam(list(embedder.table.parameters()), lr=1e-2)
dense = torch.optim.AdamW([{"params": head.parameters()}, {"params": embedder.scales.parameters(), "lr": 1e-3}])
warmup = torch.optim.lr_scheduler.LambdaLR(dense, lambda step: min(1.0, (step + 1) / 3))
batches = list(zip(torch.randint(50, (6, 8, 5)), torch.randint(4, (6, 8))))
kept = []
for ids, labels in batches:
    loss = nn.functional.cross_entropy(head(embedder(ids.to(device))), labels.to(device))
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
    warmup.step()
    kept.append(loss.detach())
losses = torch.stack(kept).tolist()
