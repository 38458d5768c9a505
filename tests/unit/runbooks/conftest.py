from tests.fakes.repository import empty, repository

__all__ = ["empty", "repository"]
