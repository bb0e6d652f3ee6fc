from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.names import called_name, dotted, target_names
from devlint.flow.scope import Class, Function
from devlint.flow.steps import function_called
from devlint.flow.value import MODULE
from devlint.rule import Rule
from devlint.rules._answers import answers
from devlint.rules._moves import short
from devlint.rules._training import bound_paths, names_any, under_no_grad

#: Names in a function that works with gradients, or that turns autograd off by itself.
_GRADIENTS = re.compile(r"grad|backward|inference_mode|attack|adversar|optim|volatile", re.I)
#: Methods and functions after which nothing goes backward.
_ENDS = frozenset("item argmax cpu detach tolist numpy topk decode float int argsort".split())
#: Methods that give the model that they are called of.
_GIVE_ITSELF = frozenset("to cuda cpu eval train half float double bfloat16 requires_grad_".split())
#: Packages of which no model needs gradients to answer.
_OF_PLAIN_MODELS = frozenset({"torch", "torchvision", "transformers", "timm", "copy"})
#: In a module that works with gradients of its own: forces are those of an energy.
_DIFFERENTIATES = re.compile(r"^(grad|enable_grad|inference_mode)$")
#: In what `forward` runs: y = torch.zeros(n, 10, requires_grad=True); steps = torch.optim.SGD([y], lr=0.1)
_DESCENDS = re.compile(r"^(requires_grad_?|backward|autograd|optim|vjp|jvp|jacobian|jacrev|jacfwd)$")
#: Names of methods that ask a model, and of those that let it write.
_EVALUATES = re.compile(r"^_?(eval|evaluate|validate|validation|test)(_|$)")
_GENERATES = re.compile(r"^_?(generate|sample|decode|write|complete)(_|$)")


