"""An exponential moving average of the weights, made by hand and by torch."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Shadow:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                self.values[name].mul_(self.decay).add_(value, alpha=1 - self.decay)
            else:
                self.values[name].copy_(value)


inputs, targets = torch.randn(32, 5), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
model.to(device)
shadow = Shadow(model)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
x, y = inputs.to(device), targets.to(device)
kept = []
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    shadow.update(model)
    averaged.update_parameters(model)
    kept.append(loss.detach())
model.load_state_dict(shadow.values)
with torch.no_grad():
    kept.append(nn.functional.mse_loss(model.eval()(x), y))
    kept.append(nn.functional.mse_loss(averaged.eval()(x), y))
losses = torch.stack(kept).tolist()
