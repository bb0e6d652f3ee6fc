"""Momentum contrast: a queue of keys, and an encoder that follows the other."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class MoCo(nn.Module):
    def __init__(self, encoder, size=16, width=8):
        super().__init__()
        self.encoder_q, self.encoder_k = encoder, copy.deepcopy(encoder)
        for parameter in self.encoder_k.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(width, size), dim=0))
        self.pointer = 0

    @torch.no_grad()
    def _follow(self):
        for slow, fast in zip(self.encoder_k.parameters(), self.encoder_q.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)

    @torch.no_grad()
    def _enqueue(self, keys):
        self.queue[:, self.pointer : self.pointer + len(keys)] = keys.T
        self.pointer = (self.pointer + len(keys)) % self.queue.shape[1]

    def forward(self, first, second):
        q = F.normalize(self.encoder_q(first), dim=1)
        with torch.no_grad():
            self._follow()
            k = F.normalize(self.encoder_k(second), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / 0.07
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self._enqueue(k)
        return F.cross_entropy(logits, labels)


def main():
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = MoCo(nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8)))
    model.to(device)
    parameters = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=1e-4)
    kept = []
    for _ in range(6):
        images = torch.randn(4, 3, 2, 2)
        first = (images + 0.1 * torch.randn_like(images)).to(device)
        second = images.flip(-1).to(device)
        loss = model(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
    return torch.stack(kept).cpu().numpy().tolist()


losses = main()
