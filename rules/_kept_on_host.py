"""What keeps a module on the host, or says that one is meant for it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, names_bound, names_in
from devlint.flow.place import HOST, from_string
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import MODULE, SELF, Value
from devlint.rule import Rule
from devlint.rules._as_arrays import asked_for_arrays
from devlint.rules._exports import is_of_export, records
from devlint.rules._meetings import speaks_of_devices


def is_on_host_there(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether modules may stay on the host there: tests hand them what they made, and exports trace them."""
    return (
        rule.in_tests
        or records(rule)
        or is_of_export(rule, node)
        or _is_of_host_script(rule)
        or _is_built_and_kept_on_host(rule)
    )


def _is_built_and_kept_on_host(rule: Rule) -> bool:
    """``def _load(): state = torch.load(file, map_location="cpu"); net = _Net(); net.load_state_dict(state)``, in a
    file that moves nothing to a device: what builds its own, private module for the host."""
    if any(move.target.is_there for move in rule.flow.facts.moves.values()):
        return False
    private = {cls.name for cls in rule.flow.scope.classes.values() if cls.is_module and cls.name.startswith("_")}
    for call in rule.flow.calls("torch.load"):
        function = rule.flow.function(call)
        if function is not None and rule.flow.value(call).place == HOST and function.calls & private:
            return True
    return False


def _is_of_host_script(rule: Rule) -> bool:
    """``if __name__ == "__main__": main()`` of a file that never speaks of a device and that no other one imports: its
    modules are run there, on the host."""
    if "__main__" not in rule.source.text or speaks_of_devices(rule):
        return False
    project = rule.flow.project
    return project is not None and not project.is_imported()


def is_fed_from_host(rule: Rule, function: Function | None) -> bool:
    """``def predict(self, state): return self(torch.tensor(state)).numpy()``: a module that stays on the host."""
    if function is None:
        return False
    calls = [each for each in tree.walk(function.node.body) if isinstance(each, cst.Call)]
    own = {"self", "self.forward"}
    asked = [call for call in calls if dotted(call.func) in own or rule.flow.value(call.func).place.name == "self"]
    given = [arg.value for call in asked for arg in call.args]
    # self(Field(torch.randn(3, 8)))
    given += [arg.value for each in given if isinstance(each, cst.Call) for arg in each.args]
    if any(_is_made_on_host(rule, each) for each in given):
        return True
    wrapped = _wrapped_on_host(rule, function) if given else set()
    return any(names_in(arg) & wrapped for arg in given)


def _is_made_on_host(rule: Rule, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    # torch.FloatTensor(rows)   makes what is on the host, or raises
    typed = isinstance(node, cst.Call) and rule.flow.name_of(node) in table.HOST_TYPED
    return typed or (value.is_tensor and value.place.is_host)


def is_given_back_on_host(rule: Rule, function: Function, value: Value) -> bool:
    """``self(Field(torch.randn(3, 8))).values + torch.zeros(3, 8)``"""
    made = value.origin
    return isinstance(made, cst.Call) and dotted(made.func) == "self" and is_fed_from_host(rule, function)


def _wrapped_on_host(rule: Rule, function: Function) -> set[str]:
    """``x = torch.randn(3, c); x = Field(x, self.kind)``: the names of what is made of host tensors, and what that is
    is not known."""
    found: set[str] = set()
    for node in tree.walk(function.node.body):
        if not isinstance(node, cst.Assign):
            continue
        parts = (each for each in tree.walk(node.value) if isinstance(each, cst.Name | cst.Call))
        of_host = any(value.is_tensor and value.place.is_host for value in map(rule.flow.value, parts))
        if (of_host or names_in(node.value) & found) and not rule.flow.value(node.value).place.is_known:
            found |= names_bound(*(target.target for target in node.targets))
    return found


def reads_inputs_on_host(rule: Rule, function: Function | None) -> bool:
    """``def forward(self, x): return torch.from_numpy(self.engine.run(x.numpy()))``: a module for the host, or for what
    has its tensors there, and so are its weights."""
    forward = function.cls.find_method("forward") if function is not None and function.cls is not None else None
    if forward is None:
        return False
    read = (rule.flow.value(each) for each in _read_there(rule, forward))
    return any(value.is_tensor and value.origin in forward.params for value in read)


def reads_arrays_before(rule: Rule, function: Function, node: cst.CSTNode) -> bool:
    """``states = self.cell(u); rows[0] = torch.from_numpy(self.pca(states.numpy())); self.head(rows)``: what is run on
    a device raises before it comes to `self.head`."""
    return any(rule.source.comes_before(each, node) for each in _read_there(rule, function))


def _read_there(rule: Rule, function: Function) -> Iterator[cst.BaseExpression]:
    return (each for each in asked_for_arrays(function) if not rule.flow.value(each).place.is_host)


def places_its_parts(rule: Rule, function: Function) -> bool:
    """``def to(self, device): self.head.to(device)``, ``self.head = nn.Linear(8, 2).to("cuda:1")`` in a constructor:
    whether the class has an idea of its own of what is where."""
    cls = function.cls
    if cls is None:
        return False
    own = [method for name in ("to", "cuda", "_apply") if (method := cls.find_method(name)) is not None]
    # def cuda(self): super().cuda(); self.table.cpu(); return self   (of another file, there is no body to look into)
    if any(not tree.named(method.node, "super") or _brings_to_host(rule, method) for method in own):
        return True
    built = {method for each in cls.lineage for method in each.methods.values() if method.role == CONSTRUCTOR}
    return any(
        move.target.is_there and move.value.kind == MODULE and rule.flow.function(move.node) in built
        for move in rule.flow.facts.moves.values()
    )


def brings_self_to_host(rule: Rule, function: Function) -> bool:
    """``self.to("cpu")``, ``copy.deepcopy(self).cpu()``: a method that works on the host."""
    moved = _moved_to_host(rule, function)
    return any(rule.flow.value(each).kind in (MODULE, SELF) or "copy(self" in rule.code(each) for each in moved)


def _brings_to_host(rule: Rule, function: Function) -> bool:
    return any(dotted(each).startswith("self.") for each in _moved_to_host(rule, function))


def _moved_to_host(rule: Rule, function: Function) -> Iterator[cst.BaseExpression]:
    for call in tree.walk(function.node.body):
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            to_host = call.func.attr.value == "to" and any(leaves_on_host(rule, arg.value) for arg in call.args)
            if to_host or call.func.attr.value == "cpu":
                yield call.func.value


def leaves_on_host(rule: Rule, given: cst.BaseExpression) -> bool:
    """Whether what is given for a device leaves things on the host: ``None``, ``"cpu"``, and what names that."""
    if isinstance(given, cst.SimpleString):
        return from_string(str(given.evaluated_value)) == HOST
    return dotted(given) == "None" or rule.flow.value(given).place == HOST
