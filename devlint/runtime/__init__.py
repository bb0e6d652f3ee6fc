"""The runtime companion: asserts where tensors live while a program runs, on real GPUs and on imaginary ones.

The only part of devlint that imports torch, and nothing of the linter imports it (``pip install "devlint[runtime]"``).
Importing this package alone needs no torch: reports can be read without.
"""

OLDEST_TORCH = (2, 4)


def require_torch() -> None:
    """Says plainly what is missing.

    Raises:
        ImportError: there is no torch, one that cannot be imported, or one older than `OLDEST_TORCH`.
    """
    try:
        import torch
    except ImportError as error:
        if error.name == "torch":
            raise ImportError('torch is not installed: `pip install "devlint[runtime]"`', name="torch") from error
        raise ImportError(f"torch cannot be imported: {error}", name=error.name) from error
    except OSError as error:  # a shared library that it needs is missing
        raise ImportError(f"torch cannot be imported: {error}", name="torch") from error
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        needed = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(f"torch {torch.__version__} is too old: the runtime companion needs {needed} or later")
