"""A word language model: an LSTM whose state goes on from one stretch of text to the next."""

import math

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
WORDS, WIDTH, LAYERS, BATCH, STRETCH = 30, 16, 2, 4, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.encoder(words), hidden)
        return self.decoder(output).view(-1, WORDS), hidden

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(LAYERS, size, WIDTH), weight.new_zeros(LAYERS, size, WIDTH)


def repackage(hidden):
    return tuple(state.detach() for state in hidden)


text = torch.randint(WORDS, (BATCH * (6 * STRETCH + 1),)).view(BATCH, -1).t().contiguous().to(device)
model = Model().to(device)
criterion = nn.CrossEntropyLoss()
total = torch.zeros((), device=device)
each = []
hidden = model.init_hidden(BATCH)
for start in range(0, text.size(0) - 1, STRETCH):
    words, targets = text[start : start + STRETCH], text[start + 1 : start + 1 + STRETCH].reshape(-1)
    model.zero_grad()
    hidden = repackage(hidden)
    output, hidden = model(words, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-1.0)
    total += loss.detach()
    each.append(loss.detach())
losses = [*torch.stack(each).tolist(), math.exp(total.item() / len(each))]
