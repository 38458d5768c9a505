from tests.fakes.pyinfra_host import world
from tests.fakes.repository import empty, repository

__all__ = ["empty", "repository", "world"]
