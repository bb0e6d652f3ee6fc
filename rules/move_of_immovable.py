from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, last_word
from devlint.flow.value import ARRAY, DATA, DICT, LIST, MODULE, TUPLE
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._errors import is_expected
from devlint.rules._moves import short
from devlint.rules._portability import leaves

_MOVES = frozenset({"to", "cuda", "npu", "xpu"})
#: Classes of transformers that prepare what a model is given, and hold no tensors.
_PREPARES = re.compile(r"transformers\.(\w+\.)*\w*(Tokenizer|TokenizerFast|FeatureExtractor|ImageProcessor|Processor)")
#: Packages whose values are no tensors, and modules.
_NO_TENSORS = frozenset({"numpy", "pandas", "sklearn"})
#: Functions of numpy that give an array of whatever they are given. Tried with numpy 2.4.
_MAKES_ARRAYS = frozenset(
    "array asarray asanyarray ascontiguousarray arange eye full fromfile fromiter frombuffer load loadtxt genfromtxt "
    "ones zeros empty stack vstack hstack concatenate expand_dims".split()
)
#: Kinds of values for which numpy never asks a tensor's own method.
_NOT_ASKED = frozenset({ARRAY, DATA, DICT, LIST, TUPLE})


class MoveOfImmovable(Rule):
    """Something that has no `to` is moved, or a model that refuses to be.

    ## What it does
    Reports `to` and `cuda` of tokenizers, feature extractors and processors of transformers, of optimizers, loaders and
    learning rate schedulers, of values of numpy, pandas and scikit-learn, of lists, tuples and dictionaries, also of
    what `parameters()` and `state_dict()` give. Reports, too, models that are loaded in 8 bits and then moved.

    ## Why is this bad
    `AttributeError: 'Wav2Vec2FeatureExtractor' object has no attribute 'to'`: the line ends the program as soon as it
    runs. A model in 8 bits is on its device once it is loaded: transformers raises `ValueError` for `cuda()`, and for
    `to(device)` unless bitsandbytes is new enough (0.48).

    ## Example
    ```python
    import torch
    from transformers import AutoModel, AutoTokenizer


    def load(name: str, device: torch.device):
        tokenizer = AutoTokenizer.from_pretrained(name).to(device)
        return tokenizer, AutoModel.from_pretrained(name).to(device)
    ```

    ## Use instead
    ```python
    import torch
    from transformers import AutoModel, AutoTokenizer


    def load(name: str, device: torch.device):
        tokenizer = AutoTokenizer.from_pretrained(name)
        return tokenizer, AutoModel.from_pretrained(name).to(device)
    ```

    ## Fix safety
    No fix is offered: for an optimizer it is the module that has to be moved before, for a list each of its tensors.

    ## Limits
    Silent where a name may hold something else (bound twice, or a parameter), under `hasattr` and `isinstance`,
    where the error is expected, and for functions of numpy that give a tensor where they may be given one. A model
    counts as one of 8 bits where `load_in_8bit=` is `True`, or a setting of that name is handed on and nothing asks for
    it around the move. New: two faults that projects have mended since; in code that is kept well it has hardly been
    tried.

    ## References
    - [transformers: bitsandbytes](https://huggingface.co/docs/transformers/quantization/bitsandbytes)
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    """

    group = "nursery"
    raises = True

    def check(self) -> None:
        self._bound: dict[cst.CSTNode, dict[str, list[cst.CSTNode]]] = {}  # by the code it is in

    def visit_Call(self, node: cst.Call) -> None:
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _MOVES:
            return
        if func.attr.value == "to" and not node.args:
            return
        made = self._made(func.value)
        what = self._immovable(made) if made is not None else None
        if made is None or is_expected(self, node):
            return
        code, notes = (
            short(self.code(func.value)),
            [self.note(made, "it is made here")] if made is not func.value else [],
        )
        if what is not None and not self._is_asked(node, "hasattr|isinstance"):
            self.report(node, f"`{code}` is {what}, which has no `{func.attr.value}`", notes=notes)
        elif self._is_in_8_bits(made) and not self._is_asked(node, "8_?bit|quant|bnb|hasattr"):
            self.report(node, f"`{code}` is loaded in 8 bits, and refuses to be moved", notes=notes)

    def _made(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """What makes the value: the expression itself, or all that is bound to its name."""
        path, function = dotted(node), self.flow.function(node)
        if not path:
            return node
        if function is not None and path.partition(".")[0] in function.param_names - {"self"}:
            return None
        owner = self.enclosing(node, cst.ClassDef) if path.startswith("self.") else None
        around = owner or (function.node if function is not None else self.source.module)
        if around not in self._bound:
            self._bound[around] = self._bound_in(around)
        bound = self._bound[around].get(path, [])
        # model = joblib.load(f); model = Net()
        assign = self.parent(bound[0]) if len(bound) == 1 and isinstance(bound[0], cst.AssignTarget) else None
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or dotted(assign.targets[0].target) != path:
            return None
        return assign.value

    def _bound_in(self, around: cst.CSTNode) -> dict[str, list[cst.CSTNode]]:
        """What binds each name, or attribute, in a piece of code."""
        bound: dict[str, list[cst.CSTNode]] = {}
        for each in tree.walk(around):
            if isinstance(each, cst.AssignTarget | cst.AnnAssign | cst.For | cst.NamedExpr | cst.AsName | cst.CompFor):
                target = each.name if isinstance(each, cst.AsName) else each.target
                for path in {dotted(target), *self._parts(target)}:
                    bound.setdefault(path, []).append(each)
        return bound

    def _parts(self, target: cst.CSTNode) -> list[str]:
        return [dotted(each.value) for each in target.elements] if isinstance(target, cst.Tuple | cst.List) else []

    def _immovable(self, made: cst.BaseExpression) -> str | None:
        """What the value is, where that has no `to`."""
        if isinstance(made, cst.List | cst.ListComp):
            return "a list"
        if isinstance(made, cst.Dict | cst.DictComp):
            return "a dictionary"
        if isinstance(made, cst.Tuple):
            return "a tuple"
        if not isinstance(made, cst.Call):
            return None
        name = self.flow.scope.qualified(made.func)
        holder, _, method = name.rpartition(".")
        if method == "from_pretrained" and _PREPARES.fullmatch(holder):
            return f"a `{last_word(holder)}`"
        if name in table.OPTIMIZERS or name.startswith("torch.optim.lr_scheduler."):
            return "no module"
        if name == "torch.utils.data.DataLoader":
            return "a loader"
        if name.partition(".")[0] in _NO_TENSORS and "." in name and not self._may_give_tensor(name, made):
            return f"of `{name.partition('.')[0]}`"
        return self._of_module(made)

    def _may_give_tensor(self, name: str, made: cst.Call) -> bool:
        """``np.argmax(scores, axis=1)``: of a tensor, many of numpy's functions give one."""
        if not name.startswith("numpy.") or name.removeprefix("numpy.") in _MAKES_ARRAYS:
            return False
        return any(self.flow.value(arg.value).kind not in _NOT_ASKED for arg in made.args if arg.keyword is None)

    def _of_module(self, made: cst.Call) -> str | None:
        """``net.parameters()``, ``net.state_dict()``"""
        func = made.func
        if not isinstance(func, cst.Attribute) or self.flow.value(func.value).kind != MODULE:
            return None
        return {"state_dict": "a dictionary", "parameters": "a generator"}.get(func.attr.value)

    def _is_in_8_bits(self, made: cst.BaseExpression) -> bool:
        if not isinstance(made, cst.Call) or not self.code(made.func).endswith(".from_pretrained"):
            return False
        given = argument(made, None, "load_in_8bit")
        if given is None:
            return False
        code = self.code(given.value)
        return code == "True" or (last_word(dotted(given.value)) == "load_in_8bit" and "argument" not in code)

    def _is_asked(self, node: cst.Call, words: str) -> bool:
        """Whether a test around the move, or an exit above it, asks for what is moved, or for how it was loaded."""
        child: cst.CSTNode = node
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
            tests: list[cst.BaseExpression] = []
            if isinstance(above, cst.If | cst.IfExp):
                tests = [above.test]
            elif isinstance(above, cst.BooleanOperation):
                tests = [above.left]
            elif isinstance(above, cst.IndentedBlock | cst.Module):
                for each in above.body:
                    if each is child:
                        break
                    if isinstance(each, cst.If) and leaves(each.body):
                        tests.append(each.test)
            if any(re.search(words, self.code(test)) for test in tests):
                return True
            child, above = above, self.parent(above)
        return False
