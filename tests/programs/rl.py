"""Deep Q-learning with a replay buffer, in an environment of two numbers."""

import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import devlint

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Environment:
    def reset(self):
        self.state, self.time = np.random.rand(2).astype(np.float32), 0
        return self.state

    def step(self, action):
        self.state = (self.state + (0.1 if action else -0.1)).astype(np.float32)
        self.time += 1
        return self.state, -float(np.abs(self.state).sum()), self.time == 6


class Replay:
    def __init__(self):
        self.memory = deque(maxlen=100)

    def sample(self, size):
        states, actions, rewards, following, done = zip(*random.sample(self.memory, size))
        return (
            torch.from_numpy(np.stack(states)).to(device),
            torch.tensor(actions).to(device),
            torch.tensor(rewards).to(device),
            torch.from_numpy(np.stack(following)).to(device),
            torch.tensor(done, dtype=torch.float32).to(device),
        )


policy = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.RMSprop(policy.parameters())
replay, environment, kept = Replay(), Environment(), []
for _ in range(4):
    state, done = environment.reset(), False
    while not done:
        with torch.no_grad():
            values = policy(torch.as_tensor(state, device=device)[None])
        with devlint.allow_sync("the environment is on the host"):
            action = random.randrange(2) if random.random() < 0.2 else int(values.argmax(dim=1))
        following, reward, done = environment.step(action)
        replay.memory.append((state, action, reward, following, done))
        state = following
    states, actions, rewards, nexts, ends = replay.sample(6)
    chosen = policy(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        best = target(nexts).max(dim=1).values
    loss = F.smooth_l1_loss(chosen, rewards + 0.9 * best * (1 - ends))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 1.0)
    optimizer.step()
    for old, new in zip(target.parameters(), policy.parameters()):
        old.data.lerp_(new.data, 0.1)
    kept.append(loss.detach())
losses = torch.stack(kept).tolist()
