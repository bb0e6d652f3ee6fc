"""Gradients gathered over several batches, with a loader that pins its batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 6), torch.randint(3, (64,)))
loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=device.type != "cpu")
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
weights = torch.tensor([1.0, 2.0, 0.5], device=device)
criterion = nn.CrossEntropyLoss(weight=weights, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
EVERY = 4
running, kept = torch.zeros((), device=device), []
for _ in range(2):
    for index, (inputs, labels) in enumerate(loader, start=1):
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = criterion(model(inputs), labels) / EVERY
        loss.backward()
        running += loss.detach()
        if index % EVERY == 0:
            optimizer.step()
            optimizer.zero_grad()
            kept.append(running.clone())
            running.zero_()
losses = torch.stack(kept).tolist()
