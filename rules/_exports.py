"""What is there for an export: it is recorded for another runtime, which then runs that, and often on the host."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._switches import tests_above
from devlint.testcode import near

#: Files, and functions, that bring a model into another format.
_NAMED = re.compile(r"(^|[/_])(export\w*|onnx\w*|caffe2|tensorrt|trt|coreml|tflite|openvino|convert\w*)([/_.]|$)")
_OTHERS = re.compile(r"(^|[/_])(onnx\w*|tensorrt|trt|coreml|tflite|openvino)([/_.]|$)")
#: Flags of what is done for an export alone.
_FLAG = re.compile(r"(^|_)(onnx|exporting|export|tracing|torchscript|trt)(_|$)")
#: What runs a model once, to write down what it does.
RECORDERS = frozenset(
    "torch.onnx.export torch.onnx.dynamo_export torch.jit.trace torch.jit.trace_module torch.export.export".split()
)

#: What runs models elsewhere than torch does: files that import one of these build what is written out for it.
_RUNTIMES = frozenset({"ai_edge_torch", "coremltools", "executorch", "openvino", "tensorrt", "torch_tensorrt"})


def is_of_export(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node is in a file or a function of that name, or in a file that builds for another runtime, or is
    recorded, or is done under a flag of that name, and never computes what a program needs.

    What such code costs nobody pays for, and where it runs its name does not say.
    """
    function = rule.flow.function(node)
    if _is_asked_for(rule, node):
        return True
    if _NAMED.search("/".join(near(rule.source.path))) is not None:
        return True
    if _RUNTIMES & rule.flow.scope.packages:
        return True
    return function is not None and (_NAMED.search(function.name) is not None or _stands_in(function))


def is_of_other_runtime(rule: Rule) -> bool:
    """``pipeline_onnx_upscale.py``, whose models are another runtime's, so that its tensors stay on the host."""
    return _OTHERS.search("/".join(near(rule.source.path))) is not None


def _is_asked_for(rule: Rule, node: cst.CSTNode) -> bool:
    """``if self.onnx_trace: scores = torch.where(mask, torch.Tensor([low]), scores)``"""
    named = (dotted(test) for test, _, _ in tests_above(rule, node))
    return _FLAG.search(last_word(next(filter(None, named), ""))) is not None


def records(rule: Rule) -> bool:
    """Whether a file writes out a model that it has: `torch.onnx.export(net, example, path)`."""
    return bool(rule.flow.calls(*RECORDERS))


def _stands_in(function: Function) -> bool:
    """Whether an export writes an operator of the other runtime in the place of a function, which has no gradient.

    `class Pick(autograd.Function): def forward(ctx, boxes): return torch.randint(...); def symbolic(g, boxes): ...`
    """
    cls = function.cls
    return cls is not None and cls.find_method("symbolic") is not None and cls.find_method("backward") is None
