from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from devlint import tree
from devlint.finding import Fix, Note
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.flow.steps import function_called
from devlint.flow.value import DATA, DICT, LIST, OBJECT, OF_TENSOR, TUPLE, Value
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._copied import is_copied
from devlint.rules._decides_little import only_brings, only_moves_there, only_tells
from devlint.rules._handed_tensor import compared_device
from devlint.rules._moves import short
from devlint.rules._perhaps_device import is_surely_object
from devlint.rules._taken_for_text import taken_for_text
from devlint.rules._text_for_device import defaults_without_type
from devlint.rules._training import bound_paths, is_inside

#: What `device.type` may be.
_TYPES = {
    "cpu",
    "cuda",
    "mps",
    "xpu",
    "npu",
    "hpu",
    "mlu",
    "musa",
    "xla",
    "meta",
    "privateuseone",
    "ipu",
    "mtia",
    "maia",
}


class DeviceComparedToString(Rule):
    """A `torch.device` is compared to a string, which it never equals.

    ## What it does
    Reports `==`, `!=`, `in` and `not in` between what is surely a `torch.device` and strings, the lookup of one in
    a dictionary whose keys name devices, and `tensor.device == torch.device("cuda")`, also where the latter was
    bound to a name before. Reports, too, `str(device) == "cuda"`, which leaves out `cuda:0`, and types that no device
    has: `device.type == "gpu"`, `x.device.type == "cuda:0"`, `"gpu" in str(device)`; one device that is compared to a
    list of names, which `in` is meant for; the name of a parameter in quotes: `"device" == "cuda"`; and what is
    done with strings: `x.device.startswith("cuda")`, `x.device[:4] == "cuda"`, `"on " + x.device`. As tentative, the
    other way round, a parameter that is the string `"cpu"` by default, and asked for its `type`.

    ## Why is this bad
    A `torch.device` equals only a `torch.device`: `device == "cuda"` is false, and `device != "cuda"` true, on every
    machine. The branch meant for one kind of device is never taken, without a word. A dictionary with string keys
    raises `KeyError`, or gives the default; a method of strings raises `AttributeError`, a part `TypeError`.

    A tensor's device carries an index: `cuda:0`. It does not equal `torch.device("cuda")`, which has none.

    ## Example
    ```python
    import torch


    def autocast_enabled(x: torch.Tensor):
        return x.device == "cuda"
    ```

    ## Use instead
    ```python
    import torch


    def autocast_enabled(x: torch.Tensor):
        return x.device.type == "cuda"
    ```

    ## Fix safety
    The fix compares `.type`: safe, as what it replaces has one outcome only. A string with an index is compared to
    `str(device)`: unsafe, since `cuda` and `cuda:0` may mean the same device, and so is `cuda` for `gpu`. A method of
    strings is asked of `str(device)`: safe, as a string is the same there. It is unsafe, too, for a parameter
    that may be `None`, and where both sides are a `torch.device` bound before: another index may be meant to differ.

    ## Limits
    Silent where the value may be a string: a parameter that is not annotated, or has a string for a default, or is
    asked for a word that is no device; an attribute that is only called `device`; what one branch makes a
    `torch.device` and another leaves a string. Silent for `if x.device != "cpu":` above nothing but moves to the host,
    which do no harm, and for `if x.device != device:` above nothing but moves. Held back as tentative: the `device` of
    a parameter that is a tensor by its use alone (`x.to(...)`), what is a `torch.device` by its annotation only, a
    parameter that is annotated as either, or that may be a string and is handed a `torch.device` by a call in the file,
    `x.device == torch.device(name)` where a parameter tells the name,
    perhaps with an index, `"gpu" in str(device)` of what is only called so (silent where the file calls a device `gpu`
    anywhere, as other libraries do), `str(device) == "cuda"` unless the device is a tensor's, the type of what is only
    called `device`, a list of names where nothing else says that there is one device, what decides on a warning or a
    line of a log alone, and code that says that it was copied.

    In the nursery: the comparison is wrong in nearly each finding, but what it decides on often comes to the same. Of
    12 findings in repositories that nobody had tuned for, 5 were worth a change.

    ## References
    - [torch.device](https://pytorch.org/docs/stable/tensor_attributes.html#torch.device)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        if "device" not in self.source.text:
            return
        for node, device, said in taken_for_text(self):
            if self._is_told_apart(node, device):
                continue
            shown = short(self.code(device))
            edits = self.insert_before(device, "str("), self.insert_after(device, ")")
            # int(str(device))  raises as well
            fix = self.fix("take its text", *edits, safe=True) if said != "is no number" else None
            surely = is_surely_object(self, device) and not is_copied(self, node)
            message = f"`{shown}` is a `torch.device`, which {said}: this raises"
            self.report(node, message, notes=self._notes(device), fix=fix, tentative=not surely)
        for param, read in defaults_without_type(self):
            assert param.default is not None
            said = f"`{param.name.value}` is the string `{self.code(param.default)}` where no call says otherwise"
            note = self.note(read, "its `type` is read here")
            self.report(param, f"{said}, and a string has no `type`", notes=[note], tentative=True)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        if len(node.comparisons) != 1:
            return
        left, operator, right = node.left, node.comparisons[0].operator, node.comparisons[0].comparator
        if isinstance(operator, cst.Equal | cst.NotEqual):
            outcome = "never equals" if isinstance(operator, cst.Equal) else "always differs from"
            for device, other in ((left, right), (right, left)):
                if isinstance(device, cst.SimpleString) and isinstance(other, cst.SimpleString):
                    self._name_in_quotes(node, device, other, outcome)
                elif isinstance(other, cst.List | cst.Tuple | cst.Set):
                    self._compared_to_several(node, device, other, outcome)
                elif self.flow.value(device).is_device_object:
                    self._compared(node, device, other, outcome)
                elif isinstance(device, cst.Attribute) and device.attr.value == "type":
                    self._type_compared(node, device, other, outcome)
                else:
                    self._compared_as_text(node, device, other)
                    self._compared_if_object(node, device, other)
                    self._asked_for_gpu(node, device, other)  # str(device) == "gpu"
            self._of_handed(node, outcome)
        elif isinstance(operator, cst.In | cst.NotIn):
            if self.flow.value(left).is_device_object:
                if texts := self._texts_in(right):
                    self._report(node, left, f"which is never one of the strings `{short(self.code(right))}`", texts)
                elif texts := self._keys(right):
                    self._report(
                        node, left, f"which is never a key of `{short(self.code(right))}`: those are strings", texts
                    )
            elif self.flow.value(right).is_device_object and (texts := _texts([self.flow.value(left)])):
                self._report(node, right, "which is no string: `in` raises", texts)
            else:
                self._compared_if_object(node, left, right)  # device not in "cpu"
                self._asked_for_gpu(node, right, left)  # "gpu" in str(device)

    def _of_handed(self, node: cst.Comparison, outcome: str) -> None:
        """``def pad(x): if x.device == "npu": x = x.cpu()``"""
        found = compared_device(self, node)
        if found is None or self.flow.value(found[0]).is_device_object or only_moves_there(self, node, found[1]):
            return
        code, tensor = self.code(found[0]), self.code(found[0].value)
        said = f"`{code}` is a `torch.device` where `{tensor}` is a tensor, and {outcome} a string"
        self.report(node, said, tentative=True)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        if isinstance(self.parent(node), cst.AssignTarget):
            return  # cache[x.device] = table
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            self._looked_up(node, node.value, node.slice[0].slice.value)

    def visit_Call(self, node: cst.Call) -> None:
        if type(node.func) is not cst.Attribute:
            return
        if node.func.attr.value == "get" and node.args:
            self._looked_up(node, node.func.value, node.args[0].value)
        if node.func.attr.value in _OF_STRINGS:
            self._taken_for_string(node, node.func)
            if node.args and node.func.attr.value in ("startswith", "find", "count"):
                self._asked_for_gpu(node, node.func.value, node.args[0].value)  # str(device).startswith("gpu")

    def _taken_for_string(self, call: cst.Call, method: cst.Attribute) -> None:
        """``x.device.startswith("cuda")``, which raises, for it is a method of strings."""
        device, name = method.value, method.attr.value
        value = self.flow.value(device)
        # "a,b".split(",")   most that is asked so is text; where.startswith("cuda:")
        asked = (str(arg.value.evaluated_value) for arg in call.args if isinstance(arg.value, cst.SimpleString))
        is_named = names_device(last_word(dotted(device))) or any("cuda" in word for word in asked)
        if not value.is_device_object and not is_named:
            return
        if self._is_told_apart(call, device):
            return
        shown = short(self.code(device))
        fix = self.fix("ask its text", self.insert_before(device, "str("), self.insert_after(device, ")"), safe=True)
        if value.is_device_object:
            said = f"`{shown}` is a `torch.device`, which has no `{name}`: this raises"
            surely = is_surely_object(self, device) and not is_copied(self, call)
            self.report(call, said, notes=self._notes(device), fix=fix, tentative=not surely)
            return
        param = self._parameter_of(device)
        handed = self._handed(param) if param is not None else None
        if handed is not None:
            said = f"`{shown}` is handed a `torch.device`, which has no `{name}`"
            notes = [self.note(handed, "it is handed in here")]
            self.report(call, said, notes=notes, fix=fix, tentative=True)  # other calls may hand in strings

    def _is_told_apart(self, node: cst.CSTNode, device: cst.BaseExpression) -> bool:
        """Whether a test or a handler around a node tells strings from other devices."""
        # if isinstance(device, str): ...; if hasattr(device, "split"): ...; if type(device) is str: ...
        # try: kind = device.split(":")[0]  except AttributeError: kind = device.type
        name, child, above = self.code(device), node, self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.Try) and child is above.body:
                return True
            asked = (
                above.left
                if isinstance(above, cst.BooleanOperation) and child is above.right
                else above.test
                if isinstance(above, cst.If | cst.IfExp | cst.While) and child is not above.test
                else None
            )
            if asked is not None and any(
                f"{test}({name}" in self.code(asked) for test in ("isinstance", "hasattr", "type")
            ):
                return True
            child, above = above, self.parent(above)
        return False

    def _asked_for_gpu(
        self, node: cst.Comparison | cst.Call, text: cst.BaseExpression, word: cst.BaseExpression
    ) -> None:
        """``"gpu" in str(device)``: no device of torch is called so."""
        device, asked = _shown(text), str(word.evaluated_value) if isinstance(word, cst.SimpleString) else ""
        if device is None or not (asked.lower() == "gpu" or asked.lower().startswith("gpu:")):
            return
        value = self.flow.value(device)
        if not value.is_device_object and not names_device(last_word(dotted(device))):
            return
        is_sure = value.is_device_object and is_surely_object(self, device)
        if not is_sure and self._names_gpus(word):
            return
        if isinstance(node, cst.Comparison):
            is_denied = isinstance(node.comparisons[0].operator, cst.NotIn | cst.NotEqual)
            said = f"`{short(self.code(node))}` is {'always' if is_denied else 'never'} true"
        else:
            said = f"`{short(self.code(node))}` never finds it"
        quote = word.value[0] if isinstance(word, cst.SimpleString) else ""
        whole = isinstance(node, cst.Comparison) and isinstance(node.comparisons[0].operator, cst.Equal | cst.NotEqual)
        fixable = quote in ("'", '"') and not whole  # str(device) == "cuda"  leaves out `cuda:0`
        fix = self.fix("look for `cuda`", self.replace(word, f"{quote}cuda{asked[3:]}{quote}"), safe=False)
        self.report(
            node,
            f"{said}: no device of torch is called `{asked.partition(':')[0]}`",
            fix=fix if fixable else None,
            tentative=not is_sure or self._matters_little(node),
        )

    def _names_gpus(self, word: cst.BaseExpression) -> bool:
        """Whether the file has that name for devices, as those of another library are called so, or speaks to one."""
        # Trainer(accelerator="gpu"); choices=["cpu", "gpu"]; where = "gpu:0" if tf.test.is_gpu_available() else "cpu"
        return bool(self.flow.scope.packages & _WITH_GPUS) or any(
            text is not word
            and isinstance(text.evaluated_value, str)
            and text.evaluated_value.lower().partition(":")[0] == "gpu"
            and not self._is_asked(text)
            for text in self.source.nodes_of(cst.SimpleString)
        )

    def _is_asked(self, text: cst.SimpleString) -> bool:
        """``"gpu" in str(device)``, elsewhere in the file."""
        above = self.parent(text)
        if isinstance(above, cst.ComparisonTarget | cst.Arg):
            above = self.parent(above)
        if isinstance(above, cst.Call):
            return isinstance(above.func, cst.Attribute) and _shown(above.func.value) is not None
        sides = [above.left, above.comparisons[0].comparator] if isinstance(above, cst.Comparison) else []
        return any(_shown(side) is not None for side in sides)

    def _compared(
        self, node: cst.Comparison, device: cst.BaseExpression, other: cst.BaseExpression, outcome: str
    ) -> None:
        against = self.flow.value(other)
        if against.kind == DATA and against.text is not None:
            if self._takes_other_words(device, against.text) or self._is_text_there(node, device):
                return
            if only_moves_there(self, node, against.text):
                return  # if x.device != "cpu": x = x.to("cpu")  moves nothing where it need not have been asked
            texts = _texts([against]) or []  # f"cuda:{rank}"
            self._report(node, device, f"which {outcome} the string `{short(self.code(other))}`", texts)
        elif self.flow.value(device).ref == OF_TENSOR and (kind := self._without_index(other)) is not None:
            message = f"`{short(self.code(device))}` has an index, and {outcome} `{self.code(other)}`"
            edits = self.insert_after(device, ".type"), self.replace(other, self.code(kind), outer=True)
            fix = self.fix("compare its `type`", *edits, safe=True)
            self.report(node, message, fix=fix, tentative=self._matters_little(node))
        elif self.flow.value(device).ref == OF_TENSOR and self.flow.value(other).ref == OBJECT:
            self._compared_to_bound(node, device, other, outcome)

    def _compared_to_several(
        self, node: cst.Comparison, device: cst.BaseExpression, several: cst.BaseExpression, outcome: str
    ) -> None:
        """``device == ["cuda", "gpu"]``, which `in` is meant for."""
        texts = self._texts_in(several) or []
        path = dotted(device)
        if not texts or any(text.partition(":")[0].lower() not in _TYPES | {"gpu"} for text in texts):
            return
        is_type = path.endswith(".type") and names_device(last_word(path.removesuffix(".type")))
        is_object = self.flow.value(device).is_device_object
        if not (is_type or is_object or names_device(last_word(path))):
            return
        operator = node.comparisons[0].operator
        edit = self.replace(operator, "in" if isinstance(operator, cst.Equal) else "not in")
        fixable = several is node.comparisons[0].comparator and not is_object
        self.report(
            node,
            f"`{short(self.code(device))}` is one device, and {outcome} `{short(self.code(several))}`",
            fix=self.fix("ask whether it is among them", edit, safe=False) if fixable else None,
            # device == ["cuda:0", "cuda:1"]  may be told several
            tentative=not (is_type or is_object or self._is_compared_to_text(node, path)),
        )

    def _is_compared_to_text(self, node: cst.Comparison, path: str) -> bool:
        """``if device == "cpu": ... elif device == ["cuda", "gpu"]:``: it is a string."""
        function = self.flow.function(node)
        return any(
            dotted(each.left) == path
            and isinstance(each.comparisons[0].comparator, cst.SimpleString)
            and self.flow.function(each) is function
            for each in self.source.nodes_of(cst.Comparison)
        )

    def _name_in_quotes(
        self, node: cst.Comparison, name: cst.SimpleString, text: cst.SimpleString, outcome: str
    ) -> None:
        """``"device" == "GPU"``, where a parameter is called so."""
        word, function = str(name.evaluated_value), self.flow.function(node)
        kind = str(text.evaluated_value).partition(":")[0].lower()
        if kind in _TYPES | {"gpu"} and function is not None and word in function.param_names:
            fix = self.fix(f"compare `{word}`", self.replace(name, word), safe=False)
            self.report(node, f"the string {self.code(name)} {outcome} {self.code(text)}", fix=fix)

    def _compared_to_bound(
        self, node: cst.Comparison, device: cst.BaseExpression, other: cst.BaseExpression, outcome: str
    ) -> None:
        """``where = torch.device("cuda")`` and then ``x.device == where``; ``x.device == torch.device(name)``."""
        made = self.flow.value(other).origin
        if not isinstance(made, cst.Call) or self.flow.name_of(made) != "torch.device" or len(made.args) != 1:
            return
        told = self._told_no_index(made.args[0].value)
        if told is None or only_brings(self, node):
            return
        shown = short(self.code(other))
        edits = self.insert_after(device, ".type"), self.insert_after(other, ".type")
        self.report(
            node,
            f"`{short(self.code(device))}` has an index, and {outcome} `{shown}`, which has none"
            + ("" if told else " where it was told none"),
            notes=[self.note(made, f"`{shown}` is made here")] if made is not other else (),
            fix=self.fix("compare their `type`", *edits, safe=False),
            tentative=not told or self._matters_little(node),
        )

    def _told_no_index(self, named: cst.BaseExpression) -> bool | None:
        """Whether ``torch.device(named)`` has no index; ``False`` where a parameter tells it, and may name one."""
        if isinstance(named, cst.IfExp):  # torch.device("cuda" if torch.cuda.is_available() else "cpu")
            sides = [self._told_no_index(named.body), self._told_no_index(named.orelse)]
            return True if True in sides else False if False in sides else None
        value = self.flow.value(named)
        if isinstance(named, cst.SimpleString):
            return True if value.text in _TYPES - {"cpu", "meta"} else None
        # def build(net, name): at = torch.device(name)   and not what another call gave, which may be a tensor's
        function = self.flow.function(named)
        param = function.param(named.value) if function is not None and isinstance(named, cst.Name) else None
        if param is None or value.is_device_object:
            return None
        written = self.code(param.annotation) if param.annotation is not None else ""
        default = self.flow.value(param.default).text if param.default is not None else None
        # def fits(x, device): x.device == torch.device(device)   may be handed the device of a tensor
        return False if "str" in written or default in _TYPES else None

    def _type_compared(
        self, node: cst.Comparison, kind: cst.Attribute, other: cst.BaseExpression, outcome: str
    ) -> None:
        """``device.type == "gpu"``, ``x.device.type != "cuda:0"``: no type is called so."""
        text = str(other.evaluated_value) if isinstance(other, cst.SimpleString) else ""
        if text != "gpu" and not (":" in text and text.partition(":")[0] in _TYPES):
            return
        device = kind.value
        is_sure = self.flow.value(device).is_device_object
        if is_sure or names_device(dotted(device).rpartition(".")[2]):
            right = "cuda" if text == "gpu" else text.partition(":")[0]
            quote = other.value[0] if isinstance(other, cst.SimpleString) else ""
            fix = self.fix(f"compare it to `{right}`", self.replace(other, f"{quote}{right}{quote}"), safe=False)
            said = f"`{short(self.code(kind))}` {outcome} `{self.code(other)}`: no type is called so"
            self.report(node, said, fix=fix if quote in "\"'" else None, tentative=not is_sure)

    def _takes_other_words(self, device: cst.BaseExpression, text: str) -> bool:
        """``def to(self, device: torch.device): if device == "pinned": ...`` is handed strings, too."""
        value = self.flow.value(device)
        return value.ref != OF_TENSOR and isinstance(value.origin, cst.Param) and text.partition(":")[0] not in _TYPES

    def _is_text_there(self, node: cst.Comparison, device: cst.BaseExpression) -> bool:
        """``isinstance(self.device, str) and self.device == "meta"``: it is asked whether it is a string, first."""
        asked = f"isinstance({self.code(device)}, str)"
        child: cst.CSTNode = node
        parent = self.parent(node)
        while parent is not None and not isinstance(parent, cst.FunctionDef):
            if isinstance(parent, cst.BooleanOperation) and child is parent.right and asked in self.code(parent.left):
                return True
            if isinstance(parent, cst.If) and child is parent.body and asked in self.code(parent.test):
                return True
            child, parent = parent, self.parent(parent)
        return False

    def _compared_as_text(self, node: cst.Comparison, text: cst.BaseExpression, other: cst.BaseExpression) -> None:
        """``str(device) == "cuda"``, which is false for ``cuda:0``."""
        if not isinstance(text, cst.Call) or dotted(text.func) != "str" or len(text.args) != 1:
            return
        kind = self.flow.value(other).text
        if kind not in _TYPES - {"cpu", "meta"}:
            return
        device = text.args[0].value
        value, name = self.flow.value(device), dotted(device)
        if not names_device(name.rpartition(".")[2]):
            return
        # device = torch.device("cuda" if torch.cuda.is_available() else "cpu"): it has none
        if value.ref != OF_TENSOR and (
            isinstance(value.origin, cst.Call) or any(name in names for names in self._chosen_here())
        ):
            return
        edits = self.replace(text, f"{self.code(device)}.type")
        self.report(
            node,
            f"`{short(self.code(node))}` leaves out `{kind}:0` and the like, which have an index",
            fix=self.fix("compare its `type`", edits, safe=False),
            tentative=value.ref != OF_TENSOR or self._matters_little(node),  # it may never be told an index
        )

    def _chosen_here(self) -> Iterator[set[str]]:
        """The names that assignments of this file bind."""
        for assign in self.source.nodes_of(cst.Assign):
            yield {dotted(target.target) for target in assign.targets}

    def _compared_if_object(self, node: cst.Comparison, device: cst.BaseExpression, other: cst.BaseExpression) -> None:
        """``def f(x, device): ... device == "cuda"`` where it may be a string, and a ``torch.device`` as well."""
        texts = self._texts_in(other) or _texts([self.flow.value(other)]) or []
        if (
            not texts
            or any(text.partition(":")[0] not in _TYPES for text in texts)
            or self._is_text_there(node, device)
        ):
            return
        param = self._parameter_of(device)
        if param is None or only_moves_there(self, node, texts[0]) or self._is_compared_as_object(node, device):
            return
        handed = self._handed(param)
        either = param.annotation is not None and {"torch.device", "str"} <= set(
            self.flow.scope.qualified_names(param.annotation)
        )
        if handed is None and not either:
            return
        shown = short(self.code(device))
        self.report(
            node,
            f"`{shown}` is handed a `torch.device`, which no string equals"
            if handed is not None
            else f"`{shown}` takes a `torch.device` as well, as annotated, which no string equals",
            notes=[
                self.note(handed or param, "it is handed in here" if handed is not None else "it is annotated here")
            ],
            fix=self._compare_types(node, device, texts),
            tentative=True,  # a string that another call hands in is compared as meant
        )

    def _is_compared_as_object(self, node: cst.Comparison, device: cst.BaseExpression) -> bool:
        """``where == "meta" or where == torch.device("meta")``"""
        test: cst.CSTNode = node
        while isinstance(above := self.parent(test), cst.BooleanOperation):
            test = above
        return any(
            isinstance(each, cst.Comparison)
            and self.code(each.left) == self.code(device)
            and self.flow.value(each.comparisons[0].comparator).is_device_object
            for each in tree.walk(test)
        )

    def _parameter_of(self, device: cst.BaseExpression) -> cst.Param | None:
        """The parameter that a name is, or that a constructor keeps as `self.device`, where nothing else binds it."""
        function = self.flow.function(device)
        path = dotted(device)
        if path.startswith("self.") and function is not None and function.cls is not None:
            stored = [statement for statement, _ in self.flow.stores(function.cls, path[5:])]
            if len(stored) != 1 or not isinstance(stored[0], cst.Assign):
                return None
            path, function = dotted(stored[0].value), self.flow.function(stored[0])
        if function is None or "." in path or self._is_bound(function, path):
            return None
        if f"isinstance({path}," in self.code(function.node):
            return None  # if isinstance(device, torch.device): return device.type
        return function.param(path)

    def _is_bound(self, function: Function, name: str) -> bool:
        """``device = torch.device(device)``"""
        return any(
            name in bound_paths(node) and self.flow.function(node) is function
            for kind in (cst.Assign, cst.AnnAssign, cst.For)
            for node in self.source.nodes_of(kind)
        )

    def _handed(self, param: cst.Param) -> cst.BaseExpression | None:
        """A ``torch.device`` that a call in this file hands in for a parameter."""
        scope = self.flow.scope
        function = next((each for each in scope.functions.values() if param in each.params), None)
        if function is None:
            return None
        for call in self.source.nodes_of(cst.Call):
            made = scope.class_names.get(dotted(call.func))
            called = made.find_method("__init__") if made is not None else None
            if (called or function_called(self.flow, self.flow.function(call), call)) is not function:
                continue
            given = handed_in(call, function, param.name.value)
            if given is not None and (self._is_object(given) or self._is_bound_to_object(given)):
                return given
        return None

    def _is_object(self, node: cst.BaseExpression) -> bool:
        """Whether it is a ``torch.device``, or that of what is used as a tensor: ``ids.device`` of ``ids.shape``."""
        if isinstance(node, cst.Attribute) and node.attr.value == "device" and self.flow.value(node.value).is_tensor:
            return True
        return self.flow.value(node).is_device_object

    def _is_bound_to_object(self, given: cst.BaseExpression) -> bool:
        """``if where is None: where = x.device``, above ``half_of(model, where)``"""
        function = self.flow.function(given)
        return isinstance(given, cst.Name) and any(
            given.value in bound_paths(node)
            and self.flow.function(node) is function
            and self._is_object(node.value)
            and self.source.comes_before(node, given)
            and not is_inside(self.flow, given, node)  # DEVICE = choose(DEVICE)
            for node in self.source.nodes_of(cst.Assign)
        )

    def _compare_types(self, node: cst.Comparison, device: cst.BaseExpression, texts: list[str]) -> Fix | None:
        if self.flow.scope.imports.get("torch") != "torch" or any(text not in _TYPES for text in texts):
            return None
        compared = node.comparisons[0]
        edits = [self.replace(device, f"torch.device({self.code(device)}).type")]
        if isinstance(compared.operator, cst.In | cst.NotIn) and isinstance(compared.comparator, cst.SimpleString):
            # device not in "cpu"
            edits.append(self.replace(compared.operator, "==" if isinstance(compared.operator, cst.In) else "!="))
        return self.fix("compare its `type`", *edits, safe=False)

    def _without_index(self, node: cst.BaseExpression) -> cst.SimpleString | None:
        """``"cuda"`` of ``torch.device("cuda")``; ``None`` for ``torch.device("cpu")``: tensors have no index there."""
        if not isinstance(node, cst.Call) or self.flow.name_of(node) != "torch.device" or len(node.args) != 1:
            return None
        kind = node.args[0].value
        if not isinstance(kind, cst.SimpleString) or kind.evaluated_value not in _TYPES - {"cpu", "meta"}:
            return None
        return kind

    def _looked_up(self, node: cst.CSTNode, mapping: cst.BaseExpression, key: cst.BaseExpression) -> None:
        if self.flow.value(key).is_device_object and (texts := self._keys(mapping)):
            self._report(node, key, f"which is never a key of `{short(self.code(mapping))}`: those are strings", texts)
        elif (split := self._splits(key)) is not None and self._keys(mapping):
            name = self.code(key)
            self.report(
                node,
                f"`{short(self.code(mapping))}` has no key for a `{name}` with an index",
                notes=[self.note(split, f"the index of `{name}` is taken off here")],
                fix=self.fix("look up its type", self.replace(key, f'{name}.partition(":")[0]'), safe=False),
            )

    def _splits(self, key: cst.BaseExpression) -> cst.Call | None:
        """``device.split(":")`` further down: the string may name an index, and has it still."""
        if not isinstance(key, cst.Name) or not names_device(key.value):
            return None
        function = self.flow.function(key)
        for call in self.source.nodes_of(cst.Call):
            func = call.func
            if isinstance(func, cst.Attribute) and func.attr.value in ("split", "partition") and call.args:
                text = call.args[0].value
                splits = isinstance(text, cst.SimpleString) and text.evaluated_value == ":"
                if splits and dotted(func.value) == key.value and self.flow.function(call) is function:
                    return call if self.source.comes_before(key, call) else None
        return None

    def _keys(self, mapping: cst.BaseExpression) -> list[str] | None:
        """The keys of a dictionary where all are known to name types of devices."""
        value = self.flow.value(mapping)
        keys = list(value.items) if value.kind == DICT else []
        return keys if keys and all(key in _TYPES for key in keys) else None

    def _texts_in(self, node: cst.BaseExpression) -> list[str] | None:
        """The strings of a list, tuple or set of nothing but strings."""
        if isinstance(node, cst.List | cst.Tuple | cst.Set):
            return _texts(self.flow.value(element.value) for element in node.elements)
        value = self.flow.value(node)
        items = value.items if value.kind == TUPLE else value.ref if value.kind == LIST else None
        return _texts(items) if items else None

    def _report(self, node: cst.CSTNode, device: cst.BaseExpression, what: str, texts: list[str]) -> None:
        message = f"`{short(self.code(device))}` is a `torch.device`, {what}"
        fix, sure = self._fix(device, texts), is_surely_object(self, device) and not self._matters_little(node)
        self.report(node, message, notes=self._notes(device), fix=fix, tentative=not sure)

    def _matters_little(self, node: cst.CSTNode) -> bool:
        """Whether it decides on what people are told alone, or is kept as another project has it."""
        return is_copied(self, node) or only_tells(self, node)

    def _notes(self, device: cst.BaseExpression) -> list[Note]:
        value = self.flow.value(device)
        if value.ref == OF_TENSOR or value.origin is None:
            return []
        annotated = isinstance(value.origin, cst.Param)
        return [self.note(value.origin, "it is annotated as one here" if annotated else "it is made here")]

    def _may_be_none(self, device: cst.BaseExpression) -> bool:
        """Whether it is a parameter annotated as perhaps ``None``, or with that for a default."""
        value = self.flow.value(device)
        if value.ref == OF_TENSOR or not isinstance(value.origin, cst.Param):
            return False
        said = [part for part in (value.origin.annotation, value.origin.default) if part is not None]
        return any(word in self.code(part) for part in said for word in ("None", "Optional"))

    def _fix(self, device: cst.BaseExpression, texts: list[str]) -> Fix | None:
        if texts and all(text in _TYPES for text in texts):
            if not device.lpar and not isinstance(device, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
                return None
            safe = not self._may_be_none(device)
            return self.fix("compare its `type`", self.insert_after(device, ".type"), safe=safe)
        if texts and all(":" in text for text in texts):
            edits = self.insert_before(device, "str("), self.insert_after(device, ")")
            return self.fix("compare it as a string", *edits, safe=False)
        return None


#: What is asked of strings, and what a `torch.device` does not have. It has `index`, which is a number.
_OF_STRINGS = frozenset(
    "startswith endswith split rsplit partition rpartition lower upper strip lstrip rstrip replace find rfind count "
    "isdigit removeprefix removesuffix casefold title capitalize format encode join".split()
)
#: Packages that call devices so.
_WITH_GPUS = frozenset("jax tensorflow paddle mxnet pytorch_lightning lightning onnxruntime mindspore oneflow".split())


def _shown(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The device of ``str(device)``, ``device.type``, ``str(device).lower()`` and ``str(device).split(":")[0]``."""
    while isinstance(node, cst.Call | cst.Subscript):
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in _OF_STRINGS:
            node = node.func.value
        elif dotted(node.func) in ("str", "repr") and len(node.args) == 1:
            return node.args[0].value
        else:
            return None
    return node.value if isinstance(node, cst.Attribute) and node.attr.value == "type" else None


def _texts(values: Iterable[Value]) -> list[str] | None:
    """Constant strings; ``None`` where one is something else, or put together when the code runs."""
    found = [value.text if value.kind == DATA and value.ref is None else None for value in values]
    return None if None in found else [text for text in found if text is not None]
