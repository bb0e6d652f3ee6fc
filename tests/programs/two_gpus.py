"""One model on two GPUs."""

import torch
from torch import nn

torch.manual_seed(0)
several = torch.cuda.device_count() >= 2
first = torch.device("cuda:0" if several else "cpu")
second = torch.device("cuda:1" if several else "cpu")


class Pipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(6, 16), nn.ReLU()).to(first)
        self.back = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(second)

    def forward(self, x):
        x = self.front(x)
        return self.back(x.to(second))


model = Pipeline()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
batches = list(zip(torch.randn(5, 8, 6), torch.randint(3, (5, 8))))
kept = []
for x, y in batches:
    output = model(x.to(first))
    loss = criterion(output, y.to(output.device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(loss.detach())
losses = torch.stack(kept).tolist()
