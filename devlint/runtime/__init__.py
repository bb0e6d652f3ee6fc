"""The runtime companion: asserts where tensors live while a program runs, on real GPUs and on imaginary ones.

The only part of devlint that imports torch, and nothing of the linter imports it (``pip install "devlint[runtime]"``).
"""
