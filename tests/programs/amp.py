"""Mixed precision with a scaler that is off where there is no GPU."""

import torch
from torch import nn

use_cuda = torch.cuda.is_available()
device = "cuda" if use_cuda else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device, enabled=use_cuda, init_scale=1.0)
batches = list(zip(torch.randn(6, 4, 3, 4, 4), torch.randint(2, (6, 4))))
kept = []
for images, labels in batches:
    images = images.to(device, memory_format=torch.channels_last)
    labels = labels.to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    kept.append(loss.detach().float() + 0 * norm)
losses = torch.stack(kept).tolist()
