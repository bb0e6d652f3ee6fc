"""What the packages around torch do to values, as data, and what a call of one of them gives.

Code that imports them from elsewhere is followed as far as this says: which bases are modules and move what they hold,
which functions make models, loaders and tensors and where, which leave their result where their argument is, and which
move. What is not listed is unknown, never wrong. Nothing here imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from devlint.flow import torch_table as table
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE, Place
from devlint.flow.value import (
    DEVICE,
    HOST_DATA,
    LIST,
    LOADER,
    MODULE,
    NOTHING,
    OBJECT,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    Value,
    element,
    tensor,
)

if TYPE_CHECKING:
    from devlint.flow.arguments import Args
    from devlint.flow.frame import Frame


def _names(prefix: str, text: str) -> list[str]:
    return [prefix + name for name in text.split()]


# Bases ------------------------------------------------------------------------------------------------------

#: Base classes whose subclasses are modules: what moves them moves their parameters, buffers and states.
MODULE_BASES: frozenset[str] = frozenset(
    {
        "pytorch_lightning.LightningModule",
        "pytorch_lightning.core.LightningModule",
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "lightning.pytorch.core.LightningModule",
        "transformers.PreTrainedModel",
        "transformers.modeling_utils.PreTrainedModel",
        "diffusers.ModelMixin",
        "diffusers.models.ModelMixin",
        "diffusers.models.modeling_utils.ModelMixin",
        "torchmetrics.Metric",
        "torchmetrics.metric.Metric",
        "timm.models.vision_transformer.VisionTransformer",
        "timm.models.resnet.ResNet",
        "mmengine.model.BaseModule",
        "mmengine.model.BaseModel",
        "mmcv.runner.BaseModule",
        "fairseq.models.BaseFairseqModel",
        "torch_geometric.nn.MessagePassing",
        "torch_geometric.nn.conv.MessagePassing",
        "gpytorch.Module",
        "gpytorch.models.ExactGP",
        "pyro.nn.PyroModule",
        "sentence_transformers.SentenceTransformer",
        "stable_baselines3.common.torch_layers.BaseFeaturesExtractor",
    }
)
#: Bases that are no modules, hold no tensors of their own and move none: what a subclass makes stays where it is made.
#: By their last word, for they are imported from many places and nothing else is called so.
PLAIN_BASES: frozenset[str] = frozenset(
    "ABC ConfigMixin Generic NamedTuple Protocol PushToHubMixin SchedulerMixin LogitsProcessor LogitsWarper "
    "StoppingCriteria TrainerCallback".split()
)


# Calls ------------------------------------------------------------------------------------------------------

#: Iterating one gives batches on the host.
LOADERS: frozenset[str] = table.LOADERS | frozenset(
    [
        *_names("torch_geometric.loader.", "DataLoader DenseDataLoader"),
        "torch_geometric.data.DataLoader",
        "torchdata.stateful_dataloader.StatefulDataLoader",
        "monai.data.DataLoader",
    ]
)
#: Give parts of one graph, wherever that is: ``data.to(device, "x")`` moves it in place before.
_OF_ONE_GRAPH = frozenset(
    _names(
        "torch_geometric.loader.",
        "NeighborLoader LinkNeighborLoader HGTLoader ClusterLoader GraphSAINTRandomWalkSampler GraphSAINTNodeSampler "
        "GraphSAINTEdgeSampler ShaDowKHopSampler",
    )
)
#: Metrics of torchmetrics whose states are tensors from the start; those of others are lists, or it depends.
METRICS: frozenset[str] = frozenset(
    [
        prefix + name
        for prefix in ("", "Binary", "Multiclass", "Multilabel")
        for name in (
            "Accuracy CohenKappa ConfusionMatrix F1Score FBetaScore HammingDistance JaccardIndex MatthewsCorrCoef "
            "NegativePredictiveValue Precision Recall Specificity StatScores"
        ).split()
    ]
    + "MeanAbsoluteError MeanSquaredError PearsonCorrCoef".split()
)
_SEGMENTATION = (
    "Unet UnetPlusPlus MAnet Linknet FPN PSPNet PAN DeepLabV3 DeepLabV3Plus UPerNet Segformer DPT create_model"
)
#: Make a model, where factories put things, unless they are given a ``device``.
_MODELS: frozenset[str] = frozenset(
    ["timm.create_model", "timm.models.create_model", *_names("segmentation_models_pytorch.", _SEGMENTATION)]
)
#: So do the functions of this package, but for those that look things up or take a model apart.
_TORCHVISION = "torchvision.models."
_NO_MODELS = frozenset(
    "get_weight get_model_weights get_model_builder list_models register_model "
    "create_feature_extractor get_graph_node_names".split()
)
#: Make tensors on the host: they read a file, or convert an image.
HOST_TENSORS: frozenset[str] = frozenset(
    [
        *_names("torchvision.transforms.functional.", "to_tensor pil_to_tensor"),
        *_names("torchvision.io.", "read_image decode_image decode_jpeg decode_png"),
        "kornia.image_to_tensor",
        "kornia.utils.image_to_tensor",
    ]
)
_FIRST, _ALL = table.Op("first", reduces="adds"), table.Op("all", strict=True, reduces="adds")
#: Compute tensors from tensors.
OPERATIONS: dict[str, table.Op] = {
    **dict.fromkeys(_names("torchvision.ops.", "box_area box_convert clip_boxes_to_image masks_to_boxes"), _FIRST),
    **dict.fromkeys(
        _names(
            "torchvision.ops.",
            "box_iou generalized_box_iou complete_box_iou distance_box_iou nms batched_nms roi_align roi_pool",
        ),
        _ALL,
    ),
    **dict.fromkeys(_names("einops.", "rearrange repeat"), _FIRST),
    "einops.reduce": table.Op("first", reduces="maybe"),
    **dict.fromkeys(_names("torch_scatter.", "scatter scatter_add scatter_mean scatter_sum scatter_mul"), _ALL),
    **dict.fromkeys(
        _names("torch_geometric.nn.", "global_mean_pool global_add_pool global_max_pool"),
        table.Op("all", reduces="adds"),
    ),
}
#: Packages whose functions leave what they give where the first tensor is; some move the others to it themselves.
FOLLOWING = (
    "kornia.color.",
    "kornia.enhance.",
    "kornia.filters.",
    "kornia.geometry.",
    "kornia.losses.",
    "kornia.metrics.",
    "kornia.morphology.",
    "torchmetrics.functional.",
    "torchvision.transforms.functional.",
    "torchvision.transforms.v2.functional.",
)
#: Starts of the names of those that give sizes, flags, and images of another library.
_OF_SIZES = ("get_", "is_", "to_pil", "to_numpy", "tensor_to_image")
#: Packages whose classes are modules, of parameters or of none; and those of them that are not.
LAYERS = ("torch_geometric.nn.", "kornia.color.", "kornia.filters.", "kornia.augmentation.", "kornia.losses.")
NO_LAYERS = frozenset(
    "KNNIndex L2KNNIndex MIPSKNNIndex ApproxL2KNNIndex ApproxMIPSKNNIndex ColorMap ColorMapType CFA MIKernel".split()
)
#: ``send_to_device(batch, device)``: what they are given first, moved to the second.
MOVERS = frozenset(
    {
        "accelerate.utils.send_to_device",
        "accelerate.utils.operations.send_to_device",
        "ignite.utils.convert_tensor",
        *_names("lightning.fabric.utilities.", "move_data_to_device apply_func.move_data_to_device"),
        *_names("lightning_fabric.utilities.", "move_data_to_device apply_func.move_data_to_device"),
        "pytorch_lightning.utilities.move_data_to_device",
    }
)
#: Spread a model over devices, and move what it is handed.
_DISPATCHERS = frozenset(
    _names("accelerate.", "dispatch_model load_checkpoint_and_dispatch cpu_offload disk_offload")
    + _names("accelerate.big_modeling.", "dispatch_model load_checkpoint_and_dispatch cpu_offload disk_offload")
)
#: Methods of an ``Accelerator`` that give what they are given, from all processes, where it is.
_GATHERING = frozenset("gather gather_for_metrics reduce pad_across_processes unwrap_model".split())


def makes_model(name: str) -> bool:
    """A function or class that makes a model of its own; ``models.detection.MaskRCNN(backbone)`` is made of another."""
    if not name.startswith(_TORCHVISION):
        return name in _MODELS
    tail = name.rpartition(".")[2]
    return tail[:1].islower() and tail not in _NO_MODELS


def call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value | None:
    """What a function or class of one of the packages gives; ``None`` where nothing is known of it."""
    tail = name.rpartition(".")[2]
    first = args.value(0)
    if makes_model(name):
        return Value(MODULE, _given_place(frame, args) or frame.default_place(), node, ref=name, obj=node, holds=True)
    if name in HOST_TENSORS:
        place = _given_place(frame, args) or HOST  # decode_jpeg takes a device
        return tensor(place, node, zero=False, pinned=False, tracked=False)
    if name in MOVERS:
        given = args.get(1, "device")
        known = first is not None and first.kind in (TENSOR, THING)
        if given is None or first is None or not known:
            return UNKNOWN
        return first.but(place=frame.device_place(given[1], given[0]), origin=node, pinned=None, attr=None)
    if name in _OF_ONE_GRAPH:
        return Value(LOADER, UNKNOWN_PLACE, node)
    if name in _DISPATCHERS:
        return Value(MODULE, UNKNOWN_PLACE, node, obj=node, text="moves its inputs")
    if name in ("ignite.distributed.device", "accelerate.utils.get_device"):
        return Value(DEVICE, SOMEWHERE, node, ref=OBJECT)
    if name == "ignite.distributed.auto_model":
        inner = args.value(0, "model") or UNKNOWN
        return Value(MODULE, SOMEWHERE, node, obj=inner.obj or node, text="moves its inputs")
    if name == "ignite.distributed.auto_dataloader":
        return Value(LOADER, HOST, node)
    if name.startswith(LAYERS) and tail[:1].isupper() and tail not in NO_LAYERS:
        return Value(MODULE, frame.default_place(), node, ref=name, obj=node)
    if name.startswith(FOLLOWING) and tail[:1].islower() and not tail.startswith(_OF_SIZES):
        return _follow(node, first)
    return None


def _given_place(frame: Frame, args: Args) -> Place | None:
    given = args.get(None, "device")
    if given is not None:
        return frame.device_place(given[1], given[0])
    return UNKNOWN_PLACE if args.starred else None


def _follow(node: cst.Call, first: Value | None) -> Value:
    if first is not None and first.kind in (LIST, TUPLE):
        first = element(first)
    if first is None or not first.holds_tensors or first.ref == "moved":
        return UNKNOWN
    return Value(THING, first.place, first.origin, attr=first.attr)


def accelerator_method(name: str, args: Args) -> Value:
    """What a method of accelerate's ``Accelerator`` gives."""
    if name in _GATHERING:
        value = args.value(0) or UNKNOWN
        return value if value.kind in (TENSOR, THING, MODULE) else UNKNOWN
    if name in ("backward", "wait_for_everyone", "print", "log", "clip_grad_norm_"):
        return NOTHING if name != "clip_grad_norm_" else UNKNOWN
    return HOST_DATA if name == "set_trigger" else UNKNOWN