class InferenceWithGrad(Rule):
    """A loop only asks a model, and autograd records every answer.

    ## What it does
    Reports a call of a model in a loop of a function that calls `eval()` on it, or that is called to evaluate once
    `eval()` was, never goes backward, and neither turns autograd off nor is called where it is off. Reports, too, a
    module that generates token by token from its own state with autograd on.

    ## Why is this bad
    `eval()` changes what dropout and batch normalization do, and nothing else: autograd still records every operation,
    and holds its inputs on the device until the result is gone. A batch needs as much memory as in training, and where
    results are collected or fed back, as in generation, memory grows with every iteration.

    ## Example
    ```python
    import torch


    def evaluate(model, loader, device):
        model.eval()
        correct = 0
        for x, y in loader:
            correct += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        return correct
    ```

    ## Use instead
    ```python
    import torch


    @torch.no_grad()
    def evaluate(model, loader, device):
        model.eval()
        correct = 0
        for x, y in loader:
            correct += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        return correct
    ```

    ## Fix safety
    The fix decorates the function with `@torch.no_grad()`. It is unsafe: what the function returns has no history
    then, which a caller in another file could have wanted. No fix is offered outside of functions, for generators, and
    where `torch` is not imported under its name.

    ## Limits
    Silent where nothing calls `eval()`, where nothing in it says that results are only read (`argmax`, `item()`,
    `cpu()` and the like), and where anything in it, or in the model's class, has to do with gradients: in any class of
    the file, for a model that is handed in and may be any of them. Held back as tentative: what another file of the
    project calls, by its name, where autograd is off; models that a function or a method of a class loads
    (`load_model(path)`), or whose class is too long to be followed; one that a function is handed, and that the file
    builds of a class that nobody knows; and, in objects that call `eval()` when they are
    built and have nothing to do with gradients, whatever method asks the model. Some need gradients to answer (forces),
    and others turn autograd off by themselves.

    A strict reader held all of 14 findings in 48 repositories for right and worth a change; of 18 in 550 more, strict
    readers held 12 for true and five for wrong, which is why this rule waits here. Three of these are tentative now:
    two that another file calls with autograd off, and a model that is frozen. The other two are of models of other
    files that need gradients to answer, or turn autograd off, by themselves. Of nine in 234 more, readers held three
    for true and two for wrong: models that go backward in their own `forward`.

    ## References
    - [Autograd mechanics: locally disabling gradient computation](https://pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        if "set_grad_enabled(False)" in self.source.text:
            return
        self._check_generation()
        if "eval()" not in self.source.text:
            return
        done: set[cst.CSTNode] = set()
        for call in self.source.nodes_of(cst.Call):
            func = call.func
            if not (isinstance(func, cst.Attribute) and func.attr.value == "eval" and not call.args):
                continue
            function = self.flow.function(call)
            around = function.node if function is not None else self.source.module
            if around not in done and (model := self._path(func.value)):
                asked = self._asked(function, around, call, model)
                if asked is not None:
                    done.add(around)
                    self._report(function, asked, call, model)
                elif function is not None and model.startswith("self."):
                    self._check_called(function, call, model, done)
        for answer in answers(self):
            if answer.method.node not in done and not self._off_at_callers(answer.method, set()):
                name = dotted(answer.call.func)
                self.report(
                    answer.call,
                    f"`{name}` only answers here, and autograd records what it computes",
                    notes=[
                        self.note(answer.eval_, "it is put in evaluation mode for good, which does not turn it off")
                    ],
                    fix=self._fix(answer.method),
                    tentative=True,  # callers in other files may turn it off
                )

    def _check_called(self, caller: Function, eval_: cst.Call, model: str, done: set[cst.CSTNode]) -> None:
        """``self.model.eval(); loss = self.evaluate(batches)``: a method that evaluates the model it finds so."""
        for call in self.source.nodes_of(cst.Call):
            func = call.func
            if self.flow.function(call) is not caller or not isinstance(func, cst.Attribute):
                continue
            if dotted(func.value) != "self" or not _EVALUATES.search(func.attr.value):
                continue
            if self.source.offsets(call)[0] < self.source.offsets(eval_)[0] or under_no_grad(self.flow, call):
                continue
            method = caller.cls.find_method(func.attr.value) if caller.cls is not None else None
            if method is None or method.home is not self.flow or method.node in done:
                continue
            asked = self._asked(method, method.node, None, model)
            if asked is not None:
                done.add(method.node)
                self._report(method, asked, eval_, model)

    def _check_generation(self) -> None:
        """``logits, hidden = self(token, hidden)`` in a loop of a method that generates, from what it drew before."""
        for function in self.flow.scope.functions.values():
            if function.cls is None or not function.cls.is_module or not _GENERATES.search(function.name):
                continue
            nodes = list(tree.walk(function.node))
            if any(isinstance(node, cst.Name) and _GRADIENTS.search(node.value) for node in nodes):
                continue
            draws = any(
                isinstance(n, cst.Attribute) and n.attr.value in ("multinomial", "argmax", "topk") for n in nodes
            )
            if not draws or function.is_generator or self._off_at_callers(function, set()):
                continue
            for assign in (node for node in nodes if isinstance(node, cst.Assign)):
                call = assign.value
                if not isinstance(call, cst.Call) or dotted(call.func) not in ("self", "self.forward"):
                    continue
                if self._keeps_state(assign, call) and self._is_model(call, "self"):
                    self._report(function, call, None, "self")
                    break

    def _keeps_state(self, assign: cst.Assign, call: cst.Call) -> bool:
        """Whether a call in a loop is given, as it is, a part of what it gave in the iteration before."""
        if self.flow.loop(call) is None or under_no_grad(self.flow, call):
            return False
        bound: set[str] = set()
        target_names(assign.targets[0].target, bound)
        return any(dotted(arg.value) in bound for arg in call.args)

    def _path(self, node: cst.BaseExpression) -> str:
        """`model` of `model.to(device)`."""
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        return dotted(node)

    def _asked(
        self, function: Function | None, around: cst.CSTNode, eval_: cst.Call | None, model: str
    ) -> cst.Call | None:
        """The first call of the model in a loop of a function that has nothing to do with gradients."""
        nodes = list(tree.walk(around))
        found, after, ends = None, eval_ is None, eval_ is None
        for node in nodes:
            if isinstance(node, cst.Name) and _GRADIENTS.search(node.value):
                # loss.backward(), x.requires_grad_(), torch.autograd.grad(out, x), with torch.no_grad():
                # Variable(x, volatile=True), which turned it off in its time
                return None
            if not isinstance(node, cst.Call):
                continue
            after = after or node is eval_
            called = called_name(node)
            ends = ends or called in _ENDS
            if not after or found is not None:
                continue
            if called == "train" and isinstance(node.func, cst.Attribute) and dotted(node.func.value) == model:
                return None  # model.eval(); sample(); model.train(); for x, y in loader: ...
            if dotted(node.func) in (model, f"{model}.forward") and self._is_model(node, model):
                found = node if self._in_loop(node, any_batch=eval_ is None) else None
        if found is None or not ends:
            return None  # what it gives has its history on purpose, for all that is known here
        if self.flow.function(found) is not function:
            return None
        if function is not None and self._off_at_callers(function, set()):
            return None
        return found

    def _is_model(self, call: cst.Call, path: str) -> bool:
        function = self.flow.function(call)
        if path == "self":
            cls = function.cls if function is not None else None
            return cls is not None and cls.is_module and not self._is_silent(cls)
        func = call.func
        value = self.flow.value(func.value if isinstance(func, cst.Attribute) and dotted(func) != path else func)
        if value.kind != MODULE:
            return False
        if isinstance(value.ref, Class):
            return not self._is_silent(value.ref)
        if not isinstance(value.origin, cst.Param):
            return True
        handed = function.handed_modules.get(path) if function is not None else None
        if handed:
            return not any(self._is_silent(cls) for cls in handed)
        # def evaluate(net, loader): ...   may be given whichever of the file's models
        return not any(cls.is_module and self._needs_gradients(cls) for cls in self.flow.scope.classes.values())

    def _is_silent(self, cls: Class) -> bool:
        """Whether a module turns autograd off by itself when it is called, or needs it to answer."""
        decorators = [decorator for entry in _entries(cls) for decorator in entry.decorators]
        return any(_GRADIENTS.search(decorator) for decorator in decorators) or self._needs_gradients(cls)

    def _needs_gradients(self, cls: Class) -> bool:
        # forces = -torch.autograd.grad(energy.sum(), positions)[0]
        return any(names_any(each.node, _DIFFERENTIATES) for each in cls.lineage) or any(
            names_any(each.node.body, _DESCENDS) for each in self._reached(_entries(cls))
        )

    def _reached(self, entries: list[Function]) -> set[Function]:
        """Functions, with those that they call by name, and the `forward` of the modules that they call."""
        seen, todo = set(entries), list(entries)
        while todo:
            function = todo.pop()
            flow = function.home or self.flow
            for call in tree.walk(function.node.body):
                if not isinstance(call, cst.Call):
                    continue
                part = flow.value(call.func).ref
                called = part.find_method("forward") if isinstance(part, Class) else None
                called = called or function_called(flow, function, call)
                if called is not None and called not in seen:
                    seen.add(called)
                    todo.append(called)
        return seen

    def _in_loop(self, call: cst.Call, *, any_batch: bool) -> bool:
        """In a loop through a loader, or one whose next iteration is fed what this one gave."""
        loop = self.flow.loop(call)
        if loop is None or under_no_grad(self.flow, call):
            return False
        if loop.loader:
            return True
        if any_batch and isinstance(loop.node, cst.For) and dotted(loop.node.target) == "batch":
            return True
        if not call.args or (isinstance(loop.node, cst.For) and isinstance(loop.node.iter, cst.Tuple | cst.List)):
            return False
        fed = dotted(call.args[0].value)
        return bool(fed) and loop.binds(fed) and not self._bound_by_loop(loop.node, fed)

    def _bound_by_loop(self, loop: cst.For | cst.While, name: str) -> bool:
        """Whether each iteration begins with another value: `for x in batches`, `x = next(batches)`."""
        heads = tree.walk(loop.target) if isinstance(loop, cst.For) else ()
        if any(isinstance(node, cst.Name) and node.value == name for node in heads):
            return True
        return any(
            isinstance(node, cst.Assign)
            and any(dotted(target.target) == name for target in node.targets)
            and not self._depends(node.value, loop)
            for node in tree.walk(loop.body)
        )

    def _depends(self, value: cst.BaseExpression, loop: cst.For | cst.While) -> bool:
        """Whether a value is made from what the model gave in this loop."""
        names = {n.value for n in tree.walk(value) if isinstance(n, cst.Name)}
        todo, seen = list(names), set(names)
        calls = [value]
        while todo:
            name = todo.pop()
            for node in tree.walk(loop.body):
                if isinstance(node, cst.Assign) and any(
                    isinstance(n, cst.Name) and n.value == name for t in node.targets for n in tree.walk(t.target)
                ):
                    calls.append(node.value)
                    more = {n.value for n in tree.walk(node.value) if isinstance(n, cst.Name)} - seen
                    seen |= more
                    todo += more
        return any(
            isinstance(n, cst.Call) and self.flow.value(n.func).kind == MODULE
            for each in calls
            for n in tree.walk(each)
        )

    def _off_at_callers(self, function: Function, seen: set[Function]) -> bool:
        """Whether autograd is off where the function is called in this file, or something else decorates it."""
        if function in seen:
            return False
        seen.add(function)
        if any(_GRADIENTS.search(d) for d in function.decorators) or function.is_replaced:
            return True  # @torch.no_grad()
        if function.outer is not None:
            return True  # what the function around it does, or what it is handed to, is not followed
        for call in self.source.nodes_of(cst.Call):
            called = called_name(call)
            if called != function.name:
                continue
            if under_no_grad(self.flow, call):
                return True  # with torch.no_grad(): evaluate(model, loader)
            caller = self.flow.function(call)
            if caller is not None and self._off_at_callers(caller, seen):
                return True
        return False

    def _report(self, function: Function | None, asked: cst.Call, eval_: cst.Call | None, model: str) -> None:
        notes = [self.note(eval_, f"`{short(self.code(eval_))}` does not turn autograd off")] if eval_ else []
        self.report(
            asked,
            f"autograd records `{short(self.code(asked))}` in every iteration, and nothing goes backward",
            notes=notes,
            fix=self._fix(function),
            tentative=self._is_loaded(asked, model)
            or self._is_called_in_silence(function)
            or self._is_built_of_other(asked, function),
        )

    def _is_built_of_other(self, asked: cst.Call, function: Function | None) -> bool:
        """``model = InceptionV3([3]); activations(model, images)``, whose class another file defines, and nobody knows:
        it may freeze all that it holds."""
        name = dotted(asked.func)
        if function is None or function.param(name) is None or function.handed_modules.get(name):
            return False
        return any(
            isinstance(assign.value, cst.Call)
            and isinstance(assign.value.func, cst.Name)
            and assign.value.func.value in self.flow.scope.imports
            and assign.value.func.value[:1].isupper()
            for assign in self.source.nodes_of(cst.Assign)
            if dotted(assign.targets[0].target) == name
        )

    def _is_called_in_silence(self, function: Function | None) -> bool:
        """``with torch.no_grad(): validate(net, loader)`` in another file: others may call it otherwise."""
        project = self.flow.project
        if function is None or project is None or function.name == "__init__":
            return False
        return project.some_file_says(f"silences {function.name}") is True

    def _is_loaded(self, asked: cst.Call, model: str) -> bool:
        """``model = load_model(path)``, ``Net.load(path)``, or a class of another file that is not followed: what its
        `forward` does, or turns off, is not known."""
        around = self.enclosing(asked, cst.ClassDef if "." in model else cst.FunctionDef) or self.source.module
        return any(
            self._loads(assign.value)
            for assign in tree.walk(around)
            if isinstance(assign, cst.Assign) and model in bound_paths(assign)
        )

    def _loads(self, value: cst.BaseExpression) -> bool:
        while (
            isinstance(value, cst.Call) and called_name(value) in _GIVE_ITSELF and isinstance(value.func, cst.Attribute)
        ):
            value = value.func.value  # load_model(path).to(device)
        if not isinstance(value, cst.Call) or isinstance(self.flow.value(value).ref, Class):
            return False
        called = self.flow.scope.qualified(value.func)
        if called_name(value)[:1].isupper():  # Net(3, 4)
            return self.flow.definition(called) is not None  # of the project, and too long to be followed
        return bool(called) and called.partition(".")[0] not in _OF_PLAIN_MODELS

    def _fix(self, function: Function | None) -> Fix | None:
        if function is None or function.is_generator or self.flow.scope.imports.get("torch") != "torch":
            return None
        line = self.insert_statement(function.node, "@torch.no_grad()")
        return self.fix("turn autograd off in the function", line, safe=False) if line is not None else None


def _entries(cls: Class) -> list[Function]:
    return [entry for name in ("forward", "__call__") if (entry := cls.find_method(name)) is not None]
