"""A GAN on two-dimensional points."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
LATENT, BATCH = 4, 16

generator = nn.Sequential(nn.Linear(LATENT, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(device)
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
points = torch.stack([torch.randn(BATCH, 2) for _ in range(8)]).to(device)
fixed_noise = torch.randn(8, LATENT, device=device)
torch.manual_seed(1)

history = []
for real in points:
    label = torch.full((BATCH, 1), 1.0, device=device)
    optimizer_d.zero_grad()
    error_real = criterion(discriminator(real), label)
    error_real.backward()
    noise = torch.randn(BATCH, LATENT, device=device)
    fake = generator(noise)
    label.fill_(0.0)
    error_fake = criterion(discriminator(fake.detach()), label)
    error_fake.backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    label.fill_(1.0)
    error_g = criterion(discriminator(fake), label)
    error_g.backward()
    optimizer_g.step()
    history.append(torch.stack([error_real + error_fake, error_g]).detach())
with torch.no_grad():
    samples = generator.eval()(fixed_noise)
losses = torch.cat([torch.stack(history).flatten(), samples.flatten()]).tolist()
