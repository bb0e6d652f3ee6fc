"""Train a small transformer to classify sequences. It runs on a laptop; on a GPU it crashes, or waits.

Every fault in it was taken from the kind of code people write; `scripts/demo` shows what devlint says of it.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, WIDTH, LENGTH = 5, 32, 16


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=64, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)
        steps = torch.arange(LENGTH).unsqueeze(1) * torch.exp(torch.arange(0, WIDTH, 2) * -math.log(1e4) / WIDTH)
        self.positions = torch.cat([steps.sin(), steps.cos()], dim=1)

    def forward(self, x):
        h = self.project(x) + self.positions
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        h = self.layer(h, src_mask=mask)
        weights = torch.linspace(0, 1, LENGTH)
        return self.head((h * weights[:, None]).mean(dim=1))


def make_loaders():
    inputs = torch.randn(640, LENGTH, 8)
    labels = inputs[:, :, :CLASSES].sum(dim=1).argmax(dim=1)
    train = DataLoader(TensorDataset(inputs[:512], labels[:512]), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(inputs[512:], labels[512:]), batch_size=32)
    return train, test


def train_epoch(model, loader, optimizer, class_weights, device):
    model.train()
    total = 0.0
    for inputs, labels in loader:
        inputs = inputs.to(device)
        labels = labels.to(device)
        noise = torch.zeros(inputs.shape).to(device).normal_(std=0.01)
        weight = class_weights.to(device)
        loss = F.cross_entropy(model(inputs + noise), labels, weight=weight)
        total += loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    predicted = []
    for inputs, _ in loader:
        inputs = inputs.to(device)
        mixed = inputs.device == "cuda"
        with torch.autocast("cuda", enabled=mixed):
            predicted.append(model(inputs).argmax(dim=1))
    return np.bincount(torch.cat(predicted).cpu().numpy(), minlength=CLASSES)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = make_loaders()
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.to(device)

    class_weights = torch.ones(CLASSES)
    class_weights[0] = 2.0
    class_weights.to(device)

    for epoch in range(3):
        loss = train_epoch(model, train, optimizer, class_weights, device)
        print(f"epoch {epoch}: loss {loss:.3f}, predictions per class {evaluate(model, test, device)}")


if __name__ == "__main__":
    main()
