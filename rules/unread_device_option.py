from __future__ import annotations

import re

import libcst as cst

from devlint.flow.names import called_name, dotted, last_word, names_bound
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import argument

_OPTION = re.compile(
    r"(torch_)?device(_ids?)?|(use_|no_|disable_)?(cuda|gpu)|(use_)?cpu|gpu_?(ids?|index|num(ber)?)|cuda_(id|device|index)"
)
#: It is there for those who still say it.
_SAYS_SO = re.compile(r"deprecat|unused|not used|no effect|ignored|compat|legacy|placeholder", re.IGNORECASE)
#: What tells people what was chosen, and reads nothing; and what reads an option by its name, which is looked for.
_TELLS = frozenset("print pprint info debug warning log format str repr pformat getattr hasattr setattr".split())


class UnreadDeviceOption(Rule):
    """A program has an option for its device, and never reads it.

    ## What it does
    Reports an option of `argparse` that chooses the device (`--device`, `--gpu`, `--no-cuda`) in a program of one file
    that nothing in it reads.

    ## Why is this bad
    Whoever says `--device cuda:1` or `--device cpu` gets what the program does anyway: another GPU, which may be taken,
    or the CPU. Nothing says that the choice was lost.

    ## Example
    ```python
    import argparse

    import torch
    from project import Classifier

    parser = argparse.ArgumentParser()
    parser.add_argument("image")
    parser.add_argument("--device", help="device used for inference")
    args = parser.parse_args()
    with torch.no_grad():
        print(Classifier("base")(args.image))
    ```

    ## Use instead
    ```python
    import argparse

    import torch
    from project import Classifier

    parser = argparse.ArgumentParser()
    parser.add_argument("image")
    parser.add_argument("--device", help="device used for inference")
    args = parser.parse_args()
    with torch.no_grad():
        print(Classifier("base", device=args.device)(args.image))
    ```

    ## Fix safety
    No fix is offered: where the device belongs is for the author to say.

    ## Limits
    Silent where the options are handed on as a whole, to other files or as a dictionary, where the file only makes the
    parser or defines the function that gives the options, where a string names the option, and where its help says that
    it has no effect. `local_rank` is not among these options: launchers pass it to everybody. Not proved by running: a
    run does not see what nothing asked for. In code that is kept well, strict readers held four findings of six for
    true, and what was wrong with the others is mended.

    ## References
    - [argparse](https://docs.python.org/3/library/argparse.html)
    """

    group = "nursery"

    def check(self) -> None:
        text = self.source.text
        if "add_argument" not in text or "parse_args" not in text or self.in_tests:
            return
        options = [(call, name) for call in self.source.nodes_of(cst.Call) if (name := self._option(call))]
        if not options or self._is_handed_on():
            return
        read = {node.attr.value for node in self.source.nodes_of(cst.Attribute)}
        for call, name in options:
            # getattr(args, "device"), overrides["device"]
            named = re.search(rf"""(["']){name}\1""", text.replace(self.code(call), ""))
            if name not in read and named is None:
                self.report(call, f"nothing reads `{name}`: what is chosen by this option is lost")

    def _option(self, call: cst.Call) -> str:
        """The attribute that an option for the device sets."""
        if called_name(call) != "add_argument":
            return ""
        dest, told = argument(call, None, "dest"), argument(call, None, "help")
        texts = [arg.value for arg in call.args if arg.keyword is None and isinstance(arg.value, cst.SimpleString)]
        names = [str(text.evaluated_value) for text in texts]
        long = next((name for name in names if name.startswith("--")), "").lstrip("-").replace("-", "_")
        if dest is not None:
            long = str(dest.value.evaluated_value) if isinstance(dest.value, cst.SimpleString) else ""
        if told is not None and _SAYS_SO.search(self.code(told.value)):
            return ""
        return long if _OPTION.fullmatch(long) else ""

    def _is_handed_on(self) -> bool:
        """Whether others may read the options: `run(args)` of another file, `vars(args)`, a parser that is imported."""
        parsed = self._parsed({"parse_args", *self._parsing()})
        # def parse(): return parser.parse_args()   for others
        returned = (call for call in self.source.nodes_of(cst.Call) if isinstance(self.parent(call), cst.Return))
        if any(
            called_name(call) == "parse_args"
            and (own := self.flow.function(call)) is not None
            and not self._is_called(own)
            for call in returned
        ):
            return True
        return not parsed or any(
            name.value in parsed and not self._is_read_here(name) for name in self.source.nodes_of(cst.Name)
        )

    def _is_called(self, function: Function) -> bool:
        """Whether the file itself has a use for a function: others import one that it only defines."""
        return any(called_name(call) == function.name for call in self.source.nodes_of(cst.Call))

    def _parsing(self) -> set[str]:
        """Functions of the file that give what was parsed."""
        return {
            function.name
            for function in self.flow.scope.functions.values()
            if "parse_args(" in self.code(function.node.body)
        }

    def _parsed(self, giving: set[str]) -> set[str]:
        """The names that are bound to what was parsed."""
        return {
            name
            for node in self.source.nodes_of(cst.Assign)
            if isinstance(node.value, cst.Call) and last_word(dotted(node.value.func)) in giving
            for name in names_bound(*(target.target for target in node.targets))
        }

    def _is_read_here(self, name: cst.Name) -> bool:
        """``args.image``, ``args = parse()``, ``main(args)`` of this file, ``print(args)``, ``return args``"""
        above = self.parent(name)
        if isinstance(above, cst.Attribute | cst.AssignTarget | cst.Param):
            return not isinstance(above, cst.Attribute) or above.attr.value != "__dict__"
        if isinstance(above, cst.Return):
            function = self.flow.function(name)
            return function is not None and "parse_args(" in self.code(function.node.body) and self._is_called(function)
        if isinstance(above, cst.FormattedStringExpression):
            return True
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg) or above.star:
            return False
        if above.keyword is name:  # parse(args=None)
            return True
        called = last_word(dotted(call.func))
        mine = {function.name for function in self.flow.scope.functions.values() if function.cls is None}
        return (isinstance(call.func, cst.Name) and called in mine) or called in _TELLS
