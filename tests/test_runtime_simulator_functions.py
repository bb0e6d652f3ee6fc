"""Functions, modules and optimizers compute on imaginary devices what they compute on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from devlint.runtime.placement import device_of, tensors_in
from devlint.runtime.simulator import Simulator, simulate
from imaginary import CPU, ONE, machine, on_both, plain

__all__ = ["machine"]  # the fixture


# Functions and modules ------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {  # of a 2x4x6x6 tensor
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "interpolate nearest": lambda x: F.interpolate(x, size=(3, 4)),
    "grid_sample": lambda x: F.grid_sample(
        x, F.affine_grid(x.new_ones(2, 2, 3), [2, 4, 6, 6], False), align_corners=False
    ),
    "pad": lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"),
    "unfold and fold": lambda x: F.fold(F.unfold(x, 3), (6, 6), 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "max_pool with indices": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "fractional_max_pool": lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.5)),
    "lp_pool": lambda x: F.lp_pool2d(x, 2.0, 2),
    "dropout": lambda x: F.dropout(x),
    "dropout2d": lambda x: F.dropout2d(x),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x[0, 0], hard=True),
    "one_hot": lambda x: F.one_hot(x[0, 0, 0].long().abs(), 5),
    "embedding_bag": lambda x: F.embedding_bag(
        x.new_tensor([0, 1, 1], dtype=torch.long), x[0, 0], x.new_tensor([0, 2], dtype=torch.long)
    ),
    "embedding with max_norm": lambda x: F.embedding(
        x.new_tensor([0, 1], dtype=torch.long), x[0, 0].clone(), max_norm=1.0
    ),
    "normalize": lambda x: F.normalize(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": lambda x: F.instance_norm(x),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=x.new_ones(6, 6).tril().bool()
    ),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x + 1),
    "pdist": lambda x: F.pdist(x[0, 0]),
    "cdist": lambda x: torch.cdist(x, x),
    "ctc_loss": lambda x: F.ctc_loss(
        x[0].log_softmax(-1), x.new_ones(6, 1, dtype=torch.long), torch.full((6,), 4), torch.full((6,), 1)
    ),
    "triplet with a distance": lambda x: F.triplet_margin_with_distance_loss(
        x[0, 0],
        x[0, 1],
        x[0, 2],
        distance_function=lambda a, b: (a - b).abs().sum(-1) + torch.zeros(6, device=a.device),
    ),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    "gaussian_nll": lambda x: F.gaussian_nll_loss(x, x + 1, x.abs() + 1),
    "multi_margin": lambda x: F.multi_margin_loss(x[0, 0], x.new_zeros(6, dtype=torch.long)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=torch.tensor(2.0)),
    "stft": lambda x: torch.stft(
        x.flatten()[:64], 16, window=torch.hann_window(16, device=x.device), return_complex=True
    ),
    "stft without a window": lambda x: torch.stft(x.flatten()[:64], 16, return_complex=True),
    "istft": lambda x: torch.istft(
        torch.stft(x.flatten()[:64], 16, window=x.new_ones(16), return_complex=True), 16, window=x.new_ones(16)
    ),
    "fft": lambda x: torch.fft.rfft2(x),
    "einsum": lambda x: torch.einsum("bchw,bchv->bwv", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([1, 2], [1, 2])),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, 1], indexing="ij"),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0, 0, 0], x[0, 0, 1]),
    "block_diag": lambda x: torch.block_diag(x[0, 0], x[0, 1]),
    "unique": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.round()),
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero as tuple": lambda x: (x > 0).nonzero(as_tuple=True),
    "where of one": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask index": lambda x: x[x > 0],
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "multinomial": lambda x: x[0, 0].softmax(-1).multinomial(3),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "bincount": lambda x: x.abs().long().flatten().bincount(),
    "histc": lambda x: x.histc(5),
    "bucketize": lambda x: torch.bucketize(x, x.new_tensor([-1.0, 0.0, 1.0])),
    "repeat_interleave": lambda x: x[0, 0].repeat_interleave(x.new_tensor([1, 2, 0, 1, 1, 1], dtype=torch.long), 0),
    "tensor_split": lambda x: x.tensor_split(torch.tensor([1, 3]), dim=2),
    "norm": lambda x: (x.norm(), torch.norm(x, dim=1), torch.linalg.vector_norm(x)),
    "linalg.solve": lambda x: torch.linalg.solve(x @ x.mT + torch.eye(6, device=x.device), x),
    "linalg.inv": lambda x: torch.linalg.inv(x @ x.mT + torch.eye(6, device=x.device)),
    "linalg.qr": lambda x: torch.linalg.qr(x).R.abs(),
    "linalg.matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "linalg.multi_dot": lambda x: torch.linalg.multi_dot([x[0, 0], x[0, 1], x[0, 2]]),
    "lu": lambda x: torch.linalg.lu(x),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(6, device=x.device)),
    "matrix_exp": lambda x: torch.matrix_exp(x * 0.1),
    "trapezoid": lambda x: torch.trapezoid(x),
    "cov": lambda x: (x[0, 0].cov(), x[0, 0].corrcoef()),
    "quantile": lambda x: x.quantile(torch.tensor([0.25, 0.5], device=x.device)),
    "searchsorted": lambda x: torch.searchsorted(x[0, 0].sort().values, x[0, 0]),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, x.abs().long().clamp(max=1), x),
    "index_add": lambda x: x.index_add(0, x.new_tensor([0, 1], dtype=torch.long), x),
    "cumulative": lambda x: (x.cumsum(0), x.cummax(1), x.logcumsumexp(2), x.diff()),
    "reductions": lambda x: (
        x.sum(),
        x.mean(1),
        x.var(),
        x.std(0),
        x.median(),
        x.max(1),
        x.aminmax(),
        x.all(),
        x.any(),
    ),
    "complex": lambda x: torch.view_as_complex(x.view(2, 4, 6, 3, 2).contiguous()).conj().angle(),
    "roll and flip": lambda x: (x.roll(1, 2), x.flip(3), x.rot90(1, (2, 3))),
    "tril": lambda x: (x.tril(), x.triu(1), torch.diag_embed(x[0])),
    "combinations": lambda x: torch.combinations(x[0, 0, 0]),
    "vander": lambda x: torch.vander(x[0, 0, 0]),
    "lobpcg": lambda x: torch.lobpcg((x @ x.mT)[0, 0] + torch.eye(6, device=x.device), k=1, niter=2)[0].shape[0],
    "special": lambda x: (torch.special.erf(x), torch.special.i0(x), torch.special.logit(x.sigmoid())),
    "kthvalue": lambda x: x.kthvalue(2),
    "isin": lambda x: torch.isin(x.long(), x.new_tensor([0, 1], dtype=torch.long)),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantised per channel": lambda x: torch.quantize_per_channel(
        x, x.new_ones(4), x.new_zeros(4), 1, torch.qint8
    ).dequantize(),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "sparse": lambda x: torch.sparse.mm(x[0, 0].to_sparse(), x[0, 1]),
    "sparse sum": lambda x: (x[0, 0].to_sparse() + x[0, 1].to_sparse()).coalesce(),
    "sparse csr": lambda x: x[0, 0].to_sparse_csr() @ x[0, 1],
    "nested": lambda x: torch.nested.nested_tensor([x[0, 0], x[0, 1, :3]]).to_padded_tensor(0.0),
    "nested jagged": lambda x: (
        torch.nested.nested_tensor([x[0, 0], x[0, 1, :3]], layout=torch.jagged) * 2
    ).to_padded_tensor(0.0),
    "init": lambda x: nn.init.orthogonal_(nn.init.kaiming_normal_(nn.init.trunc_normal_(torch.empty_like(x)))),
    "in-place chain": lambda x: x.clone().mul_(2).add_(1).clamp_(-1, 1).relu_().sqrt_(),
    "out": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "python numbers": lambda x: [
        x.sum().item(),
        float(x.mean()),
        int(x.max()),
        bool((x > 0).any()),
        x[0, 0, 0].tolist(),
        len(x),
    ],
    "apply_along": lambda x: torch.stack([row * 2 for row in x]),
    "batch of mixed lists": lambda x: torch.cat([x[0], x[1]]).chunk(2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore")
def test_a_function_computes_the_same_there(function: Callable[[Tensor], Any]) -> None:
    on_both(lambda device: function(torch.randn(2, 4, 6, 6).to(device)))


CLOSE: dict[str, Callable[[Tensor], Any]] = {  # torch takes another path of LAPACK under any dispatch mode
    "svd": lambda x: torch.linalg.svdvals(x),
    "eigh": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "lstsq": lambda x: torch.linalg.lstsq(x[0], x[1]).solution,
}


@pytest.mark.parametrize("function", CLOSE.values(), ids=CLOSE)
def test_a_decomposition_computes_nearly_the_same_there(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = function(x)
    with simulate(2):
        result = function(x.to(ONE))
        assert result.device == ONE
        assert torch.allclose(result.cpu(), expected, rtol=1e-3, atol=1e-3)


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        (torch.randn(2, 1, 6, 6),),
    ),
    "transposed convolution": lambda: (nn.ConvTranspose2d(2, 3, 3, stride=2), (torch.randn(1, 2, 4, 4),)),
    "lstm": lambda: (
        nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2),
        (torch.randn(2, 5, 3),),
    ),
    "gru with a state": lambda: (nn.GRU(3, 4), (torch.randn(5, 2, 3), torch.randn(1, 2, 4))),
    "rnn": lambda: (nn.RNN(3, 4), (torch.randn(5, 2, 3),)),
    "lstm cell": lambda: (nn.LSTMCell(3, 4), (torch.randn(2, 3),)),
    "attention": lambda: (
        nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True),
        (torch.randn(3, 2, 4),) * 3,
    ),
    "encoder": lambda: (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (torch.randn(2, 3, 4),)),
    "transformer": lambda: (nn.Transformer(4, 2, 1, 1, 8), (torch.randn(3, 2, 4), torch.randn(2, 2, 4))),
    "embedding": lambda: (nn.Embedding(5, 3, padding_idx=0), (torch.tensor([[0, 1], [4, 2]]),)),
    "sparse embedding": lambda: (nn.Embedding(5, 3, sparse=True), (torch.tensor([[0, 1], [4, 2]]),)),
    "embedding bag": lambda: (nn.EmbeddingBag(5, 3, mode="mean"), (torch.tensor([[0, 1], [4, 2]]),)),
    "bilinear": lambda: (nn.Bilinear(2, 3, 4), (torch.randn(2, 2), torch.randn(2, 3))),
    "norms": lambda: (
        nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.SyncBatchNorm(4).eval()),
        (torch.randn(2, 4, 4),),
    ),
    "activations": lambda: (
        nn.Sequential(nn.PReLU(), nn.GLU(), nn.Hardswish(), nn.Softplus(), nn.RReLU()),
        (torch.randn(2, 4),),
    ),
    "upsampling": lambda: (nn.Upsample(scale_factor=2, mode="bicubic"), (torch.randn(1, 1, 3, 3, requires_grad=True),)),
    "adaptive softmax": lambda: (
        nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4]),
        (torch.randn(3, 4), torch.tensor([0, 3, 5])),
    ),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "old weight norm": lambda: (nn.utils.weight_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "old spectral norm": lambda: (nn.utils.spectral_norm(nn.Linear(3, 2)), (torch.randn(2, 3),)),
    "orthogonal": lambda: (nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), (torch.randn(2, 3),)),
    "pruned": lambda: (_pruned(), (torch.randn(2, 3),)),
}


def _pruned() -> nn.Module:
    layer = nn.Linear(3, 2)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.filterwarnings("ignore")
def test_a_module_computes_the_same_there(make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> None:
    def compute(device: torch.device) -> Any:
        module, inputs = make()
        module = module.to(device)
        moved = {id(one): one.to(device) for one in inputs}  # one tensor given twice stays one
        result = module(*(moved[id(one)] for one in inputs))
        tensors = [tensor for tensor in tensors_in([result]) if tensor.requires_grad]
        sum(tensor.sum() for tensor in tensors).backward()
        return tensors, [parameter.grad for parameter in module.parameters()], list(module.buffers())

    on_both(compute)


@pytest.mark.filterwarnings("ignore")
def test_a_transformer_takes_masks_made_anywhere_it_says() -> None:
    def compute(device: torch.device) -> Any:
        layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2).to(device)
        x = torch.randn(3, 2, 4).to(device)
        mask = nn.Transformer.generate_square_subsequent_mask(3, device=device)
        padding = torch.tensor([[False, False, True], [False, True, True]], device=device)
        trained = layer(x, mask=mask, src_key_padding_mask=padding)
        trained.sum().backward()
        with torch.no_grad():
            return trained, layer.eval()(x, mask=mask, src_key_padding_mask=padding)

    on_both(compute)


def test_packed_sequences_keep_their_lengths_on_the_host() -> None:
    def compute(device: torch.device) -> Any:
        batch, lengths = torch.randn(3, 4, 2).to(device).requires_grad_(), torch.tensor([2, 4, 1])
        packed = nn.utils.rnn.pack_padded_sequence(batch, lengths, batch_first=True, enforce_sorted=False)
        assert device_of(packed.batch_sizes) == CPU
        out, (hidden, _) = nn.LSTM(2, 3, batch_first=True).to(device)(packed)
        assert device_of(out.batch_sizes) == CPU
        padded, back = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        assert device_of(back) == CPU
        assert back.tolist() == [2, 4, 1]
        (padded.sum() + hidden.sum()).backward()
        return padded, hidden, batch.grad

    on_both(compute)


def test_lengths_on_a_device_are_refused(machine: Simulator) -> None:
    with pytest.raises(RuntimeError, match="lengths"):
        nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1, device=ONE), torch.tensor([3, 2], device=ONE))


def test_modules_move_whole_and_in_place(machine: Simulator) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = net[0].weight
    for moved in (net.to("cuda:1"), net.cuda(1), net.to(torch.ones(1, device=ONE)), net.to(1)):
        assert moved is net
        assert net[0].weight is weight
        assert {tensor.device for tensor in net.state_dict().values()} == {ONE}
    assert net.half()[0].weight.device == ONE
    assert net.to(torch.float64)[0].weight.dtype == torch.float64
    assert net.to("cuda:0", torch.float32, non_blocking=True)[0].weight.device == torch.device("cuda", 0)
    assert net.cpu()[0].weight.device == CPU
    assert net.to(ONE, memory_format=torch.channels_last)[0].weight.device == ONE
    assert net[0].weight is weight


def test_gradients_move_with_their_parameters(machine: Simulator) -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to(ONE)
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == ONE


def test_modules_of_the_meta_device_are_made_empty_elsewhere(machine: Simulator) -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    with pytest.raises(NotImplementedError, match="meta"):
        layer.to(ONE)
    assert layer.to_empty(device=ONE).weight.device == ONE
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.ones(2, device="meta").to("cuda")
    assert torch.ones(2, device=ONE).to("meta").device.type == "meta"


@pytest.mark.filterwarnings("ignore:Lazy")
def test_lazy_modules_are_made_where_their_input_is() -> None:
    def compute(device: torch.device) -> Any:
        layer = nn.LazyLinear(2).to(device)
        return layer(torch.ones(1, 3, device=device)), layer.weight

    on_both(compute)


def test_weights_can_be_shared_and_swapped(machine: Simulator) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    nn.ModuleList([first, second]).to(ONE)
    assert second.weight is first.weight
    assert second.weight.device == ONE
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert nn.Linear(2, 2).to(ONE).weight.device == ONE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


D = torch.distributions

DISTRIBUTIONS: dict[str, Callable[[Tensor], Any]] = {  # of two ones
    "Normal": lambda x: (
        D.Normal(x, x).rsample(),
        D.Normal(x, 1.0).log_prob(x),
        D.kl_divergence(D.Normal(x, x), D.Normal(x, x)),
    ),
    "Categorical": lambda x: (D.Categorical(logits=x).sample((3,)), D.Categorical(probs=x).entropy()),
    "Bernoulli": lambda x: (D.Bernoulli(logits=x).sample(), D.Bernoulli(0.5 * x).log_prob(x)),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, torch.diag(x)).rsample(),
    "LowRankMultivariateNormal": lambda x: D.LowRankMultivariateNormal(x, x[:, None], x).rsample(),
    "Gamma": lambda x: (D.Gamma(x, x).rsample(), D.Beta(x, x).rsample(), D.Dirichlet(x).rsample()),
    "Poisson": lambda x: (D.Poisson(x).sample(), D.Multinomial(3, x).sample(), D.Geometric(0.5 * x).sample()),
    "StudentT": lambda x: (D.StudentT(x).rsample(), D.Cauchy(x, x).rsample(), D.Laplace(x, x).rsample()),
    "relaxed": lambda x: D.RelaxedOneHotCategorical(x[0], x).rsample(),
    "transformed": lambda x: D.TransformedDistribution(D.Normal(x, x), [D.transforms.TanhTransform()]).rsample(),
    "mixture": lambda x: D.MixtureSameFamily(D.Categorical(x), D.Normal(x, x)).log_prob(x[0]),
    "VonMises": lambda x: D.VonMises(x, x).sample(),
    "LKJCholesky": lambda x: D.LKJCholesky(2, x[0]).sample(),
}


@pytest.mark.parametrize("draw", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_a_distribution_draws_the_same_there(draw: Callable[[Tensor], Any]) -> None:
    on_both(lambda device: draw(torch.ones(2, device=device)))


# Optimizers -----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "SGD without foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "Adam without foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.1, fused=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, 0.1, fused=True),
    "Adam of a tensor learning rate": lambda p: torch.optim.Adam(p, torch.tensor(0.1), foreach=False),
    "maximize": lambda p: torch.optim.Adam(p, 0.1, maximize=True),
}


def _trained(make: Callable[[Any], torch.optim.Optimizer], device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    data = torch.randn(5, 3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(data.to(device)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    state = [
        value
        for entry in optimizer.state.values()
        for name, value in entry.items()
        if name not in ("step", "mu_product")
    ]
    return losses, list(net.parameters()), state


ROUNDED = ("NAdam", "ASGD")  # their kernels over lists, which a device has by default, round otherwise


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_trains_to_the_same_weights_there(name: str) -> None:
    make = OPTIMIZERS[name]
    torch.manual_seed(0)
    expected = _trained(make, CPU)
    with simulate(2):
        torch.manual_seed(0)
        losses, weights, state = _trained(make, ONE)
        for tensor in tensors_in([weights, state]):
            assert device_of(tensor) == ONE
        if name in ROUNDED:
            assert losses == pytest.approx(expected[0], rel=1e-5)
            for one, other in zip(weights, expected[1], strict=True):
                assert torch.allclose(one.cpu(), other, rtol=1e-5, atol=1e-7)
        else:
            assert losses == expected[0]
            assert plain(weights) == plain(expected[1])


def test_step_counters_are_the_hosts_unless_fused_or_capturable(machine: Simulator) -> None:
    for arguments, place in (({}, CPU), ({"fused": True}, ONE), ({"capturable": True}, ONE), ({"foreach": False}, CPU)):
        weight = nn.Parameter(torch.ones(2, device=ONE))
        optimizer = torch.optim.Adam([weight], 0.1, **arguments)
        for _ in range(2):
            weight.grad = torch.ones(2, device=ONE)
            optimizer.step()
        assert optimizer.state[weight]["step"].device == place
        assert optimizer.state[weight]["exp_avg"].device == ONE
        assert optimizer.state[weight]["step"].item() == 2


def test_one_optimizer_serves_parameters_on_several_devices(machine: Simulator) -> None:
    places = [CPU, torch.device("cuda", 0), ONE]
    weights = [nn.Parameter(torch.ones(2, device=place)) for place in places]
    optimizer = torch.optim.Adam(weights, 0.1, foreach=True)
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    total = nn.utils.clip_grad_norm_(weights, 1.0)
    assert total.device == CPU
    optimizer.step()
    assert [weight.device for weight in weights] == places
    assert [optimizer.state[weight]["exp_avg"].device for weight in weights] == places
    assert len({tuple(weight.tolist()) for weight in weights}) == 1


def test_sparse_adam_and_lbfgs() -> None:
    def compute(device: torch.device) -> Any:
        table = nn.Embedding(4, 2, sparse=True).to(device)
        optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
        table(torch.tensor([1, 2], device=device)).sum().backward()
        optimizer.step()
        weight = nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.LBFGS([weight], line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = ((weight - 3) ** 2).sum()
            value.backward()
            return value

        optimizer.step(loss)
        return table.weight, weight

    on_both(compute)


def test_averaged_weights_follow_their_model(machine: Simulator) -> None:
    def compute(device: torch.device) -> Any:
        torch.manual_seed(0)
        net = nn.Linear(2, 2).to(device)
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        mean = torch.optim.swa_utils.AveragedModel(net)
        for _ in range(3):
            with torch.no_grad():
                net.weight += 1
            average.update_parameters(net)
            mean.update_parameters(net)
        return [*average.module.parameters(), *mean.module.parameters()]

    for here, there in zip(compute(CPU), compute(ONE), strict=True):
        assert there.device == ONE
        assert torch.allclose(here, there.cpu())


def test_vectors_of_parameters(machine: Simulator) -> None:
    net = nn.Linear(2, 2).to(ONE)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.device == ONE
    nn.utils.vector_to_parameters(vector * 2, net.parameters())
    assert net.weight.device == ONE
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    assert nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()]).device == ONE
