"""Autograd on imaginary devices: the same gradients as on the CPU, each where torch would have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from devlint.runtime.placement import device_of
from devlint.runtime.simulator import Simulator
from imaginary import CPU, ONE, machine, on_both

__all__ = ["machine"]  # the fixture


def test_a_host_scalar_gets_its_gradient_on_the_host(machine: Simulator) -> None:
    scale = torch.tensor(3.0, requires_grad=True)
    values = torch.tensor([1.0, 2.0], device=ONE, requires_grad=True)
    for _ in range(2):
        ((values * scale).sum() + scale.sum() * 2).backward()
    assert scale.grad is not None and values.grad is not None
    assert scale.grad.device == CPU
    assert scale.grad.item() == 10.0
    assert values.grad.device == ONE
    (again,) = torch.autograd.grad((values * scale).sum(), scale)
    assert again.device == CPU


def test_what_a_host_scalar_was_computed_from_stays_on_the_host(machine: Simulator) -> None:
    vector = torch.tensor([1.0, 2.0], requires_grad=True)
    weight = torch.tensor([3.0, 4.0])
    inner = (vector * weight).sum()
    seen: list[torch.device] = []
    inner.register_hook(lambda gradient: seen.append(gradient.device))
    (torch.ones(3, device=ONE) * inner).sum().backward()
    assert vector.grad is not None
    assert vector.grad.device == CPU
    assert vector.grad.tolist() == [9.0, 12.0]
    assert seen == [CPU]


def test_hooks_see_gradients_where_they_are(machine: Simulator) -> None:
    seen: list[tuple[str, torch.device]] = []
    layer = nn.Linear(2, 2).to(ONE)
    layer.weight.register_hook(lambda gradient: seen.append(("leaf", gradient.device)))
    layer.weight.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.device)))
    layer.register_forward_hook(lambda module, args, result: seen.append(("forward", result.device)))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(("backward", outputs[0].device)))
    inner = layer(torch.ones(1, 2, device=ONE, requires_grad=True))
    inner.retain_grad()
    inner.sum().backward()
    assert {name for name, _ in seen} == {"leaf", "accumulated", "forward", "backward"}
    assert {place for _, place in seen} == {ONE}
    assert inner.grad.device == ONE


class Scaled(torch.autograd.Function):
    """Multiplies by 2, with memory of its own in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        factor = torch.full((1,), 2.0, device=x.device)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return gradient * factor + torch.zeros(gradient.shape, device=gradient.device)


class Squared(torch.autograd.Function):
    """In the style that torch.func takes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


@torch.library.custom_op("devlint_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """An operator with a kernel in Python."""
    return x * 2


twice.register_autograd(lambda ctx, gradient: gradient * 2)


class HostGradient(torch.autograd.Function):
    """A backward pass that forgets the device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full(gradient.shape, 2.0)


class SecondUnused(torch.autograd.Function):
    """Two results, of which autograd gives zeros for the one nobody used."""

    seen: torch.device | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        SecondUnused.seen = second.device
        return first * 2 + second * 3


def test_a_custom_function_runs_forward_and_backward() -> None:
    def compute(device: torch.device) -> Any:
        x = torch.arange(3.0, device=device, requires_grad=True)
        y = Scaled.apply(x)
        y.sum().backward()
        return y, x.grad

    on_both(compute)


def test_a_custom_function_that_returns_a_gradient_elsewhere_is_refused(machine: Simulator) -> None:
    x = torch.ones(3, device=ONE, requires_grad=True)
    with pytest.raises(RuntimeError, match="HostGradientBackward returned an invalid gradient at index 0 - expected"):
        HostGradient.apply(x).sum().backward()
    scalar = torch.ones((), device=ONE, requires_grad=True)
    HostGradient.apply(scalar).backward()  # zero-dimensional gradients are moved
    assert scalar.grad is not None
    assert scalar.grad.device == ONE


def test_zeros_made_for_an_unused_result_are_where_the_result_was(machine: Simulator) -> None:
    x = torch.ones(3, device=ONE, requires_grad=True)
    SecondUnused.apply(x)[0].sum().backward()
    assert SecondUnused.seen == ONE
    assert x.grad is not None
    assert x.grad.device == ONE


def test_gradients_of_another_device_are_refused(machine: Simulator) -> None:
    leaf = torch.ones(2, device=ONE, requires_grad=True)
    with pytest.raises(RuntimeError, match="device"):
        leaf.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="device"):
        leaf.grad = torch.ones(2, device="cuda:0")
    leaf.grad = torch.ones(2, device=ONE)
    leaf.grad = None
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device cuda:1 but got cpu"):
        (leaf * 2).backward(torch.ones(2))
    (leaf * 2).backward(torch.ones(2, device=ONE))


def test_a_gradient_that_nothing_computed_is_where_its_tensor_is(machine: Simulator) -> None:
    leaf = torch.ones(2, device=ONE, requires_grad=True)
    (zeros,) = torch.autograd.grad(
        torch.ones((), device=ONE, requires_grad=True) * 1, leaf, allow_unused=True, materialize_grads=True
    )
    assert zeros.device == ONE
    first, _ = torch.stack([leaf, leaf * 2]).unbind(0)
    first.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == ONE


