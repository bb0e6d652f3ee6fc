import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite fixtures/**/*.fixed.py as the fixes settle now")
