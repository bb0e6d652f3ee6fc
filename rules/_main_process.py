"""What one process alone does, of a distributed run."""

from __future__ import annotations

import re

import libcst as cst

from devlint.rule import Rule

_MAIN_PROCESS = re.compile(
    r"rank\w*(\(\))? *== *0|not (\w+\.)*(local_)?rank\b|is_(local_)?(main|master)|is_rank_zero|if_main"
)


def runs_in_main_process(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node stands below a test for the first process: ``if rank == 0: ...``, not in its ``else``."""
    child, above = node, rule.parent(node)
    while above is not None:
        if isinstance(above, cst.If) and child is above.body and _MAIN_PROCESS.search(rule.code(above.test)):
            return True
        child, above = above, rule.parent(above)
    return False
