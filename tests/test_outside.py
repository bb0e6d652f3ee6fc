"""What `devlint.flow.outside` says of the packages around torch, asked of the packages themselves.

Heavy, for it needs those packages: ``pip install -e '.[test,packages]'`` and ``pytest -m packages``. A name that the
installed release does not have (older or newer ones do) is skipped by itself, and so is a package that is not there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from devlint.flow import outside

pytestmark = pytest.mark.packages

META = torch.device("meta")


def named(path: str) -> Any:
    """The object of a dotted path; the test is skipped where the package or the name is not there."""
    package, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not package.startswith(error.name):
            raise  # the package is there, and something that it needs is not
        pytest.skip(f"there is no {error.name}")
    if not hasattr(module, name):
        pytest.skip(f"{path}: no such name in the installed release")
    return getattr(module, name)


def has_torchvision_kernels() -> bool:
    try:
        return bool(importlib.import_module("torchvision.extension")._has_ops())
    except (ImportError, RuntimeError):
        return False


compiled = pytest.mark.skipif(not has_torchvision_kernels(), reason="this torchvision has no kernels for this torch")
COMPILED = {"nms", "batched_nms", "roi_align", "roi_pool"}


def places(module: nn.Module) -> set[str]:
    return {each.device.type for each in (*module.parameters(), *module.buffers())}


@pytest.mark.parametrize("name", sorted(outside.MODULE_BASES))
def test_a_base_is_a_module(name: str) -> None:
    assert issubclass(named(name), nn.Module)


@pytest.mark.parametrize("name", sorted(outside.LOADERS))
def test_a_loader_gives_host_batches(name: str) -> None:
    loader = named(name)
    if name.startswith("torch_geometric"):
        data = named("torch_geometric.data.Data")(x=torch.ones(2, 2), edge_index=torch.zeros(2, 1, dtype=torch.long))
        assert {batch.x.device.type for batch in loader([data, data])} == {"cpu"}
    else:
        assert {batch.device.type for batch in loader(torch.ones(4, 2))} == {"cpu"}


@pytest.mark.parametrize("name", sorted(outside.METRICS))
def test_the_states_of_a_metric_are_tensors_from_the_start(name: str) -> None:
    metric = named(f"torchmetrics.{name}" if hasattr(importlib.import_module("torchmetrics"), name) else _classed(name))
    given = {"num_classes": 3} if name.startswith("Multiclass") else {}
    given = {"num_labels": 3} if name.startswith("Multilabel") else given
    if "task" in inspect.signature(metric.__new__).parameters:
        given = {"task": "multiclass", "num_classes": 3}
    if name.endswith("FBetaScore"):
        given["beta"] = 1.0
    made = metric(**given)
    assert all(isinstance(getattr(made, state), Tensor) for state in made._defaults)


def _classed(name: str) -> str:
    return f"torchmetrics.classification.{name}"


def on_meta(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives for tensors without values; the test is skipped where it needs values, and not else."""
    try:
        return function(*given)
    except RuntimeError as error:  # also no kernel for meta: NotImplementedError is one
        if "meta" not in str(error):
            raise
        pytest.skip(f"cannot be run without values: {error}".splitlines()[0])


MAKERS = {
    "timm.create_model": ("resnet18",),
    "timm.models.create_model": ("resnet18",),
    "segmentation_models_pytorch.create_model": ("unet", "resnet18", None),
    "segmentation_models_pytorch.Unet": ("resnet18", 5, None),
    "segmentation_models_pytorch.FPN": ("resnet18", 5, None),
    "torchvision.models.resnet18": (),
    "torchvision.models.get_model": ("resnet18",),
    "torchvision.models.vgg.vgg11": (),
    "torchvision.models.segmentation.fcn_resnet50": (None, True, None, None, None),
}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_model_is_made_on_the_host_and_on_the_device_that_a_context_names(name: str) -> None:
    assert outside.makes_model(name)
    make, given = named(name), MAKERS[name]
    keywords = {"weights": None, "weights_backbone": None} if "fcn" in name else {}
    given = () if keywords else given
    assert places(make(*given, **keywords)) == {"cpu"}
    with META:
        assert "meta" in places(make(*given, **keywords))


def test_timm_makes_a_model_on_the_device_that_it_is_given() -> None:
    create = named("timm.create_model")
    try:
        made = create("vit_tiny_patch16_224", device="meta")
    except TypeError:
        pytest.skip("older releases of timm take no device")
    assert "meta" in places(made)


@pytest.mark.parametrize(
    "name",
    [
        "torchvision.models.get_weight",
        "torchvision.models.list_models",
        "torchvision.models.feature_extraction.create_feature_extractor",
        "torchvision.models._utils.IntermediateLayerGetter",
        "segmentation_models_pytorch.metrics.get_stats",
        "segmentation_models_pytorch.encoders.get_preprocessing_fn",
    ],
)
def test_what_makes_no_model_of_its_own_is_not_taken_for_one(name: str) -> None:
    named(name)
    assert not outside.makes_model(name)


@compiled
def test_images_are_read_to_the_host() -> None:
    png = named("torchvision.io.encode_png")(torch.zeros(3, 4, 4, dtype=torch.uint8))
    jpeg = named("torchvision.io.encode_jpeg")(torch.zeros(3, 4, 4, dtype=torch.uint8))
    assert named("torchvision.io.decode_png")(png).device.type == "cpu"
    assert named("torchvision.io.decode_image")(png).device.type == "cpu"
    assert named("torchvision.io.decode_jpeg")(jpeg).device.type == "cpu"
    assert "device" in inspect.signature(named("torchvision.io.decode_jpeg")).parameters