AUTOGRAD: dict[str, Callable[[torch.device], Any]] = {}


def autograd(case: Callable[[torch.device], Any]) -> Callable[[torch.device], Any]:
    AUTOGRAD[case.__name__] = case
    return case


@autograd
def checkpoint_without_reentrance(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).to(device)
    checkpoint(net, torch.ones(3, 4, device=device, requires_grad=True), use_reentrant=False).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@autograd
def checkpoint_with_reentrance(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).to(device)
    checkpoint(net, torch.ones(3, 4, device=device, requires_grad=True), use_reentrant=True).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@autograd
def double_backward(device: torch.device) -> Any:
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (first**2).sum().backward()
    return first, x.grad


@autograd
def gradient_penalty(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    (inner,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (inner.norm(dim=1) - 1).pow(2).mean().backward()
    return x.grad, [parameter.grad for parameter in net.parameters()]


@autograd
def jacobian(device: torch.device) -> Any:
    return torch.autograd.functional.jacobian(lambda x: x**2, torch.arange(3.0, device=device))


@autograd
def hessian(device: torch.device) -> Any:
    return torch.autograd.functional.hessian(lambda x: (x**3).sum(), torch.arange(3.0, device=device))


@autograd
def func_grad(device: torch.device) -> Any:
    return torch.func.grad(lambda x: (x.sin() * torch.ones(3, device=x.device)).sum())(torch.arange(3.0, device=device))


@autograd
def vmap(device: torch.device) -> Any:
    return torch.vmap(lambda x: x * torch.arange(2.0, device=x.device))(torch.ones(3, 2, device=device))


@autograd
def jacrev_and_jacfwd(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device)
    return torch.func.jacrev(torch.sin)(x), torch.func.jacfwd(torch.cos)(x), torch.func.hessian(lambda y: y.prod())(x)


@autograd
def functional_call(device: torch.device) -> Any:
    net = nn.Linear(2, 2).to(device)
    parameters = {name: parameter.detach() * 2 for name, parameter in net.named_parameters()}
    per_sample = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)).sum())
    return torch.vmap(per_sample, in_dims=(None, 0))(parameters, torch.ones(3, 2, device=device))


@autograd
def forward_mode(device: torch.device) -> Any:
    return torch.func.jvp(torch.sin, (torch.ones(2, device=device),), (torch.ones(2, device=device),))


@autograd
def saved_tensor_hooks(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp()
    y.sum().backward()
    return x.grad


@autograd
def accumulated_in_the_tensor(device: torch.device) -> Any:
    x = torch.arange(3.0, device=device, requires_grad=True)
    for _ in range(3):
        (x[1:] ** 2).sum().backward()
    return x.grad


@autograd
def assigned_in_place(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device, requires_grad=True)
    host = torch.ones(2, requires_grad=True)
    y = torch.zeros(4, device=device)
    y[:2] = host
    y[2:].copy_(x[:2])
    (y * 2).sum().backward()
    assert host.grad is not None and device_of(host.grad) == CPU
    return x.grad, y


@autograd
def no_grad_and_inference(device: torch.device) -> Any:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.GELU()).to(device).eval()
    x = torch.ones(2, 2, device=device)
    with torch.no_grad():
        first = net(x)
    with torch.inference_mode():
        second = net(x.reshape(2, 2)).flatten().to(torch.float64)
    return first, second


@autograd
def custom_operator(device: torch.device) -> Any:
    x = torch.ones(3, device=device, requires_grad=True)
    y = twice(x)
    y.sum().backward()
    return y, x.grad


@autograd
def custom_function_under_transforms(device: torch.device) -> Any:
    x = torch.arange(6.0, device=device).view(3, 2)
    return torch.vmap(torch.func.grad(lambda row: Squared.apply(row).sum()))(x)


@autograd
def moves_under_transforms(device: torch.device) -> Any:
    gradient = torch.func.grad(lambda x: (x.to(device) ** 2).sum())(torch.ones(3))
    assert gradient.device == CPU
    return torch.vmap(lambda x: x.to(device) * 2)(torch.ones(3, 2))


@autograd
def stacked_modules(device: torch.device) -> Any:
    nets = [nn.Linear(2, 2).to(device) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)
    call = torch.vmap(lambda p, b, x: torch.func.functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))
    return call(parameters, buffers, torch.ones(1, 2, device=device))


@autograd
def dual_numbers(device: torch.device) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2)).to(device)
        return tuple(torch.autograd.forward_ad.unpack_dual(dual * 2))


@autograd
def anomaly_detection(device: torch.device) -> Any:
    with torch.autograd.detect_anomaly():
        x = torch.ones(2, device=device, requires_grad=True)
        (x * 2).sum().backward()
        return x.grad


@pytest.mark.parametrize("case", AUTOGRAD.values(), ids=AUTOGRAD)
@pytest.mark.filterwarnings("ignore")
def test_autograd_computes_the_same_there(case: Callable[[torch.device], Any]) -> None:
    on_both(case)
