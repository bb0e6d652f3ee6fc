"""Training that goes on from a checkpoint."""

import os
import tempfile

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 1))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def train(model, optimizer, schedule, batches):
    kept = []
    for data in batches:
        x = data.to(device)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        kept.append(loss.detach())
    return torch.stack(kept).tolist()


def main():
    torch.manual_seed(0)
    model, optimizer, schedule = make()
    batches = torch.randn(6, 16, 4)
    result = train(model, optimizer, schedule, batches[:3])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "random": torch.get_rng_state(),
            },
            path,
        )
        checkpoint = torch.load(path, map_location="cpu")
    model, optimizer, schedule = make()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    schedule.load_state_dict(checkpoint["schedule"])
    torch.set_rng_state(checkpoint["random"])
    return result + train(model, optimizer, schedule, batches[3:])


losses = main()