@pytest.mark.parametrize("name", ["kornia.image_to_tensor", "kornia.utils.image_to_tensor"])
def test_kornia_turns_an_array_into_a_host_tensor(name: str) -> None:
    import numpy as np

    assert named(name)(np.zeros((4, 4, 3), "uint8")).device.type == "cpu"


BOXES = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
OPERANDS: dict[str, tuple[Any, ...]] = {
    "box_area": (BOXES,),
    "box_convert": (BOXES, "xyxy", "xywh"),
    "clip_boxes_to_image": (BOXES, (2, 2)),
    "masks_to_boxes": (torch.ones(1, 4, 4),),
    "nms": (BOXES, torch.ones(1), 0.5),
    "batched_nms": (BOXES, torch.ones(1), torch.zeros(1), 0.5),
    "roi_align": (torch.ones(1, 1, 4, 4), torch.cat([torch.zeros(1, 1), BOXES], 1), 2),
    "roi_pool": (torch.ones(1, 1, 4, 4), torch.cat([torch.zeros(1, 1), BOXES], 1), 2),
    "rearrange": (torch.ones(2, 3), "a b -> b a"),
    "repeat": (torch.ones(2), "a -> a 2"),
    "reduce": (torch.ones(2, 3), "a b -> a", "mean"),
    "global_mean_pool": (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)),
    "global_add_pool": (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)),
    "global_max_pool": (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)),
    "scatter": (torch.ones(2), torch.zeros(2, dtype=torch.long)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[compiled] if name.rpartition(".")[2] in COMPILED else [])
        for name in sorted(outside.OPERATIONS)
    ],
)
def test_an_operation_gives_tensors_where_its_operands_are(name: str) -> None:
    tail = name.rpartition(".")[2]
    operation = named(name)
    given = OPERANDS.get(tail) or (OPERANDS["scatter"] if tail.startswith("scatter") else (BOXES, BOXES))
    assert operation(*given).device.type == "cpu"
    moved = [each.to(META) if isinstance(each, Tensor) else each for each in given]
    assert on_meta(operation, *moved).device == META


FOLLOWING = {
    "kornia.color.rgb_to_grayscale": (torch.ones(1, 3, 8, 8),),
    "kornia.enhance.adjust_brightness": (torch.ones(1, 3, 8, 8), 0.5),
    "kornia.filters.gaussian_blur2d": (torch.ones(1, 3, 8, 8), (3, 3), (1.0, 1.0)),
    "kornia.filters.sobel": (torch.ones(1, 3, 8, 8),),
    "kornia.geometry.resize": (torch.ones(1, 3, 8, 8), (4, 4)),
    "kornia.geometry.hflip": (torch.ones(1, 3, 8, 8),),
    "kornia.losses.total_variation": (torch.ones(1, 3, 8, 8),),
    "kornia.metrics.mean_iou": (torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long), 2),
    "kornia.morphology.dilation": (torch.ones(1, 3, 8, 8), torch.ones(3, 3)),
    "torchmetrics.functional.mean_squared_error": (torch.ones(4), torch.zeros(4)),
    "torchmetrics.functional.cosine_similarity": (torch.ones(4, 2), torch.zeros(4, 2)),
    "torchvision.transforms.functional.resize": (torch.ones(3, 8, 8), [4, 4]),
    "torchvision.transforms.functional.normalize": (torch.ones(3, 8, 8), [0.5] * 3, [0.5] * 3),
    "torchvision.transforms.functional.center_crop": (torch.ones(3, 8, 8), [4, 4]),
    "torchvision.transforms.v2.functional.resize": (torch.ones(3, 8, 8), [4, 4]),
    "torchvision.transforms.v2.functional.horizontal_flip": (torch.ones(3, 8, 8),),
}


@pytest.mark.parametrize("name", sorted(FOLLOWING))
def test_what_a_function_gives_is_where_its_first_tensor_is(name: str) -> None:
    assert name.startswith(outside.FOLLOWING)
    moved = [each.to(META) if isinstance(each, Tensor) else each for each in FOLLOWING[name]]
    assert on_meta(named(name), *moved).device == META


@pytest.mark.parametrize("name", sorted(outside.MOVERS))
def test_a_mover_gives_what_it_is_given_on_the_device(name: str) -> None:
    assert named(name)({"x": torch.ones(2)}, META)["x"].device == META


@pytest.mark.parametrize(
    "name",
    [
        "torch_geometric.nn.GCNConv",
        "torch_geometric.nn.BatchNorm",
        "kornia.color.RgbToGrayscale",
        "kornia.filters.GaussianBlur2d",
        "kornia.augmentation.RandomHorizontalFlip",
        "kornia.losses.SSIMLoss",
    ],
)
def test_a_layer_of_a_package_is_a_module(name: str) -> None:
    assert name.startswith(outside.LAYERS)
    assert issubclass(named(name), nn.Module)


@pytest.mark.parametrize("prefix", outside.LAYERS)
def test_every_class_of_a_package_of_layers_is_a_module_or_an_enumeration(prefix: str) -> None:
    package = pytest.importorskip(prefix.rstrip("."))
    classes = [each for name, each in vars(package).items() if name[:1].isupper() and inspect.isclass(each)]
    assert classes
    assert [
        each for each in classes if not issubclass(each, nn.Module) and each.__name__ not in outside.NO_LAYERS
    ] == []
