"""devlint finds, explains and fixes device-placement bugs in PyTorch code."""

__version__ = "0.1.0"
